"""Deltas: any text can be restored from its predecessor, and similar texts give a short delta."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import RecoveryError
from agentguard.recover.snapshots.history import apply_delta, encode_delta

EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 300), st.binary(max_size=300)), max_size=6)


def text(size: int, seed: int = 1) -> bytes:
    rng = random.Random(seed)
    return " ".join(rng.choices([f"word{i}" for i in range(500)], k=size // 7)).encode()


@given(st.binary(max_size=400), st.binary(max_size=400))
def test_arbitrary_bytes_round_trip(base: bytes, new: bytes) -> None:
    assert apply_delta(base, encode_delta(base, new)) == new


@given(st.integers(0, 200_000), EDITS)
def test_edited_bytes_round_trip(size: int, edits: list[tuple[float, int, bytes]]) -> None:
    base = new = text(size)
    for place, length, put in edits:
        at = int(place * len(new))
        new = new[:at] + put + new[at + length :]
    assert apply_delta(base, encode_delta(base, new)) == new


@pytest.mark.parametrize("size", [1_000, 100_000, 3_000_000])
def test_few_edits_make_a_short_delta(size: int) -> None:
    base = text(size)
    third = len(base) // 3
    new = base[:third] + b"inserted here" + base[third + 40 : -third] + base[20 - third :] + b" appended"
    assert len(encode_delta(base, new)) < 300
    assert apply_delta(base, encode_delta(base, new)) == new


def test_equal_bytes_make_a_delta_of_one_copy() -> None:
    assert len(encode_delta(text(500_000), text(500_000))) == 12


def test_removed_and_inserted_blocks_are_matched() -> None:
    base = text(300_000)
    without = base[:1000] + base[51_000:]
    assert len(encode_delta(base, without)) < 100
    assert len(encode_delta(without, base)) < 50_200


def test_unrelated_bytes_are_a_literal() -> None:
    noise = random.Random(2).randbytes(400_000)
    made = encode_delta(text(400_000), noise)
    assert len(made) < len(noise) + 2_000
    assert apply_delta(text(400_000), made) == noise


@pytest.mark.parametrize("spoilt", ["short", "base", "tail"])
def test_delta_of_another_base_is_an_error(spoilt: str) -> None:
    base = text(5_000)
    made = encode_delta(base, base[:2_000] + b"new" * 30 + base[2_500:])
    if spoilt == "base":
        base = base[:3_000]
    made = made[:40] if spoilt == "short" else made + b"xyz" if spoilt == "tail" else made
    with pytest.raises(RecoveryError, match="damaged"):
        apply_delta(base, made)
