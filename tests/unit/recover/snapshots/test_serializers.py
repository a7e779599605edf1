"""Serialization of states: exact round trip, and errors with a remedy for unsupported states."""

from __future__ import annotations

import datetime
import enum
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import ConfigError, RecoveryError
from agentguard.recover.snapshots.serializers import JsonCodec, PickleCodec, get_codec

WORDS = st.text(st.characters(exclude_categories=("Cs",)))
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner),
    max_leaves=20,
)


class Colour(enum.Enum):
    RED = "red"


@dataclass
class World:
    at: int = 0


@given(PLAIN | st.binary())
def test_json_data_and_bytes_round_trip(state: Any) -> None:
    codec = JsonCodec()
    raw = codec.encode(state)
    back = codec.decode(raw)
    assert back == state
    assert type(back) is type(state)


def test_saved_state_does_not_change_with_the_object() -> None:
    codec, state = JsonCodec(), {"seats": [1]}
    raw = codec.encode(state)
    state["seats"].append(2)
    assert codec.decode(raw) == {"seats": [1]}
    assert codec.decode(raw)["seats"] is not codec.decode(raw)["seats"]


@pytest.mark.parametrize(
    "state",
    [
        (1, 2), {"a": [(1,)]}, {1: "a"}, {1, 2}, math.nan, [math.inf], Colour.RED, World(), object(),
        datetime.datetime(2026, 1, 1), 2**64, "\ud800",
    ],
)  # fmt: skip
def test_lossy_state_is_rejected(state: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot be saved .*codec='pickle'"):
        JsonCodec().encode(state)


def test_pickle_requires_opt_in() -> None:
    codec = get_codec("pickle")
    state = {"world": World(at=3), "seen": {(1, 2)}}
    assert codec.decode(codec.encode(state)) == state
    with pytest.raises(ConfigError, match="cannot be pickled"):
        codec.encode(lambda: None)
    with pytest.raises(RecoveryError, match="cannot be unpickled"):
        PickleCodec().decode(b"no pickle")


def test_codecs_have_names() -> None:
    assert get_codec("json").name == "json"
    own = PickleCodec()
    assert get_codec(own) is own
    with pytest.raises(ConfigError, match="codec is 'yaml', expected one of json, pickle"):
        get_codec("yaml")
