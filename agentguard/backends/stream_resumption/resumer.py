"""Stream resumption: another replica continues an interrupted stream, and the client sees one stream.

The pool appends the received text to the request and sends it to a resumable replica. For chat, the text is a
final assistant message with vLLM's ``continue_final_message``; for completions, it follows the prompt. The
continuation gets the first response's ID. A comment in the stream and the `notes` report the resumption.

Responses that cannot be joined are not resumed: partial tool calls, reasoning, several choices, log
probabilities, constrained output. The text continues as the model would from that text, which may differ from
the lost rest: a token may be split, and a ``stop`` sequence across the seam is not detected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

import orjson

from agentguard.backends.base import BackendRequest, Headers, StreamingResponse
from agentguard.backends.stream_resumption.partial_response import (
    NotResumable,
    PartialResponse,
    build_resume_request,
    parse_partial_response,
)
from agentguard.errors import BackendError, DeadlineExceeded, ResilienceError
from agentguard.model_api.sse import extract_data, split_events
from agentguard.resilience.stream_timeout import close_response


class StreamSplicer:
    """Rewrites the events of a continuation.

    Usage is reported as for one response. The repeated text moves from prompt to completion tokens, by the
    number of chunks, each at least one token. The sum equals the server's count.
    """

    def __init__(self, partial: PartialResponse) -> None:
        self._partial, self._known_whitespace = partial, partial.trailing_whitespace

    def rewrite(self, chunk: bytes) -> bytes:
        """Rewrite complete events for the client; return no bytes if they contain nothing new.

        Raises:
            BackendError: an event cannot be joined.
        """
        try:
            return b"".join(self._rewrite_event(event) for event in split_events(chunk))
        except (ValueError, TypeError, AttributeError):
            raise BackendError("the rest cannot be appended to the response", stage="committed") from None

    def _rewrite_event(self, event: bytes) -> bytes:
        data = extract_data(event)
        if data is None or data == b"[DONE]":
            return event
        chunk = orjson.loads(data)
        chunk.update(self._partial.common_fields)
        choices = [choice for choice in chunk.get("choices") or () if self._rewrite_choice(choice)]
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._merge_usage(usage)
        if chunk.get("choices") and not choices and not usage:
            return b""
        chunk["choices"] = choices
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    def _rewrite_choice(self, choice: dict[str, Any]) -> bool:
        """Rewrite a choice; return whether any content remains."""
        chat = self._partial.api == "chat"
        holder: Any = choice.get("delta") if chat else choice
        if not isinstance(holder, dict):
            return True
        if chat:
            holder.pop("role", None)
        field = "content" if chat else "text"
        text = holder.get(field)
        if isinstance(text, str):
            holder[field] = self._strip_known_whitespace(text)
        says = any(holder.values()) if chat else bool(holder.get("text"))
        return says or bool(choice.get("finish_reason"))

    def _strip_known_whitespace(self, text: str) -> str:
        """Remove leading spaces that the client has already received."""
        position = 0
        while self._known_whitespace and position < len(text):
            if text[position] != self._known_whitespace[0]:
                self._known_whitespace = ""
                break
            self._known_whitespace, position = self._known_whitespace[1:], position + 1
        return text[position:]

    def _merge_usage(self, usage: dict[str, Any]) -> None:
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if isinstance(prompt, int) and isinstance(completion, int) and self._partial.resume_text:
            moved_tokens = min(self._partial.token_count, prompt)
            usage["prompt_tokens"], usage["completion_tokens"] = (
                prompt - moved_tokens,
                completion + moved_tokens,
            )


RESUMABLE_APIS = frozenset({"chat", "completions"})

MAX_RESUMABLE_BYTES = 4 << 20
"""Maximum forwarded size of a resumable stream."""


class ResumeCallback(Protocol):
    """Function that requests the rest of a response."""

    async def __call__(self, body: bytes, *, prefixed: bool, why: str) -> Any:
        """Send the body; if ``prefixed``, only to a resumable replica. Raises ResilienceError."""
        ...


class ResumableStream:
    """Stream that another replica resumes after an interruption; see `StreamingResponse`.

    Forwarded chunks are stored as received, and parsed only for a resumption.
    """

    def __init__(
        self, stream: StreamingResponse, request: BackendRequest, resume: ResumeCallback, max_resumptions: int
    ) -> None:
        self.status: int = stream.status
        self.headers: Headers = stream.headers
        self.replica: str = stream.replica
        self.notes: tuple[tuple[str, str], ...] = stream.notes
        self._stream, self._request, self._resume, self._resumptions_left = (
            stream,
            request,
            resume,
            max_resumptions,
        )
        self._forwarded_chunks: list[bytes] = []
        self._size = 0
        self._rewrite: Callable[[bytes], bytes] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while True:
            try:
                chunk = await self._stream.__anext__()
                if self._rewrite is not None:
                    chunk = self._rewrite(chunk)
            except ResilienceError as error:
                chunk = await self._resume_after(error)
            if chunk:
                self._remember_chunk(chunk)
                return chunk

    async def aclose(self) -> None:
        """Close the current source."""
        await self._stream.aclose()

    def _remember_chunk(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size <= MAX_RESUMABLE_BYTES:
            self._forwarded_chunks.append(chunk)
        else:
            self._forwarded_chunks.clear()

    async def _resume_after(self, error: ResilienceError) -> bytes:
        """Resume the stream and return its first chunk; raise the original error if that fails."""
        # the source has ended already, unless its chunk could not be joined
        await close_response(self._stream)
        if (
            not self._resumptions_left
            or self._size > MAX_RESUMABLE_BYTES
            or isinstance(error, DeadlineExceeded)
        ):
            raise error
        self._resumptions_left -= 1
        try:
            before = parse_partial_response(
                self._request.api.name if self._request.api else "", b"".join(self._forwarded_chunks)
            )
            body, splice = build_resume_request(self._request, before), StreamSplicer(before)
            stream = await self._resume(body, prefixed=bool(before.resume_text), why=error.code)
        except (NotResumable, ResilienceError):
            raise error from None
        if not hasattr(stream, "__anext__"):
            raise error
        self._stream, self._rewrite = stream, splice.rewrite
        self.notes = (*self.notes, ("continued", str(stream.replica)))
        return b": agentguard: continued by %b\n\n" % str(stream.replica).encode("ascii", "replace")
