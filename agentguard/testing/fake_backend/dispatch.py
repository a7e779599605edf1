"""What a fault is on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

from agentguard.testing.fake_backend import api_formats
from agentguard.testing.fake_backend.exchange import (
    EVENTS,
    JSON,
    SOON_S,
    FakeExchange,
    begin,
    chunk,
    chunks,
    head,
    with_length,
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
from agentguard.testing.fake_backend.oversized import huge, junk, trickle


async def play(fault: InjectedFault, exchange: FakeExchange) -> bool:
    """Answer as the fault wants it; returns whether the connection takes another request. Raises Gone."""
    wire = exchange.wire
    if fault.after_s:
        await wire.sleep(fault.after_s)
    match fault:
        case Ok():
            return await _answer(exchange, exchange.reply, fault)
        case Corrupt(kind=kind):
            wrong = exchange.reply.flipped() if kind == "flipped" else exchange.other
            return await _answer(exchange, wrong, Ok())
        case StatusFault():
            return await _status(exchange, fault)
        case InvalidAnswer():
            return await junk(exchange, fault)
        case Trickle():
            return await trickle(exchange, fault)
        case Huge():
            return await huge(exchange, fault)
        case Raw(data=data, then=then):
            await wire.write(data)
            return await _then(wire, then)
    return await _broken(fault, exchange)


async def _broken(fault: InjectedFault, exchange: FakeExchange) -> bool:
    """Faults that begin with a right answer and leave it."""
    wire = exchange.wire
    match fault:
        case Hang() | Reset(tokens=None):
            return await _then(wire, "hold" if isinstance(fault, Hang) else "reset")
        case Reset(tokens=tokens):
            await begin(exchange, tokens or 0)
            await wire.sleep(SOON_S)  # a reset at once would take away what was sent before it
            return await _then(wire, "reset")
        case Stall(tokens=tokens, seconds=seconds):
            rest = await begin(exchange, tokens)
            await wire.sleep(seconds)
            for piece in rest:
                await wire.write(piece)
            return True
        case Truncate(tokens=tokens, framing=framing):
            await begin(exchange, tokens, framing=framing)
            if framing == "ended":
                await wire.write(b"0\r\n\r\n")
            return framing == "ended"
        case HeartbeatOnly():
            return await _beat(exchange, fault)
        case ErrorEvent(tokens=tokens, done=done):
            if not exchange.streams:  # an error under status 200
                await wire.write(with_length(api_formats.error_body(exchange.api, 500)))
                return True
            await begin(exchange, tokens)
            await wire.sleep(SOON_S if tokens else 0)
            end = exchange.events().last if done else b""
            await wire.write(chunk(api_formats.error_event(exchange.api) + end) + b"0\r\n\r\n")
            return True
    raise TypeError(f"{type(fault).__name__} is no fault of a request")


async def _answer(exchange: FakeExchange, reply: FakeReply, timing: Ok) -> bool:
    """A whole answer."""
    wire = exchange.wire
    if not exchange.streams:
        if timing.first_s:
            await wire.sleep(timing.first_s)
        await wire.write(with_length(exchange.whole(reply)))
        return True
    events = exchange.events(reply)
    await wire.write(head(200, EVENTS, "transfer-encoding: chunked") + chunks(events.before))
    async for token in _paced(exchange, events, timing):
        await wire.write(token)
        exchange.seen.tokens += 1
    await wire.write(chunks((*events.after, events.last)) + b"0\r\n\r\n")
    return True


async def _paced(
    exchange: FakeExchange, events: api_formats.EventFormatter, timing: Ok
) -> AsyncIterator[bytes]:
    for n, token in enumerate(events.tokens):
        wait = timing.gap_s if n else timing.first_s
        if wait:
            await exchange.wire.sleep(wait)
        yield chunk(token)


async def _beat(exchange: FakeExchange, fault: HeartbeatOnly) -> bool:
    """Heartbeats, for ever; an answer that is no stream gets blanks, which JSON may begin with."""
    wire = exchange.wire
    beats = [b": still here\n\n", api_formats.beat_event(exchange.api, exchange.reply)]
    beats = {"comment": beats[:1], "event": beats[1:]}.get(fault.kind, beats)
    if exchange.streams:
        await begin(exchange, fault.tokens)
    else:
        beats = [b" "]
        await wire.write(head(200, JSON, "transfer-encoding: chunked"))
    n = 0
    while True:
        await wire.sleep(fault.every_s)
        await wire.write(chunk(beats[n % len(beats)]))
        n += 1


async def _status(exchange: FakeExchange, fault: StatusFault) -> bool:
    more = [f"{name}: {value}" for name, value in fault.headers]
    if fault.retry_after is not None:
        more.append(f"retry-after: {fault.retry_after}")
    body = api_formats.error_body(exchange.api, fault.status)
    await exchange.wire.write(with_length(body, status=fault.status, more=more))
    return True


async def _then(wire: ServerConnection, then: str) -> bool:
    if then == "hold":
        await wire.sleep(float("inf"))
    if then == "reset":
        wire.reset()
    return then == "keep"
