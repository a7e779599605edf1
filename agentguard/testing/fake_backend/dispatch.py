"""Implementation of each fault on the connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from agentguard.testing.fake_backend import api_formats
from agentguard.testing.fake_backend.exchange import (
    EVENT_STREAM_TYPE,
    FLUSH_DELAY_S,
    JSON_TYPE,
    FakeExchange,
    format_chunk,
    format_chunks,
    format_head,
    format_response,
    send_partial,
)
from agentguard.testing.fake_backend.expected import FakeReply
from agentguard.testing.fake_backend.faults import (
    Corrupt,
    ErrorEvent,
    Hang,
    HeartbeatOnly,
    Huge,
    InjectedFault,
    InvalidAnswer,
    Ok,
    Raw,
    Reset,
    Stall,
    StatusFault,
    Trickle,
    Truncate,
)
from agentguard.testing.fake_backend.http import ServerConnection

_HTML_ERROR_PAGE: Final = b"<!doctype html><title>502</title><h1>The gateway between is not well</h1>"
_CHUNK_BYTES: Final = 1 << 16


async def send_invalid_answer(exchange: FakeExchange, fault: InvalidAnswer) -> bool:
    """Send status 200 with an invalid answer."""
    wire, body = exchange.connection, exchange.format_body()
    if exchange.is_streaming and fault.kind not in ("html", "nothing"):
        if fault.kind == "empty":
            empty = api_formats.format_empty_stream(exchange.api, exchange.reply)
            await wire.write(
                format_head(200, EVENT_STREAM_TYPE, "transfer-encoding: chunked")
                + format_chunks(empty)
                + b"0\r\n\r\n"
            )
            return True
        await send_partial(exchange, fault.tokens)
        await wire.sleep(FLUSH_DELAY_S if fault.tokens else 0)
        invalid_event = {
            "json": b'data: {"id": "x", "choices": [{"del\n\n',
            "event": b"this is no event at all\n\n",
            "utf8": b'data: {"id": "\xff\xfe"}\n\n',
            "list": b"data: [1, 2, 3]\n\n",
        }[fault.kind]
        end = exchange.format_stream()
        rest = b"".join((*end.tokens[fault.tokens :], *end.after, end.last))
        await wire.write(format_chunk(invalid_event) + format_chunk(rest) + b"0\r\n\r\n")
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
    await wire.write(format_response(bodies[fault.kind], content_type=kind))
    return True


async def send_slowly(exchange: FakeExchange, fault: Trickle) -> bool:
    """Send the right answer a few bytes at a time."""
    wire, body = exchange.connection, exchange.format_body()
    events = exchange.format_stream() if exchange.is_streaming else None
    if events is not None:
        body = b"".join((*events.before, *events.tokens, *events.after, events.last))
    top = format_head(200, EVENT_STREAM_TYPE if events else JSON_TYPE, f"content-length: {len(body)}")
    if fault.part == "body":
        await wire.write(top)
        top = b""
    data = top + body
    for first in range(0, len(data), fault.size):
        await wire.write(data[first : first + fault.size])
        await wire.sleep(fault.interval_s)
    return True


async def send_oversized(exchange: FakeExchange, fault: Huge) -> bool:
    """Send an oversized head, body or event, as fast as the client reads."""
    wire = exchange.connection
    if fault.part == "head":
        line = b"x-filler: " + b"a" * 1000 + b"\r\n"
        await wire.write(format_head(200, JSON_TYPE, "content-length: 2")[:-2])
        for _ in range(fault.size // len(line)):
            await wire.sleep(0)
            await wire.write(line)
        await wire.write(b"\r\n{}")
        return True
    filled = replace(exchange.reply, text="@@", tool="")
    one = exchange.format_stream(filled).tokens[0] if exchange.is_streaming else exchange.format_body(filled)
    before, after = one.split(b"@@", 1) if b"@@" in one else (one[:-1] + b', "filler": "', b'"}')
    kind = EVENT_STREAM_TYPE if exchange.is_streaming else JSON_TYPE
    await wire.write(format_head(200, kind, "transfer-encoding: chunked"))
    if not exchange.is_streaming or fault.part == "event":
        await _send_filler(wire, before, fault.size, after)
    else:
        events = exchange.format_stream()
        await wire.write(format_chunks(events.before))
        several = one * (_CHUNK_BYTES // len(one))
        for _ in range(fault.size // len(several) + 1):
            await wire.sleep(0)
            await wire.write(format_chunk(several))
    end = exchange.format_stream() if exchange.is_streaming else None
    await wire.write((format_chunks((*end.after, end.last)) if end else b"") + b"0\r\n\r\n")
    return True


async def _send_filler(connection: ServerConnection, before: bytes, size: int, after: bytes) -> None:
    await connection.write(format_chunk(before))
    for _ in range(size // _CHUNK_BYTES):
        await connection.sleep(0)
        await connection.write(format_chunk(b"a" * _CHUNK_BYTES))
    await connection.write(format_chunk(b"a" * (size % _CHUNK_BYTES)))
    await connection.write(format_chunk(after))


async def apply_fault(fault: InjectedFault, exchange: FakeExchange) -> bool:
    """Answer as the fault requires; return whether the connection accepts another request.

    Raises:
        ClientGone: the client left.
    """
    wire = exchange.connection
    if fault.delay_s:
        await wire.sleep(fault.delay_s)
    match fault:
        case Ok():
            return await _send_answer(exchange, exchange.reply, fault)
        case Corrupt(kind=kind):
            wrong_reply = (
                exchange.reply.with_changed_digits() if kind == "flipped" else exchange.foreign_reply
            )
            return await _send_answer(exchange, wrong_reply, Ok())
        case StatusFault():
            return await _send_status(exchange, fault)
        case InvalidAnswer():
            return await send_invalid_answer(exchange, fault)
        case Trickle():
            return await send_slowly(exchange, fault)
        case Huge():
            return await send_oversized(exchange, fault)
        case Raw(data=data, connection_action=then):
            await wire.write(data)
            return await _finish_connection(wire, then)
    return await _apply_partial_fault(fault, exchange)


async def _apply_partial_fault(fault: InjectedFault, exchange: FakeExchange) -> bool:
    """Apply a fault that begins with a right answer and then deviates."""
    wire = exchange.connection
    match fault:
        case Hang() | Reset(tokens=None):
            return await _finish_connection(wire, "hold" if isinstance(fault, Hang) else "reset")
        case Reset(tokens=tokens):
            await send_partial(exchange, tokens or 0)
            await wire.sleep(FLUSH_DELAY_S)  # an immediate reset would discard data that was sent before
            return await _finish_connection(wire, "reset")
        case Stall(tokens=tokens, duration_s=seconds):
            rest = await send_partial(exchange, tokens)
            await wire.sleep(seconds)
            for piece in rest:
                await wire.write(piece)
            return True
        case Truncate(tokens=tokens, framing=framing):
            await send_partial(exchange, tokens, framing=framing)
            if framing == "ended":
                await wire.write(b"0\r\n\r\n")
            return framing == "ended"
        case HeartbeatOnly():
            return await _send_heartbeats(exchange, fault)
        case ErrorEvent(tokens=tokens, include_done=done):
            if not exchange.is_streaming:  # an error with status 200
                await wire.write(format_response(api_formats.format_error_body(exchange.api, 500)))
                return True
            await send_partial(exchange, tokens)
            await wire.sleep(FLUSH_DELAY_S if tokens else 0)
            end = exchange.format_stream().last if done else b""
            await wire.write(format_chunk(api_formats.format_error_event(exchange.api) + end) + b"0\r\n\r\n")
            return True
    raise TypeError(f"{type(fault).__name__} is not a fault of a request")


async def _send_answer(exchange: FakeExchange, reply: FakeReply, timing: Ok) -> bool:
    """Send a complete answer."""
    wire = exchange.connection
    if not exchange.is_streaming:
        if timing.first_token_delay_s:
            await wire.sleep(timing.first_token_delay_s)
        await wire.write(format_response(exchange.format_body(reply)))
        return True
    events = exchange.format_stream(reply)
    await wire.write(
        format_head(200, EVENT_STREAM_TYPE, "transfer-encoding: chunked") + format_chunks(events.before)
    )
    async for token in _pace_tokens(exchange, events, timing):
        await wire.write(token)
        exchange.record.tokens += 1
    await wire.write(format_chunks((*events.after, events.last)) + b"0\r\n\r\n")
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
    """Send heartbeats forever; without streaming, send blanks, which may precede JSON."""
    wire = exchange.connection
    beats = [b": still here\n\n", api_formats.format_heartbeat_event(exchange.api, exchange.reply)]
    beats = {"comment": beats[:1], "event": beats[1:]}.get(fault.kind, beats)
    if exchange.is_streaming:
        await send_partial(exchange, fault.tokens)
    else:
        beats = [b" "]
        await wire.write(format_head(200, JSON_TYPE, "transfer-encoding: chunked"))
    n = 0
    while True:
        await wire.sleep(fault.interval_s)
        await wire.write(format_chunk(beats[n % len(beats)]))
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
