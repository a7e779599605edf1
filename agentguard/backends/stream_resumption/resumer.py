"""A streamed answer that breaks off after its first token is continued by a replica that can, as one stream.

What the client has is put at the end of the request, and the replica asked to go on from there: for chat as a
last message of the assistant with vLLM's ``continue_final_message``, for completions behind the prompt. What
comes then is given the first answer's id, so that the client sees one stream. A comment in it says so, and
`notes` does for the record.

Nothing is continued that could not be joined: begun tool calls, reasoning, several choices, log
probabilities, answers under a grammar. The text goes on as the model would from that text, which is not
always what it would have said: a token may be cut in two, and a ``stop`` across the seam is not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

from agentguard.backends.base import BackendRequest, Headers, StreamingResponse
from agentguard.backends.stream_resumption.partial_response import (
    NotResumable,
    build_resume_request,
    parse_partial_response,
)
from agentguard.backends.stream_resumption.splicer import StreamSplicer
from agentguard.errors import DeadlineExceeded, ResilienceError
from agentguard.resilience.stream_timeout import discard

CONTINUED_APIS = frozenset({"chat", "completions"})

KEPT_BYTES = 4 << 20
"""An answer of which more than this was shown is not continued."""


class ResumeCallback(Protocol):
    """Asks for the rest of an answer."""

    async def __call__(self, body: bytes, *, prefixed: bool, why: str) -> Any:
        """Send the body; ``prefixed`` only to a replica that continues. Raises ResilienceError."""
        ...


class ResumableStream:
    """A stream that goes on elsewhere when it breaks off; see `Streamed`.

    What was shown is kept as it is, and read only if it must be continued.
    """

    def __init__(
        self, stream: StreamingResponse, request: BackendRequest, go_on: ResumeCallback, most: int
    ) -> None:
        self.status: int = stream.status
        self.headers: Headers = stream.headers
        self.replica: str = stream.replica
        self.notes: tuple[tuple[str, str], ...] = stream.notes
        self._stream, self._request, self._go_on, self._left = stream, request, go_on, most
        self._shown: list[bytes] = []
        self._size = 0
        self._change: Callable[[bytes], bytes] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while True:
            try:
                chunk = await self._stream.__anext__()
                if self._change is not None:
                    chunk = self._change(chunk)
            except ResilienceError as error:
                chunk = await self._continue(error)
            if chunk:
                self._keep(chunk)
                return chunk

    async def aclose(self) -> None:
        """Close what it reads from now."""
        await self._stream.aclose()

    def _keep(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size <= KEPT_BYTES:
            self._shown.append(chunk)
        else:
            self._shown.clear()

    async def _continue(self, error: ResilienceError) -> bytes:
        """The first of what goes on; raises the error that broke the stream off if nothing does."""
        await discard(self._stream)  # over by now, unless what it brought could not be joined
        if not self._left or self._size > KEPT_BYTES or isinstance(error, DeadlineExceeded):
            raise error
        self._left -= 1
        try:
            before = parse_partial_response(
                self._request.api.name if self._request.api else "", b"".join(self._shown)
            )
            body, splice = build_resume_request(self._request, before), StreamSplicer(before)
            stream = await self._go_on(body, prefixed=bool(before.asked), why=error.code)
        except (NotResumable, ResilienceError):
            raise error from None
        if not hasattr(stream, "__anext__"):
            raise error
        self._stream, self._change = stream, splice.change
        self.notes = (*self.notes, ("continued", str(stream.replica)))
        return b": agentguard: continued by %b\n\n" % str(stream.replica).encode("ascii", "replace")
