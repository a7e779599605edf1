"""Server-sent events, and the hold on a stream of chat chunks.

What is text flows on at once. From the first tool call or the finish on, events are held until the answer is
whole and the guard has judged it; then the held bytes follow as they came, or the model is asked again and
its answer's chunks follow in the same stream, as chunks of the same completion.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from agentguard.integrations._openai_chat import wants_json
from agentguard.integrations._openai_exchange import Decision, Exchange

_BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINES = re.compile(rb"\r\n|\n|\r")


class Events:
    """Cuts a stream of bytes into events, each with the blank line that ends it (WHATWG HTML, 9.2)."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the events that are whole now; joined with `rest` they are the bytes that were fed."""
        begin = max(0, len(self.rest) - 3)
        self.rest += data
        while (found := _BLANK.search(self.rest, begin)) is not None:
            event, self.rest, begin = self.rest[: found.end()], self.rest[found.end() :], 0
            yield event


def data_of(event: bytes) -> bytes | None:
    """The data of an event; None if it has none, such as a comment."""
    lines = [line[5:].removeprefix(b" ") for line in _LINES.split(event) if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def parsed(event: bytes) -> dict[str, Any] | None:
    """The data of an event as an object; None if it is none."""
    try:
        value = json.loads(data_of(event) or b"null")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def event_bytes(value: Mapping[str, Any], *, named: bool = False) -> bytes:
    """An event of an object; ``named`` puts its type in the event's name."""
    name = b"event: " + str(value["type"]).encode() + b"\n" if named else b""
    return name + b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


class Hold(Protocol):
    """Holds back what the client may not see yet; one stream, all the answers that are asked for in it."""

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the current answer; returns what the client may have."""
        ...

    def finish(self) -> tuple[bytes, Decision]:
        """The answer's bytes are over: judge it.

        Raises:
            EOFError: it is not whole.
        """
        ...

    def failed(self, message: str) -> bytes:
        """What the client gets when the model could not be asked again."""
        ...

    def release(self) -> bytes:
        """All that is held, without a verdict."""
        ...


class ChatHold:
    """As `Hold`, for chunks of a chat completion.

    Args:
        exchange: judges the answers.
        everything: hold text, too, so that the client sees nothing of a refused answer.
    """

    def __init__(self, exchange: Exchange, *, everything: bool = False) -> None:
        self._exchange = exchange
        self._everything = everything or wants_json(exchange.request)
        self._head: dict[str, Any] = {}
        self._role = False
        self._text = ""
        self._later = False
        self._broken: Exception | None = None
        self._held: list[bytes] = []
        self._next()

    def feed(self, data: bytes) -> bytes:
        """As `Hold.feed`."""
        return b"".join(self._event(event) for event in self._events.feed(data))

    def finish(self) -> tuple[bytes, Decision]:
        """As `Hold.finish`."""
        if self._broken is not None:
            raise self._broken
        if self._error:
            self._exchange.settle()
            return self.release(), "deliver"
        if not self._done:
            raise EOFError("the stream ended before [DONE]")
        seen = None
        if self._later and self._text:
            message = self._message()
            seen = [{**message, "content": self._text + self._held_text}]
        decision = self._exchange.answered(self._payload(), seen=seen)
        if decision == "again":
            return self._once_more(), decision
        if decision == "final":
            return self._final(), decision
        self._exchange.settle()
        return self.release(), decision

    def failed(self, message: str) -> bytes:
        """As `Hold.failed`."""
        return event_bytes({"error": {"message": message, "type": "agentguard_error", "code": "ask_again"}})

    def release(self) -> bytes:
        """As `Hold.release`."""
        held, self._held = self._held, []
        return b"".join(self._safely_shown(event) for event in held) + self._events.rest

    def _safely_shown(self, event: bytes) -> bytes:
        try:
            return self._shown(event)
        except (TypeError, AttributeError, ValueError) as error:
            self._broken = self._broken or error
            return event

    def _next(self) -> None:
        """Begin another answer."""
        self._events = Events()
        self._held = []
        self._holding, self._done, self._error = self._everything, False, False
        self._answer: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: dict[int, dict[str, Any]] = {}
        self._meta: dict[str, Any] = {}
        self._finish: str | None = None
        self._held_text = ""

    def _event(self, event: bytes) -> bytes:
        if (data_of(event) or b"").startswith(b"[DONE]"):
            self._done = self._finish is not None
        elif (chunk := parsed(event)) is not None:
            try:
                self._take(chunk)
            except (TypeError, AttributeError, ValueError) as error:  # a chunk of another shape
                self._broken, self._holding = error, True
        if self._holding:
            self._held.append(event)
            return b""
        return self._safely_shown(event)

    def _take(self, chunk: dict[str, Any]) -> None:
        self._error = self._error or bool(chunk.get("error"))
        self._meta |= {k: v for k, v in chunk.items() if k in _META and v is not None}
        if not self._head:
            self._head = {k: v for k, v in chunk.items() if k in _HEAD}
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if delta.get("tool_calls") or delta.get("function_call") or choice.get("finish_reason"):
                self._holding = True
            self._add(delta)
            self._finish = choice.get("finish_reason") or self._finish

    def _add(self, delta: Mapping[str, Any]) -> None:
        for name in ("content", "refusal", "reasoning_content", "reasoning"):
            if isinstance(delta.get(name), str):
                self._answer[name] = (self._answer.get(name) or "") + delta[name]
        said = delta.get("content")
        if isinstance(said, str):
            if self._holding:
                self._held_text += said
            else:
                self._text += said
        for call in delta.get("tool_calls") or ():
            self._add_call(call)

    def _add_call(self, call: Mapping[str, Any]) -> None:
        known = self._calls.setdefault(
            call.get("index", 0), {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        known["id"] = call.get("id") or known["id"]
        for name, text in (call.get("function") or {}).items():
            if isinstance(text, str):
                known["function"][name] = known["function"].get(name, "") + text

    def _message(self) -> dict[str, Any]:
        calls = [self._calls[index] for index in sorted(self._calls)]
        return {**self._answer, "tool_calls": calls} if calls else dict(self._answer)

    def _payload(self) -> dict[str, Any]:
        choice = {"index": 0, "message": self._message(), "finish_reason": self._finish}
        return {**self._meta, "choices": [choice]}

    def _shown(self, event: bytes) -> bytes:
        """The event as the client gets it: as it came, or as a chunk of the completion that was begun."""
        chunk = parsed(event)
        if chunk is None:
            return event
        choices = chunk.get("choices") or []
        if not self._later:
            self._role = self._role or any("role" in (c.get("delta") or {}) for c in choices)
            return event
        for choice in choices:
            delta = choice.get("delta") or {}
            if self._role:
                delta.pop("role", None)
            self._role = self._role or "role" in delta
        chunk |= {key: value for key, value in self._head.items() if key in chunk}
        empty = choices and not any(
            any((c.get("delta") or {}).values()) or c.get("finish_reason") for c in choices
        )
        return b"" if empty and not chunk.get("usage") else event_bytes(chunk)

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        if not self._role:
            delta, self._role = {"role": "assistant", **delta}, True
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event_bytes({**self._head, "choices": [choice]})

    def _once_more(self) -> bytes:
        self._later = True
        self._next()
        if not self._text or self._text.endswith("\n\n"):
            return b""
        self._text += "\n\n"
        return self._chunk({"content": "\n\n"})

    def _final(self) -> bytes:
        text = self._exchange.final or ""
        if wants_json(self._exchange.request):
            part = {"refusal": text}
        else:
            part = {"content": f"\n\n{text}" if self._text.strip() else text}
        seen = {"content": self._text + part.get("content", ""), "refusal": part.get("refusal")}
        self._exchange.settle([{"role": "assistant", **seen}])
        return self._chunk(part) + self._chunk({}, "stop") + b"data: [DONE]\n\n"


_META = frozenset({"id", "object", "created", "model", "usage", "system_fingerprint", "service_tier"})
_HEAD = _META - {"usage"}

Make = Callable[[Exchange], Hold]


def final_stream(payload: Mapping[str, Any]) -> bytes:
    """A whole chat completion as a stream of chunks."""
    message = payload["choices"][0]["message"]
    head = {**{k: v for k, v in payload.items() if k in _HEAD}, "object": "chat.completion.chunk"}
    said = {key: value for key, value in message.items() if value is not None}
    made = b""
    for delta, finish in ((said, None), ({}, "stop")):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        made += event_bytes({**head, "choices": [choice]})
    return made + b"data: [DONE]\n\n"
