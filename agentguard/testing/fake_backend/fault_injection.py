"""Injection of faults: bytes, pauses and resets on the connection of a request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from agentguard.testing.fake_backend import api_formats
from agentguard.testing.fake_backend.expected_response import ApiName, FakeResponse
from agentguard.testing.fake_backend.faults import (
    Corrupt,
    ErrorEvent,
    Hang,
    HeartbeatOnly,
    Huge,
    InjectedFault,
    InvalidResponse,
    Ok,
    Raw,
    Reset,
    Stall,
    StatusFault,
    Trickle,
    Truncate,
)
from agentguard.testing.fake_backend.http_connection import (
    EVENT_STREAM_TYPE,
    JSON_TYPE,
    ServerConnection,
    format_chunk,
    format_chunks,
    format_head,
    format_response,
)
from agentguard.testing.fake_backend.script import RecordedRequest

_FLUSH_DELAY_S: Final = 0.05
"""Seconds between tokens and an interruption, so that the client reads the tokens separately."""
_HTML_ERROR_PAGE: Final = b"<!doctype html><title>502</title><h1>The gateway between is not well</h1>"
_CHUNK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeExchange:
    """One request and its expected response.

    Attributes:
        connection: connection of the request.
        record: record of the request; it counts the sent tokens.
        request_body: body of the request.
        reply: the expected response.
        foreign_reply: the expected response to another request.
    """

    connection: ServerConnection
    record: RecordedRequest
    request_body: Mapping[str, Any]
    reply: FakeResponse
    foreign_reply: FakeResponse

    @property
    def api(self) -> ApiName:
        """API of the request."""
        return self.record.api

    @property
    def is_streaming(self) -> bool:
        """Return whether the response is a stream."""
        return self.record.stream and self.api in ("chat", "completions", "responses", "messages")

    def format_stream(self, reply: FakeResponse | None = None) -> api_formats.StreamEvents:
        """Return the expected response, or ``reply``, as events."""
        return api_formats.format_stream(self.api, reply or self.reply, self.request_body)

    def format_body(self, reply: FakeResponse | None = None) -> bytes:
        """Return the expected response, or ``reply``, as one object."""
        return api_formats.format_body(self.api, reply or self.reply, self.request_body)


async def _send_invalid_response(exchange: FakeExchange, fault: InvalidResponse) -> bool:
    """Send status 200 with an invalid response."""
    connection, body = exchange.connection, exchange.format_body()
    if exchange.is_streaming and fault.kind not in ("html", "nothing"):
        if fault.kind == "empty":
            empty = api_formats.format_empty_stream(exchange.api, exchange.reply)
            await connection.write(
                format_head(200, EVENT_STREAM_TYPE, "transfer-encoding: chunked")
                + format_chunks(empty)
                + b"0\r\n\r\n"
            )
            return True
        await _send_partial(exchange, fault.tokens)
        await connection.sleep(_FLUSH_DELAY_S if fault.tokens else 0)
        invalid_event = {
            "json": b'data: {"id": "x", "choices": [{"del\n\n',
            "event": b"this is no event at all\n\n",
            "utf8": b'data: {"id": "\xff\xfe"}\n\n',
            "list": b"data: [1, 2, 3]\n\n",
        }[fault.kind]
        end = exchange.format_stream()
        rest = b"".join((*end.tokens[fault.tokens :], *end.after, end.last))
        await connection.write(format_chunk(invalid_event) + format_chunk(rest) + b"0\r\n\r\n")
        return True
    bodies = {
        "json": body[: len(body) * 2 // 3],
        "event": b"data: " + body + b"\n\n",
        "html": _HTML_ERROR_PAGE,
        "empty": api_formats.format_empty_body(exchange.api, exchange.reply, exchange.request_body),
        "nothing": b"",
        "utf8": body.replace(b'"id": "', b'"id": "\xff\xfe', 1),
        "list": b"[1, 2, 3]",
    }
    kind = "text/html" if fault.kind == "html" else EVENT_STREAM_TYPE if exchange.is_streaming else JSON_TYPE
    await connection.write(format_response(bodies[fault.kind], content_type=kind))
    return True


async def _send_slowly(exchange: FakeExchange, fault: Trickle) -> bool:
    """Send the expected response a few bytes at a time."""
    connection, body = exchange.connection, exchange.format_body()
    events = exchange.format_stream() if exchange.is_streaming else None
    if events is not None:
        body = b"".join((*events.before, *events.tokens, *events.after, events.last))
    top = format_head(200, EVENT_STREAM_TYPE if events else JSON_TYPE, f"content-length: {len(body)}")
    if fault.part == "body":
        await connection.write(top)
        top = b""
    data = top + body
    for first in range(0, len(data), fault.size):
        await connection.write(data[first : first + fault.size])
        await connection.sleep(fault.interval_s)
    return True


async def _send_oversized(exchange: FakeExchange, fault: Huge) -> bool:
    """Send an oversized head, body or event, as fast as the client reads."""
    connection = exchange.connection
    if fault.part == "head":
        line = b"x-filler: " + b"a" * 1000 + b"\r\n"
        await connection.write(format_head(200, JSON_TYPE, "content-length: 2")[:-2])
        for _ in range(fault.size // len(line)):
            await connection.sleep(0)
            await connection.write(line)
        await connection.write(b"\r\n{}")
        return True
    filled = replace(exchange.reply, text="@@", tool="")
    one = exchange.format_stream(filled).tokens[0] if exchange.is_streaming else exchange.format_body(filled)
    before, after = one.split(b"@@", 1) if b"@@" in one else (one[:-1] + b', "filler": "', b'"}')
    kind = EVENT_STREAM_TYPE if exchange.is_streaming else JSON_TYPE
    await connection.write(format_head(200, kind, "transfer-encoding: chunked"))
    if not exchange.is_streaming or fault.part == "event":
        await _send_filler(connection, before, fault.size, after)
    else:
        events = exchange.format_stream()
        await connection.write(format_chunks(events.before))
        several = one * (_CHUNK_BYTES // len(one))
        for _ in range(fault.size // len(several) + 1):
            await connection.sleep(0)
            await connection.write(format_chunk(several))
    end = exchange.format_stream() if exchange.is_streaming else None
    await connection.write((format_chunks((*end.after, end.last)) if end else b"") + b"0\r\n\r\n")
    return True


async def _send_filler(connection: ServerConnection, before: bytes, size: int, after: bytes) -> None:
    await connection.write(format_chunk(before))
    for _ in range(size // _CHUNK_BYTES):
        await connection.sleep(0)
        await connection.write(format_chunk(b"a" * _CHUNK_BYTES))
    await connection.write(format_chunk(b"a" * (size % _CHUNK_BYTES)))
    await connection.write(format_chunk(after))


async def inject_fault(fault: InjectedFault, exchange: FakeExchange) -> bool:
    """Respond as the fault requires; return whether the connection accepts another request.

    Raises:
        ClientGone: the client closed or reset the connection.
        TypeError: the fault does not apply to a request (`Refuse`).
    """
    connection = exchange.connection
    if fault.delay_s:
        await connection.sleep(fault.delay_s)
    match fault:
        case Ok():
            return await _send_response(exchange, exchange.reply, fault)
        case Corrupt(kind=kind):
            wrong_reply = (
                exchange.reply.with_changed_digits() if kind == "flipped" else exchange.foreign_reply
            )
            return await _send_response(exchange, wrong_reply, Ok())
        case StatusFault():
            return await _send_status(exchange, fault)
        case InvalidResponse():
            return await _send_invalid_response(exchange, fault)
        case Trickle():
            return await _send_slowly(exchange, fault)
        case Huge():
            return await _send_oversized(exchange, fault)
        case Raw(data=data, connection_action=then):
            await connection.write(data)
            return await _finish_connection(connection, then)
    return await _apply_partial_fault(fault, exchange)


async def _apply_partial_fault(fault: InjectedFault, exchange: FakeExchange) -> bool:
    """Apply a fault that begins with the expected response and then deviates."""
    connection = exchange.connection
    match fault:
        case Hang() | Reset(tokens=None):
            return await _finish_connection(connection, "hold" if isinstance(fault, Hang) else "reset")
        case Reset(tokens=tokens):
            await _send_partial(exchange, tokens or 0)
            await connection.sleep(
                _FLUSH_DELAY_S
            )  # an immediate reset discards data that the client has not read
            return await _finish_connection(connection, "reset")
        case Stall(tokens=tokens, duration_s=seconds):
            rest = await _send_partial(exchange, tokens)
            await connection.sleep(seconds)
            for piece in rest:
                await connection.write(piece)
            return True
        case Truncate(tokens=tokens, framing=framing):
            await _send_partial(exchange, tokens, framing=framing)
            if framing == "ended":
                await connection.write(b"0\r\n\r\n")
            return framing == "ended"
        case HeartbeatOnly():
            return await _send_heartbeats(exchange, fault)
        case ErrorEvent(tokens=tokens, include_done=done):
            if not exchange.is_streaming:  # an error with status 200
                await connection.write(format_response(api_formats.format_error_body(exchange.api, 500)))
                return True
            await _send_partial(exchange, tokens)
            await connection.sleep(_FLUSH_DELAY_S if tokens else 0)
            end = exchange.format_stream().last if done else b""
            await connection.write(
                format_chunk(api_formats.format_error_event(exchange.api) + end) + b"0\r\n\r\n"
            )
            return True
    raise TypeError(f"{type(fault).__name__} is not a fault of a request")


async def _send_response(exchange: FakeExchange, reply: FakeResponse, timing: Ok) -> bool:
    """Send a complete response."""
    connection = exchange.connection
    if not exchange.is_streaming:
        if timing.first_token_delay_s:
            await connection.sleep(timing.first_token_delay_s)
        await connection.write(format_response(exchange.format_body(reply)))
        return True
    events = exchange.format_stream(reply)
    await connection.write(
        format_head(200, EVENT_STREAM_TYPE, "transfer-encoding: chunked") + format_chunks(events.before)
    )
    async for token in _pace_tokens(exchange, events, timing):
        await connection.write(token)
        exchange.record.tokens += 1
    await connection.write(format_chunks((*events.after, events.last)) + b"0\r\n\r\n")
    return True


async def _pace_tokens(
    exchange: FakeExchange, events: api_formats.StreamEvents, timing: Ok
) -> AsyncIterator[bytes]:
    for n, token in enumerate(events.tokens):
        wait = timing.token_interval_s if n else timing.first_token_delay_s
        if wait:
            await exchange.connection.sleep(wait)
        yield format_chunk(token)


async def _send_heartbeats(exchange: FakeExchange, fault: HeartbeatOnly) -> bool:
    """Send heartbeats until the client disconnects; without a stream, send blanks, which may precede JSON."""
    connection = exchange.connection
    beats = [b": still here\n\n", api_formats.format_heartbeat_event(exchange.api, exchange.reply)]
    beats = {"comment": beats[:1], "event": beats[1:]}.get(fault.kind, beats)
    if exchange.is_streaming:
        await _send_partial(exchange, fault.tokens)
    else:
        beats = [b" "]
        await connection.write(format_head(200, JSON_TYPE, "transfer-encoding: chunked"))
    n = 0
    while True:
        await connection.sleep(fault.interval_s)
        await connection.write(format_chunk(beats[n % len(beats)]))
        n += 1


async def _send_status(exchange: FakeExchange, fault: StatusFault) -> bool:
    header_lines = [f"{name}: {value}" for name, value in fault.headers]
    if fault.retry_after is not None:
        header_lines.append(f"retry-after: {fault.retry_after}")
    body = api_formats.format_error_body(exchange.api, fault.status)
    await exchange.connection.write(format_response(body, status=fault.status, extra_headers=header_lines))
    return True


async def _finish_connection(connection: ServerConnection, action: str) -> bool:
    if action == "hold":
        await connection.sleep(float("inf"))
    if action == "reset":
        connection.reset()
    return action == "keep"


async def _send_partial(exchange: FakeExchange, tokens: int, *, framing: str = "chunked") -> list[bytes]:
    """Send the head and some tokens, or half of a body; return the rest as encoded parts."""
    connection, body = exchange.connection, exchange.format_body()
    if not exchange.is_streaming:
        half = len(body) // 2
        if framing in ("close", "ended", "chunked"):
            closes = framing == "close"
            frame = "connection: close" if closes else "transfer-encoding: chunked"
            parts = [part if closes else format_chunk(part) for part in (body[:half], body[half:])]
            await connection.write(format_head(200, JSON_TYPE, frame) + parts[0])
            return [parts[1], *([] if closes else [b"0\r\n\r\n"])]
        await connection.write(format_head(200, JSON_TYPE, f"content-length: {len(body)}") + body[:half])
        return [body[half:]]
    events = exchange.format_stream()
    rest = (*events.tokens[tokens:], *events.after, events.last)
    exchange.record.tokens = min(tokens, len(events.tokens))
    parts = [*events.before, *events.tokens[:tokens]]
    if framing in ("close", "length"):
        frame = (
            "connection: close" if framing == "close" else f"content-length: {len(b''.join(rest)) + 10**6}"
        )
        await connection.write(format_head(200, EVENT_STREAM_TYPE, frame) + b"".join(parts))
        return list(rest)
    await connection.write(
        format_head(200, EVENT_STREAM_TYPE, "transfer-encoding: chunked") + format_chunks(parts)
    )
    return [format_chunks(rest), b"0\r\n\r\n"]
