"""One request with its answer, and the HTTP building blocks of the faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from agentguard.testing.fake_backend import api_formats
from agentguard.testing.fake_backend.expected import ApiName, FakeReply
from agentguard.testing.fake_backend.http import ServerConnection
from agentguard.testing.fake_backend.script import RecordedRequest

JSON_TYPE: Final = "application/json"
EVENT_STREAM_TYPE: Final = "text/event-stream; charset=utf-8"
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
FLUSH_DELAY_S: Final = 0.05
"""Seconds between tokens and an interruption, so that the client reads the tokens separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeExchange:
    """One request and its right answer.

    Attributes:
        connection: connection of the request.
        record: record of the request; it counts the sent tokens.
        request_body: body of the request.
        reply: the right answer.
        foreign_reply: the right answer to another request.
    """

    connection: ServerConnection
    record: RecordedRequest
    request_body: Mapping[str, Any]
    reply: FakeReply
    foreign_reply: FakeReply

    @property
    def api(self) -> ApiName:
        """API of the request."""
        return self.record.api

    @property
    def is_streaming(self) -> bool:
        """Return whether the answer is a stream."""
        return self.record.stream and self.api in ("chat", "completions", "responses", "messages")

    def format_stream(self, reply: FakeReply | None = None) -> api_formats.StreamEvents:
        """Return the right answer, or ``reply``, as events."""
        return api_formats.format_stream(self.api, reply or self.reply, self.request_body)

    def format_body(self, reply: FakeReply | None = None) -> bytes:
        """Return the right answer, or ``reply``, as one object."""
        return api_formats.format_body(self.api, reply or self.reply, self.request_body)


async def send_partial(exchange: FakeExchange, tokens: int, *, framing: str = "chunked") -> list[bytes]:
    """Send the head and some tokens, or half of a body; return the rest in the form in which it is sent."""
    wire, body = exchange.connection, exchange.format_body()
    if not exchange.is_streaming:
        half = len(body) // 2
        if framing in ("close", "ended", "chunked"):
            closes = framing == "close"
            frame = "connection: close" if closes else "transfer-encoding: chunked"
            parts = [part if closes else format_chunk(part) for part in (body[:half], body[half:])]
            await wire.write(format_head(200, JSON_TYPE, frame) + parts[0])
            return [parts[1], *([] if closes else [b"0\r\n\r\n"])]
        await wire.write(format_head(200, JSON_TYPE, f"content-length: {len(body)}") + body[:half])
        return [body[half:]]
    events = exchange.format_stream()
    rest = (*events.tokens[tokens:], *events.after, events.last)
    exchange.record.tokens = min(tokens, len(events.tokens))
    parts = [*events.before, *events.tokens[:tokens]]
    if framing in ("close", "length"):
        frame = (
            "connection: close" if framing == "close" else f"content-length: {len(b''.join(rest)) + 10**6}"
        )
        await wire.write(format_head(200, EVENT_STREAM_TYPE, frame) + b"".join(parts))
        return list(rest)
    await wire.write(format_head(200, EVENT_STREAM_TYPE, "transfer-encoding: chunked") + format_chunks(parts))
    return [format_chunks(rest), b"0\r\n\r\n"]


def format_head(status: int, content_type: str, *extra_headers: str) -> bytes:
    """Return the head of an answer."""
    phrase = _PHRASES.get(status, "Unknown")
    lines = (
        f"HTTP/1.1 {status} {phrase}",
        f"content-type: {content_type}",
        "server: fault-backend",
        *extra_headers,
    )
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def format_chunk(data: bytes) -> bytes:
    """Return a chunk of a body (RFC 9112, 7.1); nothing for no data, as an empty chunk ends the body."""
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


def format_chunks(parts: Sequence[bytes]) -> bytes:
    """Return several chunks."""
    return b"".join(map(format_chunk, parts))


def format_response(
    body: bytes, *, status: int = 200, content_type: str = JSON_TYPE, extra_headers: list[str] | None = None
) -> bytes:
    """Return a complete answer with a Content-Length."""
    return format_head(status, content_type, f"content-length: {len(body)}", *(extra_headers or [])) + body
