"""Round trip of JSON through bytes."""

import math
import zlib
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import StoreError
from agentguard.store.db import payload as module
from agentguard.store.db.payload import (
    COMPRESSION_THRESHOLD_BYTES,
    RowRejected,
    decode_payload,
    encode_payload,
)

TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(TEXT, JSON, max_size=5), st.dictionaries(TEXT, TEXT, max_size=2))
def test_payload_round_trips(data, originals):
    assert decode_payload(encode_payload(data, originals)) == (data, originals)


def test_short_payload_is_readable_text():
    assert encode_payload({"a": "é"}) == '{"a":"é"}'.encode()


def test_long_payload_is_compressed():
    data = {"a": "word " * COMPRESSION_THRESHOLD_BYTES}
    packed = encode_payload(data)
    assert packed[:1] == b"x"
    assert len(packed) < 1000
    assert decode_payload(packed) == (data, {})


def test_nan_and_mappings_round_trip():
    (value,) = decode_payload(encode_payload({"p": math.nan}))[0].values()
    assert math.isnan(value)
    assert decode_payload(encode_payload(MappingProxyType({"a": MappingProxyType({"b": (1, 2)})}))) == (
        {"a": {"b": [1, 2]}},
        {},
    )


class Colour(Enum):
    RED = 1


class Size(IntEnum):
    BIG = 7


class Word(StrEnum):
    YES = "yes"


def test_enum_members_and_uuids_are_stored_as_values():
    known = UUID(int=5)
    data = {"a": Colour.RED, "b": Size.BIG, "c": Word.YES, "d": known}
    assert decode_payload(encode_payload(data))[0] == {"a": 1, "b": 7, "c": "yes", "d": str(known)}


@dataclass
class Thing:
    name: str = "x"


@pytest.mark.parametrize("value", [Thing(), datetime(2026, 1, 1), b"bytes"], ids=repr)
def test_non_standard_json_types_are_rejected(value):
    with pytest.raises(RowRejected, match=f"data holds a {type(value).__name__}"):
        encode_payload({"a": {"b": value}})


def circle() -> dict:
    data: dict = {}
    data["me"] = data
    return data


def deep() -> dict:
    data: dict = {}
    for _ in range(100_000):
        data = {"a": data}
    return data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"a": object()}, "data holds a object"),
        ({"a": {1, 2}}, "data holds a set"),
        ({(1, 2): 3}, "cannot be written as JSON"),
        (circle(), "contains itself"),
        ({"a": 10**5000}, "too many digits"),
        ([1], "data is a list"),
        (deep(), "nested too deeply"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unstorable_payload_is_rejected(data, reason):
    with pytest.raises(RowRejected, match=reason):
        encode_payload(data)


def test_payload_size_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_PAYLOAD_BYTES", 100)
    with pytest.raises(RowRejected, match="larger than"):
        encode_payload({"a": "".join(map(str, range(1000)))})


def test_decompression_bomb_is_rejected(monkeypatch):
    monkeypatch.setattr(module, "MAX_DECODED_BYTES", 10_000)
    with pytest.raises(StoreError, match="too large"):
        decode_payload(zlib.compress(b'{"a":"' + b"x" * 1_000_000 + b'"}'))


@given(st.binary(max_size=60))
def test_foreign_bytes_give_an_error_or_data(raw):
    try:
        data, originals = decode_payload(raw)
    except StoreError:
        return
    assert isinstance(data, dict)
    assert isinstance(originals, dict)


@pytest.mark.parametrize(
    "raw", [b"", b"[1]", b"[{},{},{}]", b"x", b"null", zlib.compress(b"{}")[:-3], b"[" * 100_000]
)
def test_corruption_is_reported(raw):
    with pytest.raises(StoreError, match="damaged"):
        decode_payload(raw)
