"""Chat completions: what of a request and of an answer a guarded run is made of."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentguard.intercept.chat_steps import repaired_message
from agentguard.intercept.conversation import ConversationBranch, Item, canonical_key, view
from agentguard.model_api.sse import event_bytes
from agentguard.trajectory.formats.sdk import add_tool_results, parse_chat
from agentguard.trajectory.model import Source, Step, Usage

META = frozenset({"id", "object", "created", "model", "usage", "system_fingerprint", "service_tier"})
"""Fields of a completion and of each of its chunks."""

HEAD = META - {"usage"}

GIVEN = ("user", "system", "developer", "human")
"""Roles of messages that no model said."""

_RESULTS = ("tool", "function")
_WHOLE = ("stop", "tool_calls", "function_call")


class Chat:
    """The dialect of ``POST /chat/completions``."""

    keeps = False
    """Whether the server keeps the history."""

    def guards(self, body: Mapping[str, Any]) -> bool:
        """Whether a request can be guarded: several choices, or the old functions, cannot."""
        return body.get("n") in (None, 1) and "functions" not in body and bool(body.get("messages"))

    def items(self, body: Mapping[str, Any]) -> list[Item]:
        """The history in a request."""
        return list(body["messages"])

    def key(self, item: Item) -> bytes:
        """What an item is known again by: clients drop and add fields of answers when they resend them."""
        role = item.get("role")
        if role != "assistant":
            return canonical_key([role, item.get("name"), item.get("tool_call_id"), item.get("content")])
        calls = [_call_key(call) for call in item.get("tool_calls") or ()]
        said = "" if calls else (_text(item.get("content")) or str(item.get("refusal") or "")).strip()
        return canonical_key([role, said, calls])

    def turns(self, items: Sequence[Item], start: int) -> list[tuple[int, int]]:
        """Turns from ``start`` on, as first place and end: an answer with its results, or a message alone."""
        made: list[tuple[int, int]] = []
        for place in range(start, len(items)):
            folded = made and items[made[-1][0]].get("role") == "assistant"
            if items[place].get("role") in _RESULTS and folded:
                made[-1] = (made[-1][0], place + 1)
            else:
                made.append((place, place + 1))
        return made

    def step(self, items: Sequence[Item], agent: str) -> Step:
        """A turn as a step. Raises FormatError if it is malformed."""
        return parse_chat([dict(item) for item in items], agent=agent).steps[0]

    def answered(self, step: Step, results: Sequence[Item]) -> Step:
        """An answer's step with what its calls returned. Raises FormatError if that is malformed."""
        return add_tool_results(step, results)

    def given(self, items: Sequence[Item]) -> bool:
        """Whether a turn is a user's or a system prompt."""
        return items[0].get("role") in GIVEN

    def result(self, item: Item) -> bool:
        """Whether an item is what a call returned."""
        return item.get("role") in _RESULTS

    def told(self, text: str) -> Item:
        """What the guard says, as an item."""
        return {"role": "user", "content": text}

    def answer(self, payload: Mapping[str, Any]) -> list[Item] | None:
        """The items of a whole answer; None if there is none: it was cut off, filtered, or has no choice."""
        choices = payload.get("choices")
        if not isinstance(choices, list) or len(choices) != 1:
            return None
        message = choices[0].get("message")
        if not isinstance(message, dict) or choices[0].get("finish_reason") not in _WHOLE:
            return None
        return [{"role": "assistant", **message}]

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """What an answer cost, if it says so."""
        used = payload.get("usage")
        if not isinstance(used, dict):
            return None
        return Usage(prompt_tokens=used.get("prompt_tokens"), completion_tokens=used.get("completion_tokens"))

    def repaired(self, payload: Mapping[str, Any], step: Step) -> dict[str, Any]:
        """The answer with the text and the calls of ``step``, which was made of it and repaired since."""
        first = payload["choices"][0]
        message = repaired_message(first["message"], step)
        return {**payload, "choices": [{**first, "message": message}]}

    def result_saying(self, item: Item, text: str) -> Item:
        """What a call returned, with another text."""
        return {**item, "content": text}

    def system(self, body: Mapping[str, Any]) -> str:
        """System prompts are messages."""
        del body
        return ""

    def tools(self, body: Mapping[str, Any]) -> list[Any]:
        """The tools that are offered."""
        return list(body.get("tools") or ())

    def without_tools(self, body: dict[str, Any], withheld: set[str]) -> dict[str, Any]:
        """As `without_tools` of this module."""
        return without_tools(body, withheld)

    def stream(self, payload: Mapping[str, Any], *, usage: bool) -> bytes:
        """A whole answer as a stream of chunks; ``usage`` says whether the client asked for its cost."""
        message, finish = payload["choices"][0]["message"], payload["choices"][0].get("finish_reason")
        head = {**{k: v for k, v in payload.items() if k in HEAD}, "object": "chat.completion.chunk"}
        said = {key: value for key, value in message.items() if value is not None}
        if said.get("tool_calls"):
            said["tool_calls"] = [{"index": i, **call} for i, call in enumerate(said["tool_calls"])]
        made = b""
        for delta, end in ((said, None), ({}, finish or "stop")):
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}
            made += event_bytes({**head, "choices": [choice]})
        if usage and payload.get("usage"):
            made += event_bytes({**head, "choices": [], "usage": payload["usage"]})
        return made + b"data: [DONE]\n\n"

    def unchanged(self, line: ConversationBranch, body: Mapping[str, Any], history: Sequence[Item]) -> bool:
        """Whether the request says just what the line says."""
        del body
        return line.places() == list(range(len(history)))

    def body(
        self, body: Mapping[str, Any], line: ConversationBranch, history: Sequence[Item], *, root: str | None
    ) -> dict[str, Any]:
        """The request with the line's view in place of the history."""
        del root
        return {**body, "messages": view(line.places(), history)}

    def final(self, body: Mapping[str, Any], payload: Mapping[str, Any] | None, text: str) -> dict[str, Any]:
        """An answer of the guard that ends the run; a refusal where the client expects JSON."""
        message: Item = {"role": "assistant", "content": text, "refusal": None}
        if wants_json(body):
            message = {"role": "assistant", "content": None, "refusal": text}
        made = {
            "id": f"chatcmpl-agentguard-{uuid.uuid4().hex[:12]}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.get("model", ""),
            **(payload or {}),
        }
        made["choices"] = [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
        return made


def with_cost(step: Step, usage: Usage | None, model: Any) -> Step:
    """A step of the agent with what it cost and who gave it."""
    if step.source is not Source.AGENT:
        return step
    return step.with_usage(usage, model if isinstance(model, str) else None)


def wants_json(body: Mapping[str, Any]) -> bool:
    """Whether the answer must be JSON as a whole."""
    where = body.get("text") or body.get("output_config") or {}  # Responses, Messages
    wanted = body.get("response_format") or (where.get("format") if isinstance(where, dict) else None) or {}
    return isinstance(wanted, dict) and wanted.get("type") in ("json_schema", "json_object")


def without_tools(body: dict[str, Any], withheld: set[str]) -> dict[str, Any]:
    """The request without the tools that were taken away; a choice that forced one of them is left open."""
    if not withheld or not body.get("tools"):
        return body
    kept = [tool for tool in body["tools"] if tool_name(tool) not in withheld]
    made = {**body, "tools": kept}
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and tool_name(choice) in withheld:
        made["tool_choice"] = "auto"
    if not kept:
        for name in ("tools", "tool_choice", "parallel_tool_calls"):
            made.pop(name, None)
    return made


def tool_name(tool: Mapping[str, Any]) -> str:
    """Name of a tool, or of the one that a choice forces."""
    inner = tool.get("function")
    return str((inner if isinstance(inner, dict) else tool).get("name", ""))


def _call_key(call: Mapping[str, Any]) -> list[Any]:
    function = call.get("function") or {}
    return [call.get("id"), function.get("name"), arguments_key(function.get("arguments"))]


def arguments_key(text: Any) -> Any:
    """Arguments as data, so that spaces and the order of keys do not count; the text if they are no JSON."""
    try:
        return orjson.loads(text)
    except ValueError:
        return text


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)


__all__ = [
    "GIVEN",
    "HEAD",
    "META",
    "Chat",
    "arguments_key",
    "tool_name",
    "wants_json",
    "with_cost",
    "without_tools",
]
