"""One request and its answer, and the pieces of HTTP that every fault is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from agentguard.testing.fake_backend import api_formats
from agentguard.testing.fake_backend.expected import ApiName, FakeReply
from agentguard.testing.fake_backend.http import ServerConnection
from agentguard.testing.fake_backend.script import RecordedRequest

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream; charset=utf-8"
SOON_S: Final = 0.05
"""Seconds between tokens and what breaks them off: they are not read at once then, but handed on before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeExchange:
    """One request and its right answer.

    Attributes:
        wire: that it came on.
        seen: its record; tokens are counted there.
        asked: its body.
        reply: the right answer.
        other: the right answer to another request.
    """

    wire: ServerConnection
    seen: RecordedRequest
    asked: Mapping[str, Any]
    reply: FakeReply
    other: FakeReply

    @property
    def api(self) -> ApiName:
        """Of the request."""
        return self.seen.api

    @property
    def streams(self) -> bool:
        """Whether the answer is a stream."""
        return self.seen.stream and self.api in ("chat", "completions", "responses", "messages")

    def events(self, reply: FakeReply | None = None) -> api_formats.EventFormatter:
        """The right answer, or another, as events."""
        return api_formats.streamed(self.api, reply or self.reply, self.asked)

    def whole(self, reply: FakeReply | None = None) -> bytes:
        """The right answer, or another, as one object."""
        return api_formats.whole(self.api, reply or self.reply, self.asked)


async def begin(exchange: FakeExchange, tokens: int, *, framing: str = "chunked") -> list[bytes]:
    """The head and some tokens, or half of a body; returns what is missing, as it would be sent."""
    wire, body = exchange.wire, exchange.whole()
    if not exchange.streams:
        half = len(body) // 2
        if framing in ("close", "ended", "chunked"):
            closes = framing == "close"
            frame = "connection: close" if closes else "transfer-encoding: chunked"
            parts = [part if closes else chunk(part) for part in (body[:half], body[half:])]
            await wire.write(head(200, JSON, frame) + parts[0])
            return [parts[1], *([] if closes else [b"0\r\n\r\n"])]
        await wire.write(head(200, JSON, f"content-length: {len(body)}") + body[:half])
        return [body[half:]]
    events = exchange.events()
    rest = (*events.tokens[tokens:], *events.after, events.last)
    exchange.seen.tokens = min(tokens, len(events.tokens))
    parts = [*events.before, *events.tokens[:tokens]]
    if framing in ("close", "length"):
        frame = (
            "connection: close" if framing == "close" else f"content-length: {len(b''.join(rest)) + 10**6}"
        )
        await wire.write(head(200, EVENTS, frame) + b"".join(parts))
        return list(rest)
    await wire.write(head(200, EVENTS, "transfer-encoding: chunked") + chunks(parts))
    return [chunks(rest), b"0\r\n\r\n"]


def head(status: int, kind: str, *more: str) -> bytes:
    """The head of an answer."""
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Unknown"
    lines = (f"HTTP/1.1 {status} {phrase}", f"content-type: {kind}", "server: fault-backend", *more)
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """A chunk of a body (RFC 9112, 7.1); nothing for no data, as an empty chunk would end it."""
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


def chunks(parts: Sequence[bytes]) -> bytes:
    """Several of them."""
    return b"".join(map(chunk, parts))


def with_length(body: bytes, *, status: int = 200, kind: str = JSON, more: list[str] | None = None) -> bytes:
    """A whole answer with a Content-Length."""
    return head(status, kind, f"content-length: {len(body)}", *(more or [])) + body
