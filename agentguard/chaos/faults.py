"""Faults at the calls of tools and models. Code injects them, never a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

import orjson

from agentguard.errors import ConfigError, StoreUnavailable
from agentguard.intercept.chat_branch import build_assistant_message
from agentguard.judge.base import JudgeAnswer


class FaultNotApplicable(Exception):
    """Exception of a fault without a meaning at a call, such as a stale result at the first call."""


class ModelStatusError(Exception):
    """Answer of a model endpoint with a status of an error.

    Args:
        status: the HTTP status.
        reason: text of the error.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"HTTP {status}: {reason}")
        self.status = status


class InvalidBody(ValueError):
    """Answer of a model endpoint whose body is not valid JSON."""


class StreamCut(ConnectionError):
    """Stream of an answer that ends in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyCall:
    """Call that gets a fault.

    Attributes:
        arguments: arguments of the call.
        result: its result; None if the fault prevents the execution.
        earlier: results of earlier calls of the same tool or model in the run, oldest first, as pairs of
            arguments and result.
    """

    arguments: Mapping[str, Any]
    result: Any = None
    earlier: Sequence[tuple[Mapping[str, Any], Any]] = field(default=())


@dataclass(frozen=True, slots=True)
class Fault:
    """Change of one call.

    Attributes:
        apply: function that returns the result for the agent, or raises.
        is_executed: True if the call is executed before the fault.
        is_delayed: True if the result comes late.
    """

    apply: Callable[[FaultyCall], Any]
    is_executed: bool = True
    is_delayed: bool = False


def raise_error(call: FaultyCall) -> NoReturn:
    """Raise an internal error."""
    del call
    raise RuntimeError("HTTP 500: internal server error")


def raise_timeout(call: FaultyCall) -> NoReturn:
    """Raise a timeout."""
    del call
    raise TimeoutError("no answer within 30 s")


def raise_denial(call: FaultyCall) -> NoReturn:
    """Raise a refusal of permission."""
    del call
    raise PermissionError("HTTP 403: permission denied")


def raise_reset(call: FaultyCall) -> NoReturn:
    """Raise the error of a connection that is closed before the answer."""
    del call
    raise ConnectionResetError("the server closed the connection")


def raise_stream_cut(call: FaultyCall) -> NoReturn:
    """Raise the error of a stream that ends in the middle of the answer."""
    del call
    raise StreamCut("the stream ended before the end of the answer")


def raise_invalid_body(call: FaultyCall) -> NoReturn:
    """Raise the error of a body that is not valid JSON."""
    del call
    raise InvalidBody("the answer of the model is not valid JSON")


def build_status_fault(status: int, reason: str) -> Fault:
    """Return the fault that rejects a request with a status."""

    def raise_status(call: FaultyCall) -> NoReturn:
        del call
        raise ModelStatusError(status, reason)

    return Fault(raise_status, is_executed=False)


def return_result(call: FaultyCall) -> Any:
    """Return the result."""
    return call.result


def return_empty(call: FaultyCall) -> Any:
    """Return an empty result of the same type."""
    result = call.result
    return type(result)() if isinstance(result, str | list | dict | tuple) else None


def return_earlier(call: FaultyCall) -> Any:
    """Return the result of the previous call of the tool or the model."""
    if not call.earlier:
        raise FaultNotApplicable
    return call.earlier[-1][1]


def return_wrong_entity(call: FaultyCall) -> Any:
    """Return the result for other arguments."""
    others = [result for arguments, result in call.earlier if arguments != call.arguments]
    if not others:
        raise FaultNotApplicable
    return others[-1]


def return_truncated(call: FaultyCall) -> Any:
    """Return the first half of the text of the result."""
    result = call.result
    text = result if isinstance(result, str) else orjson.dumps(result, default=str).decode()
    if len(text) < 2:
        raise FaultNotApplicable
    return text[: len(text) // 2]


def return_ok_with_error(call: FaultyCall) -> Any:
    """Return a result with status 200 and an error in its body."""
    del call
    return '{"status": 200, "error": "upstream request failed"}'


def return_other_schema(call: FaultyCall) -> Any:
    """Return the result with other field names."""
    result = data = call.result
    if isinstance(result, str):
        try:
            data = orjson.loads(result)
        except orjson.JSONDecodeError:
            raise FaultNotApplicable from None
    if not isinstance(data, dict) or not data:
        raise FaultNotApplicable
    renamed = {f"{name}_v2": value for name, value in data.items()}
    return orjson.dumps(renamed, default=str).decode() if isinstance(result, str) else renamed


def return_refusal(call: FaultyCall) -> Any:
    """Return a refusal of the model."""
    del call
    return {"role": "assistant", "content": "I'm sorry, but I can't help with that."}


def return_no_content(call: FaultyCall) -> Any:
    """Return an empty message."""
    del call
    return {"role": "assistant", "content": ""}


def return_unknown_tool(call: FaultyCall) -> Any:
    """Return the answer with a call of a tool that does not exist."""
    return _change_first_call(call, lambda function: function | {"name": f"{function['name']}_v2"})


def return_bad_arguments(call: FaultyCall) -> Any:
    """Return the answer with arguments that are not valid JSON."""
    return _change_first_call(
        call, lambda function: function | {"arguments": str(function["arguments"])[:-1] + ","}
    )


def answer_with_errors(call: FaultyCall) -> Any:
    """Return an error for each question, as of a judge that cannot be reached."""
    questions = call.arguments["questions"]
    return tuple(JudgeAnswer(question=question, error="connection refused") for question in questions)


def answer_wrongly(call: FaultyCall) -> Any:
    """Return the answers with rotated probabilities, so that a yes becomes a no."""
    return tuple(replace(answer, probabilities=_rotate(answer.probabilities)) for answer in call.result)


def _rotate(probabilities: Mapping[str, float]) -> dict[str, float]:
    values = list(probabilities.values())
    return dict(zip(probabilities, [*values[1:], *values[:1]], strict=True))


def build_store_fault(reason: str) -> Fault:
    """Return the fault of a store that cannot be used, with ``reason`` as the text of its database."""

    def raise_unavailable(call: FaultyCall) -> NoReturn:
        del call
        raise StoreUnavailable(f"store: {reason}")

    return Fault(raise_unavailable, is_executed=False)


def _change_first_call(call: FaultyCall, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    try:
        message = dict(build_assistant_message(call.result))
    except ConfigError:
        raise FaultNotApplicable from None
    calls = [dict(one) for one in message.get("tool_calls") or ()]
    if not calls or "function" not in calls[0]:
        raise FaultNotApplicable
    calls[0]["function"] = change(dict(calls[0]["function"]))
    return message | {"tool_calls": calls}


TOOL_FAULTS: Final[Mapping[str, Fault]] = {
    "error": Fault(raise_error, is_executed=False),
    "timeout": Fault(raise_timeout, is_executed=False),
    "after_commit_crash": Fault(raise_timeout),
    "denied": Fault(raise_denial, is_executed=False),
    "slow": Fault(return_result, is_delayed=True),
    "empty": Fault(return_empty),
    "stale": Fault(return_earlier),
    "wrong_entity": Fault(return_wrong_entity),
    "truncated": Fault(return_truncated),
    "ok_with_error": Fault(return_ok_with_error, is_executed=False),
    "schema_changed": Fault(return_other_schema),
}
"""Faults at a tool call, by name."""

MODEL_FAULTS: Final[Mapping[str, Fault]] = {
    "timeout": Fault(raise_timeout, is_executed=False),
    "http_429": build_status_fault(429, "too many requests"),
    "http_500": build_status_fault(500, "internal server error"),
    "http_529": build_status_fault(529, "overloaded"),
    "connection_reset": Fault(raise_reset, is_executed=False),
    "stream_cut": Fault(raise_stream_cut),
    "bad_body": Fault(raise_invalid_body, is_executed=False),
    "slow": Fault(return_result, is_delayed=True),
    "refusal": Fault(return_refusal, is_executed=False),
    "empty": Fault(return_no_content, is_executed=False),
    "bad_tool_name": Fault(return_unknown_tool),
    "bad_arguments": Fault(return_bad_arguments),
    "repeats_itself": Fault(return_earlier),
}
"""Faults at a model call, by name."""

JUDGE_FAULTS: Final[Mapping[str, Fault]] = {
    "judge_down": Fault(answer_with_errors, is_executed=False),
    "judge_slow": Fault(return_result, is_delayed=True),
    "judge_wrong": Fault(answer_wrongly),
}
"""Faults at a question of the guard to its judge, by name."""

STORE_FAULTS: Final[Mapping[str, Fault]] = {
    "store_locked": build_store_fault("database is locked"),
    "disk_full": build_store_fault("database or disk is full"),
}
"""Faults at a call of the guard that waits for its store, by name."""

GUARD_FAULTS: Final[Mapping[str, Fault]] = {**JUDGE_FAULTS, **STORE_FAULTS}
"""Faults at the judge and the store of the guard, by name."""
