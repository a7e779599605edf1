"""OpenAI's responses: streams end with ``response.completed``, ``.incomplete`` or ``.failed``."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from agentguard.model_api.decoding import DONE, Decoded, payloads, refusal, told
from agentguard.model_api.typed_events import EventHead, Typed, head

_SAYS: Final = re.compile(rb'"delta"\s*:\s*"[^"]')
_QUIET: Final = frozenset(
    {
        "response.created",
        "response.in_progress",
        "response.queued",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_summary_part.added",
    }
)
_SERVERS: Final = frozenset({"server_error", "rate_limit_exceeded"})


class _Error(msgspec.Struct):
    code: str = ""


class _Inner(msgspec.Struct):
    error: _Error | None = None
    output: list[msgspec.Raw] | None = None


class _Response(msgspec.Struct):
    output: list[msgspec.Raw]
    status: str = "completed"
    error: Any = None


_whole, _inner = Decoded(_Response), Decoded(_Inner)


class ResponsesFormat(Typed):
    """See `agentguard.model_api.Api`."""

    def __init__(self) -> None:
        ends = frozenset({"response.completed", "response.incomplete", "response.failed"})
        super().__init__("responses", prefix=("response.", "keepalive"), last=ends)

    def carries(self, chunk: bytes) -> bool:
        """Whether there is part of the output, or of its end; what only opens a part has none."""
        return _SAYS.search(chunk) is not None or any(_carries(data) for data in payloads(chunk))

    def failed(self, found: EventHead) -> str | None:
        """A response that failed at the server's end; one that was refused is the caller's to see."""
        if found.type != "response.failed":
            return None
        inner = _inner(bytes(found.response))
        if isinstance(inner, str) or inner.error is None or inner.error.code not in _SERVERS:
            return None
        return f"the endpoint answered with an error ({inner.error.code})"

    def wrong(self, body: bytes, asked: bytes = b"") -> str | None:
        """An error, no output, or not this API's JSON; a response that is still queued has none yet."""
        del asked
        found = _whole(body)
        if isinstance(found, str):
            return refusal(body) or f"it is no answer of the responses API: {found}"
        if found.status == "failed" and found.error is not None:
            code = found.error.get("code") if isinstance(found.error, dict) else None
            if isinstance(code, str) and code in _SERVERS:
                return told(found.error)
        empty = found.status == "completed" and not found.output
        return "it is no answer of the responses API: its output is empty" if empty else None


def _carries(data: bytes) -> bool:
    if data == DONE:
        return False
    found = head(data)
    if isinstance(found, str) or not found.type.startswith("response."):
        return False
    if found.type == "response.completed":  # with no output, and after none, it is no answer
        inner = _inner(bytes(found.response))
        return isinstance(inner, str) or inner.output != []
    return found.type not in _QUIET and not found.type.endswith(".delta")


RESPONSES: Final = ResponsesFormat()
