"""The hold on a stream of chat chunks: what follows a refused answer are chunks of the same completion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentguard.intercept.adapters.openai_chat import HEAD, META, wants_json
from agentguard.intercept.conversation import Item
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.stream_buffer import HeldStream
from agentguard.intercept.types import CandidateRequest, How
from agentguard.model_api.sse import data_of, event_bytes, parsed

_BESIDE = frozenset({"refusal", "reasoning_content", "reasoning"})
"""Text of an answer beside its content."""


@dataclass(slots=True)
class _Call:
    """A call as far as its pieces have come."""

    id: str = ""
    function: dict[str, list[str]] = field(default_factory=lambda: {"name": [], "arguments": []})

    def whole(self) -> dict[str, Any]:
        made = {name: "".join(pieces) for name, pieces in self.function.items()}
        return {"id": self.id, "type": "function", "function": made}


class ChatHold(HeldStream):
    """The hold on chunks of a chat completion."""

    def __init__(self, exchange: GuardedRequest, wire: CandidateRequest, *, everything: bool = False) -> None:
        self._role = False
        self._earlier = ""
        super().__init__(exchange, wire, everything=everything)

    def failed(self, message: str) -> bytes:
        """As `Hold.failed`."""
        return event_bytes({"error": {"message": message, "type": "agentguard_error", "code": "ask_again"}})

    def _next(self) -> None:
        super()._next()
        self._done = False
        self._content: list[str] = []
        self._flowed = 0 if self._everything else None
        self._said: dict[str, list[str]] = {}
        self._calls: dict[int, _Call] = {}
        self._meta: dict[str, Any] = {}
        self._finish: str | None = None

    @property
    def _text(self) -> str:
        """What the client has seen, of all answers."""
        return self._earlier + "".join(self._content[: self._flowed])

    @property
    def _held_text(self) -> str:
        """What it has not seen of this one."""
        return "" if self._flowed is None else "".join(self._content[self._flowed :])

    def _read_other(self, event: bytes) -> None:
        if (data_of(event) or b"").startswith(b"[DONE]"):
            self._done = self._finish is not None

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
            self._begin_anew()
        usage = (self._exchange.request.get("stream_options") or {}).get("include_usage")
        return data + self.feed(self._exchange.dialect.stream(payload, usage=bool(usage))) + self.release()

    def _apart(self) -> str:
        return self._text if self._text.endswith("\n\n") else f"{self._text}\n\n"

    def _read(self, event: bytes, value: dict[str, Any]) -> None:
        del event
        self._error = self._error or bool(value.get("error"))
        meta = self._meta
        for name, said in value.items():
            if said is not None and name in META:
                meta[name] = said
        if not self._head:
            self._head = {k: v for k, v in value.items() if k in HEAD}
        for choice in value.get("choices") or ():
            delta, finish = choice.get("delta") or {}, choice.get("finish_reason")
            if finish or delta.get("tool_calls") or delta.get("function_call"):
                self._finish, self._holding = finish or self._finish, True
                if self._flowed is None:
                    self._flowed = len(self._content)
            self._add(delta)

    def _add(self, delta: Mapping[str, Any]) -> None:
        for name, said in delta.items():
            if name == "content":
                if isinstance(said, str):
                    self._content.append(said)
            elif name in _BESIDE and isinstance(said, str):
                self._said.setdefault(name, []).append(said)
            elif name == "tool_calls":
                for call in said or ():
                    self._add_call(call)

    def _add_call(self, call: Mapping[str, Any]) -> None:
        index = call.get("index", 0)
        if (known := self._calls.get(index)) is None:
            known = self._calls[index] = _Call()
        known.id = call.get("id") or known.id
        for name, text in (call.get("function") or {}).items():
            if isinstance(text, str):
                known.function.setdefault(name, []).append(text)

    def _message(self) -> dict[str, Any]:
        said: dict[str, Any] = {"content": "".join(self._content) if self._content else None}
        said |= {name: "".join(pieces) for name, pieces in self._said.items()}
        if self._calls:
            said["tool_calls"] = [self._calls[index].whole() for index in sorted(self._calls)]
        return {"role": "assistant", **said}

    def _payload(self) -> dict[str, Any]:
        if not self._done:
            raise EOFError("the stream ended before [DONE]")
        choice = {"index": 0, "message": self._message(), "finish_reason": self._finish}
        return {**self._meta, "choices": [choice]}

    def _shown(self, event: bytes, value: dict[str, Any]) -> bytes:
        if not self._later:
            if not self._role:
                choices = value.get("choices") or ()
                self._role = any("role" in (choice.get("delta") or {}) for choice in choices)
            return event
        return self._rewritten(parsed(event) or value)

    def _rewritten(self, chunk: dict[str, Any]) -> bytes:
        """A chunk of another answer as one of the answer that was begun."""
        choices = chunk.get("choices") or []
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

    def _begin_anew(self) -> None:
        """Another answer follows."""
        self._later, self._earlier = True, self._text
        self._next()

    def _once_more(self) -> bytes:
        self._begin_anew()
        if not self._text or self._text == self._apart():
            return b""
        self._earlier = self._apart()
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
