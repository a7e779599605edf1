"""Answers that are none, answers that come too slowly, and too much of an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

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
from agentguard.testing.fake_backend.faults import Huge, InvalidAnswer, Trickle
from agentguard.testing.fake_backend.http import ServerConnection

_PAGE: Final = b"<!doctype html><title>502</title><h1>The gateway between is not well</h1>"
_PIECE: Final = 1 << 16


async def junk(exchange: FakeExchange, fault: InvalidAnswer) -> bool:
    """Status 200, and no answer."""
    wire, whole = exchange.wire, exchange.whole()
    if exchange.streams and fault.kind not in ("html", "nothing"):
        if fault.kind == "empty":
            empty = api_formats.empty_events(exchange.api, exchange.reply)
            await wire.write(head(200, EVENTS, "transfer-encoding: chunked") + chunks(empty) + b"0\r\n\r\n")
            return True
        await begin(exchange, fault.tokens)
        await wire.sleep(SOON_S if fault.tokens else 0)
        bad = {
            "json": b'data: {"id": "x", "choices": [{"del\n\n',
            "event": b"this is no event at all\n\n",
            "utf8": b'data: {"id": "\xff\xfe"}\n\n',
            "list": b"data: [1, 2, 3]\n\n",
        }[fault.kind]
        end = exchange.events()
        rest = b"".join((*end.tokens[fault.tokens :], *end.after, end.last))
        await wire.write(chunk(bad) + chunk(rest) + b"0\r\n\r\n")
        return True
    bodies = {
        "json": whole[: len(whole) * 2 // 3],
        "event": b"data: " + whole + b"\n\n",
        "html": _PAGE,
        "empty": api_formats.empty_body(exchange.api, exchange.reply, exchange.asked),
        "nothing": b"",
        "utf8": whole.replace(b'"id": "', b'"id": "\xff\xfe', 1),
        "list": b"[1, 2, 3]",
    }
    kind = "text/html" if fault.kind == "html" else EVENTS if exchange.streams else JSON
    await wire.write(with_length(bodies[fault.kind], kind=kind))
    return True


async def trickle(exchange: FakeExchange, fault: Trickle) -> bool:
    """The right answer, a few bytes at a time."""
    wire, body = exchange.wire, exchange.whole()
    events = exchange.events() if exchange.streams else None
    if events is not None:
        body = b"".join((*events.before, *events.tokens, *events.after, events.last))
    top = head(200, EVENTS if events else JSON, f"content-length: {len(body)}")
    if fault.part == "body":
        await wire.write(top)
        top = b""
    data = top + body
    for first in range(0, len(data), fault.size):
        await wire.write(data[first : first + fault.size])
        await wire.sleep(fault.every_s)
    return True


async def huge(exchange: FakeExchange, fault: Huge) -> bool:
    """Too much of something, as fast as it is read."""
    wire = exchange.wire
    if fault.part == "head":
        line = b"x-filler: " + b"a" * 1000 + b"\r\n"
        await wire.write(head(200, JSON, "content-length: 2")[:-2])
        for _ in range(fault.size // len(line)):
            await wire.sleep(0)
            await wire.write(line)
        await wire.write(b"\r\n{}")
        return True
    filled = replace(exchange.reply, text="@@", tool="")
    one = exchange.events(filled).tokens[0] if exchange.streams else exchange.whole(filled)
    before, after = one.split(b"@@", 1) if b"@@" in one else (one[:-1] + b', "filler": "', b'"}')
    kind = EVENTS if exchange.streams else JSON
    await wire.write(head(200, kind, "transfer-encoding: chunked"))
    if not exchange.streams or fault.part == "event":
        await _filled(wire, before, fault.size, after)
    else:
        events = exchange.events()
        await wire.write(chunks(events.before))
        several = one * (_PIECE // len(one))
        for _ in range(fault.size // len(several) + 1):
            await wire.sleep(0)
            await wire.write(chunk(several))
    end = exchange.events() if exchange.streams else None
    await wire.write((chunks((*end.after, end.last)) if end else b"") + b"0\r\n\r\n")
    return True


async def _filled(wire: ServerConnection, before: bytes, size: int, after: bytes) -> None:
    await wire.write(chunk(before))
    for _ in range(size // _PIECE):
        await wire.sleep(0)
        await wire.write(chunk(b"a" * _PIECE))
    await wire.write(chunk(b"a" * (size % _PIECE)))
    await wire.write(chunk(after))
