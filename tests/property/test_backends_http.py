"""The response reader against a simple model: the same result for any split, and never too much."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import given, settings, strategies as st

from agentguard.backends.http.limits import HttpLimits
from agentguard.backends.http.response_parser import MalformedResponse, ResponseParser

TOKEN = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=10).map(lambda text: "x-" + text)
VALUE = st.text("abc XYZ09;=,/", max_size=20).map(str.strip)
FIELDS = st.lists(st.tuples(TOKEN, VALUE), max_size=6)
LIMITS = HttpLimits(max_header_bytes=4096, max_body_bytes=4096)


@dataclass(frozen=True)
class Made:
    """A response and its expected content."""

    status: int
    fields: list[tuple[str, str]]
    body: bytes
    framing: str
    wire: bytes


@st.composite
def responses(draw: Any) -> Made:
    status = draw(st.sampled_from([200, 201, 400, 404, 429, 500, 503, 999]))
    fields, body = draw(FIELDS), draw(st.binary(max_size=300))
    framing = draw(st.sampled_from(["length", "chunked", "close"]))
    lines = [f"HTTP/1.1 {status} Reason", *(f"{name}: {value}" for name, value in fields)]
    if framing == "length":
        lines.append(f"Content-Length: {len(body)}")
    if framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
    head = "".join(line + "\r\n" for line in lines).encode() + b"\r\n"
    interim = b"HTTP/1.1 100 Continue\r\nx-early: y\r\n\r\n" * draw(st.integers(0, 2))
    return Made(status, fields, body, framing, interim + head + framed(draw, body, framing))


def framed(draw: Any, body: bytes, framing: str) -> bytes:
    if framing != "chunked":
        return body
    cuts = sorted({0, len(body), *draw(st.lists(st.integers(0, len(body)), max_size=5))})
    parts = [body[begin:end] for begin, end in pairwise(cuts)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def pieces(draw: Any, wire: bytes) -> list[bytes]:
    cuts = [0, *sorted(draw(st.lists(st.integers(0, len(wire)), max_size=8))), len(wire)]
    return [wire[begin:end] for begin, end in pairwise(cuts)]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(responses(), min_size=1, max_size=3))
def test_responses_parse_equally_for_any_split(data: st.DataObject, given_: list[Made]) -> None:
    reader = ResponseParser(LIMITS)
    for made in given_:
        reader.reset()
        for piece in pieces(data.draw, made.wire):
            reader.feed(piece)
        assert reader.is_complete is (made.framing != "close")
        assert reader.ends_at_close is (made.framing == "close")
        assert reader.is_reusable is (made.framing != "close")
        reader.feed_eof()
        assert reader.status == made.status
        assert reader.headers == tuple((name.encode(), value.encode()) for name, value in made.fields)
        assert reader.take_body() == made.body
        if made.framing == "close":
            return


@settings(max_examples=150, deadline=None)
@given(st.data(), responses())
def test_prefix_of_response_is_never_complete(data: st.DataObject, made: Made) -> None:
    if made.framing == "close":
        return
    cut = data.draw(st.integers(0, len(made.wire) - 1))
    reader = ResponseParser(LIMITS)
    reader.feed(made.wire[:cut])
    assert not reader.is_complete
    try:
        reader.feed_eof()
    except MalformedResponse:
        return
    raise AssertionError("it counts as whole")


@settings(max_examples=250, deadline=None)
@given(st.data(), responses())
def test_mutated_responses_are_parsed_or_rejected_within_bounds(data: st.DataObject, made: Made) -> None:
    wire = bytearray(made.wire)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(wire)))
        junk = data.draw(
            st.sampled_from([b"", b"\r", b"\n", b"\0", b" ", b"f", b"9", b":", b"\r\n", b"\xff", b";"])
        )
        wire[at : at + data.draw(st.integers(0, 2))] = junk
    reader = ResponseParser(LIMITS)
    try:
        for piece in pieces(data.draw, bytes(wire)):
            reader.feed(piece)
        reader.feed_eof()
    except MalformedResponse as error:
        assert str(error)
        return
    assert reader.is_complete
    assert sum(map(len, reader.body)) == reader.size <= LIMITS.max_body_bytes
    for name, value in reader.headers:
        assert name == name.lower()
        assert not {b"\r", b"\n", b"\0"} & {value[i : i + 1] for i in range(len(value))}
        assert name not in (b"content-length", b"transfer-encoding", b"connection")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_cause_no_crash(wire: bytes) -> None:
    reader = ResponseParser(LIMITS)
    try:
        reader.feed(wire)
        reader.feed_eof()
    except MalformedResponse:
        return
    assert reader.is_complete
