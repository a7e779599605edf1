"""Makes the rest of an answer look like the part before it: one id, one role, one usage, no space twice."""

from __future__ import annotations

from typing import Any

import orjson

from agentguard.backends.stream_resumption.partial_response import PartialResponse
from agentguard.errors import BackendError
from agentguard.model_api.sse import data_of, events


class StreamSplicer:
    """Changes the events of a continuation.

    Usage is told as if one answer had been made: what was asked again as a prompt moves to the completion, by
    the number of chunks, at least one token each; the sum is what the server counted.
    """

    def __init__(self, before: PartialResponse) -> None:
        self._before, self._over = before, before.over

    def change(self, chunk: bytes) -> bytes:
        """Whole events as the client is to see them; nothing, if they have nothing new.

        Raises:
            BackendError: an event that can't be joined.
        """
        try:
            return b"".join(self._event(event) for event in events(chunk))
        except (ValueError, TypeError, AttributeError):
            raise BackendError("the rest of the answer can't be joined to it", stage="committed") from None

    def _event(self, event: bytes) -> bytes:
        data = data_of(event)
        if data is None or data == b"[DONE]":
            return event
        chunk = orjson.loads(data)
        chunk.update(self._before.head)
        kept = [choice for choice in chunk.get("choices") or () if self._choice(choice)]
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._count(usage)
        if chunk.get("choices") and not kept and not usage:
            return b""
        chunk["choices"] = kept
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    def _choice(self, choice: dict[str, Any]) -> bool:
        """Change a choice; whether anything is left of it."""
        chat = self._before.api == "chat"
        holder: Any = choice.get("delta") if chat else choice
        if not isinstance(holder, dict):
            return True
        if chat:
            holder.pop("role", None)
        field = "content" if chat else "text"
        text = holder.get(field)
        if isinstance(text, str):
            holder[field] = self._without_over(text)
        says = any(holder.values()) if chat else bool(holder.get("text"))
        return says or bool(choice.get("finish_reason"))

    def _without_over(self, text: str) -> str:
        """Text without the spaces at its beginning that the client has."""
        at = 0
        while self._over and at < len(text):
            if text[at] != self._over[0]:
                self._over = ""
                break
            self._over, at = self._over[1:], at + 1
        return text[at:]

    def _count(self, usage: dict[str, Any]) -> None:
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if isinstance(prompt, int) and isinstance(completion, int) and self._before.asked:
            moved = min(self._before.tokens, prompt)
            usage["prompt_tokens"], usage["completion_tokens"] = prompt - moved, completion + moved
