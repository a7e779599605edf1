"""Faults at the calls of tools and models. Code injects them, never a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from agentguard.errors import ConfigError
from agentguard.intercept.chat_steps import build_assistant_message


class FaultNotApplicable(Exception):
    """The fault has no meaning at this call, such as a stale result at the first call."""


class RateLimited(Exception):
    """Answer of a model endpoint with status 429."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyCall:
    """Call that gets a fault.

    Attributes:
        arguments: arguments of the call.
        execute: function that executes the call and returns its result.
        earlier: results of earlier calls of the same tool or model in the run, oldest first, as pairs of
            arguments and result.
    """

    arguments: Mapping[str, Any]
    execute: Callable[[], Any]
    earlier: Sequence[tuple[Mapping[str, Any], Any]] = field(default=())


Fault = Callable[[FaultyCall], Any]
"""Function that replaces a call: it returns the result for the agent, or raises."""


def raise_error(call: FaultyCall) -> Any:
    """Fail without execution."""
    del call
    raise RuntimeError("HTTP 500: internal server error")


def raise_timeout(call: FaultyCall) -> Any:
    """Time out before execution."""
    del call
    raise TimeoutError("no answer within 30 s")


def crash_after_commit(call: FaultyCall) -> Any:
    """Execute the call and lose its answer."""
    call.execute()
    raise TimeoutError("no answer within 30 s")


def deny(call: FaultyCall) -> Any:
    """Refuse permission without execution."""
    del call
    raise PermissionError("HTTP 403: permission denied")


def return_empty(call: FaultyCall) -> Any:
    """Execute the call and return an empty result of the same type."""
    result = call.execute()
    return type(result)() if isinstance(result, str | list | dict | tuple) else None


def return_stale(call: FaultyCall) -> Any:
    """Execute the call and return the result of the previous call of the tool."""
    if not call.earlier:
        raise FaultNotApplicable
    call.execute()
    return call.earlier[-1][1]


def return_wrong_entity(call: FaultyCall) -> Any:
    """Execute the call and return the result for other arguments."""
    others = [result for arguments, result in call.earlier if arguments != call.arguments]
    if not others:
        raise FaultNotApplicable
    call.execute()
    return others[-1]


def return_truncated(call: FaultyCall) -> Any:
    """Execute the call and return the first half of its text."""
    result = call.execute()
    text = result if isinstance(result, str) else orjson.dumps(result, default=str).decode()
    if len(text) < 2:
        raise FaultNotApplicable
    return text[: len(text) // 2]


def return_ok_with_error(call: FaultyCall) -> Any:
    """Return status 200 with an error in the body, without execution."""
    del call
    return '{"status": 200, "error": "upstream request failed"}'


def return_other_schema(call: FaultyCall) -> Any:
    """Execute the call and return its object with other field names."""
    result = call.execute()
    data = result
    if isinstance(result, str):
        try:
            data = orjson.loads(result)
        except orjson.JSONDecodeError:
            raise FaultNotApplicable from None
    if not isinstance(data, dict) or not data:
        raise FaultNotApplicable
    renamed = {f"{name}_v2": value for name, value in data.items()}
    return orjson.dumps(renamed, default=str).decode() if isinstance(result, str) else renamed


def raise_rate_limit(call: FaultyCall) -> Any:
    """Reject the request with status 429."""
    del call
    raise RateLimited("HTTP 429: too many requests")


def return_refusal(call: FaultyCall) -> Any:
    """Answer with a refusal."""
    del call
    return {"role": "assistant", "content": "I'm sorry, but I can't help with that."}


def return_no_content(call: FaultyCall) -> Any:
    """Answer with an empty message."""
    del call
    return {"role": "assistant", "content": ""}


def return_unknown_tool(call: FaultyCall) -> Any:
    """Answer with a call of a tool that does not exist."""
    return _change_first_call(call, lambda function: function | {"name": f"{function['name']}_v2"})


def return_bad_arguments(call: FaultyCall) -> Any:
    """Answer with arguments that are not valid JSON."""
    return _change_first_call(
        call, lambda function: function | {"arguments": str(function["arguments"])[:-1] + ","}
    )


def return_previous_answer(call: FaultyCall) -> Any:
    """Answer with the previous answer of the model."""
    if not call.earlier:
        raise FaultNotApplicable
    return call.earlier[-1][1]


def _change_first_call(call: FaultyCall, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    try:
        message = dict(build_assistant_message(call.execute()))
    except ConfigError:
        raise FaultNotApplicable from None
    calls = [dict(one) for one in message.get("tool_calls") or ()]
    if not calls or "function" not in calls[0]:
        raise FaultNotApplicable
    calls[0]["function"] = change(dict(calls[0]["function"]))
    return message | {"tool_calls": calls}


TOOL_FAULTS: Final[Mapping[str, Fault]] = {
    "error": raise_error,
    "timeout": raise_timeout,
    "after_commit_crash": crash_after_commit,
    "denied": deny,
    "empty": return_empty,
    "stale": return_stale,
    "wrong_entity": return_wrong_entity,
    "truncated": return_truncated,
    "ok_with_error": return_ok_with_error,
    "schema_changed": return_other_schema,
}
"""Faults at a tool call, by name."""

MODEL_FAULTS: Final[Mapping[str, Fault]] = {
    "timeout": raise_timeout,
    "http_429": raise_rate_limit,
    "refusal": return_refusal,
    "empty": return_no_content,
    "bad_tool_name": return_unknown_tool,
    "bad_arguments": return_bad_arguments,
    "repeats_itself": return_previous_answer,
}
"""Faults at a model call, by name."""
