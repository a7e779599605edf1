"""The hold on a stream of chat chunks: what follows a refused answer are chunks of the same completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentguard.integrations.exchange.chat import HEAD, META, wants_json
from agentguard.integrations.exchange.conversation import Item
from agentguard.integrations.exchange.exchange import Exchange
from agentguard.integrations.exchange.hold import Hold
from agentguard.integrations.exchange.sse import data_of, event_bytes
from agentguard.integrations.exchange.wire import How, Wire


class ChatHold(Hold):
    """The hold on chunks of a chat completion."""

    def __init__(self, exchange: Exchange, wire: Wire, *, everything: bool = False) -> None:
        self._role = False
        self._text = ""
        super().__init__(exchange, wire, everything=everything)

    def failed(self, message: str) -> bytes:
        """As `Hold.failed`."""
        return event_bytes({"error": {"message": message, "type": "agentguard_error", "code": "ask_again"}})

    def _next(self) -> None:
        super()._next()
        self._done = False
        self._answer: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: dict[int, dict[str, Any]] = {}
        self._meta: dict[str, Any] = {}
        self._finish: str | None = None
        self._held_text = ""

    def _read(self, event: bytes) -> None:
        if (data_of(event) or b"").startswith(b"[DONE]"):
            self._done = self._finish is not None
        elif (chunk := self._value(event)) is not None:
            self._take(chunk)

    def _seen(self, answer: list[Item], how: How) -> tuple[list[Item] | None, str]:
        message = answer[0] if answer else {}
        if how == "other" and self._text:
            return [{**message, "content": self._apart() + (message.get("content") or "")}], ""
        if how != "other" and self._later and self._text:
            return [{**message, "content": self._text + self._held_text}], ""
        return None, ""

    def _instead(self, payload: dict[str, Any], how: How) -> bytes:
        data = b""
        if how == "other":
            data = self._once_more()
        else:  # its text has been shown; what was held of it is said again
            choice = payload["choices"][0]
            message = {**choice["message"], "content": self._held_text or None}
            payload = {**payload, "choices": [{**choice, "message": message}]}
            self._later = True
            self._next()
        usage = (self._exchange.request.get("stream_options") or {}).get("include_usage")
        return data + self.feed(self._exchange.dialect.stream(payload, usage=bool(usage))) + self.release()

    def _apart(self) -> str:
        return self._text if self._text.endswith("\n\n") else f"{self._text}\n\n"

    def _take(self, chunk: dict[str, Any]) -> None:
        self._error = self._error or bool(chunk.get("error"))
        self._meta |= {k: v for k, v in chunk.items() if k in META and v is not None}
        if not self._head:
            self._head = {k: v for k, v in chunk.items() if k in HEAD}
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
        if not self._done:
            raise EOFError("the stream ended before [DONE]")
        choice = {"index": 0, "message": self._message(), "finish_reason": self._finish}
        return {**self._meta, "choices": [choice]}

    def _shown(self, event: bytes) -> bytes:
        chunk = self._value(event)
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
        if not self._text or self._text == self._apart():
            return b""
        self._text = self._apart()
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
