"""Events of buffered streams: parsed once, with the original boundaries."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from agentguard.model_api.sse import EventReader, encode_event, parse_event, parse_event_fast

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_both_event_parsers_agree(value: dict[str, object]) -> None:
    event = encode_event(value)
    assert parse_event(event) == parse_event_fast(event) == value


def test_only_exact_parser_keeps_large_integers() -> None:
    event = encode_event({"n": 2**80 + 1})
    assert parse_event(event) == {"n": 2**80 + 1}
    assert parse_event_fast(event) == {"n": float(2**80)}


@pytest.mark.parametrize("data", [b'{"a": NaN}', b'{"a": "\\ud800"}'])
def test_almost_valid_json_of_servers_is_parsed(data: bytes) -> None:
    event = b"data: " + data + b"\n\n"
    assert str(parse_event_fast(event)) == str(parse_event(event))
    assert parse_event_fast(event)


@pytest.mark.parametrize(
    "event", [b": ping\n\n", b"data: [DONE]\n\n", b"data: [1]\n\n", b"data: {\n\n", b"\n\n"]
)
def test_event_without_object_is_none(event: bytes) -> None:
    assert parse_event(event) is None
    assert parse_event_fast(event) is None


@given(
    st.lists(st.sampled_from([b"data: a\n\n", b"event: b\ndata: b\n\n", b": c\n\n"]), max_size=5), st.data()
)
def test_events_keep_their_boundaries(sent: list[bytes], data: st.DataObject) -> None:
    whole, cutter, found = b"".join(sent), EventReader(), list[bytes]()
    while whole:
        size = data.draw(st.integers(1, len(whole)))
        found += cutter.feed(whole[:size])
        whole = whole[size:]
    assert found == sent
    assert cutter.remainder == b""


def test_all_line_endings_end_events() -> None:
    sent = [b"data: a\r\n\r\n", b"data: b\r\r", b"data: c\n\n"]
    assert list(EventReader().feed(b"".join(sent))) == sent
    assert [list(EventReader().feed(event)) for event in sent] == [[event] for event in sent]
