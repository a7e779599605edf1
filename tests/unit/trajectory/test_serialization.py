"""Tests of the conversion of dataclasses to JSON data and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest

from agentguard.errors import FormatError
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.serialization import decode_dataclass, encode_fields


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    name: str
    weight: float | None
    colour: Colour = Colour.RED
    part: Part | None = None
    parts: tuple[Part, ...] = ()
    tags: tuple[str, ...] = ()
    counts: Mapping[int, int] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


FULL = {
    "name": "n",
    "weight": 2,
    "colour": "red",
    "part": {"size": 1},
    "parts": [{"size": 2}],
    "tags": ["a"],
    "counts": {"3": 4},
    "extra": {"x": None},
}


def test_all_kinds_of_fields_are_decoded():
    assert decode_dataclass(Thing, JsonNode(FULL)) == Thing(
        name="n",
        weight=2.0,
        part=Part(size=1),
        parts=(Part(size=2),),
        tags=("a",),
        counts={3: 4},
        extra={"x": None},
    )


def test_null_and_absent_fields_have_their_defaults():
    expected = Thing(name="n", weight=None)
    assert decode_dataclass(Thing, JsonNode({"name": "n"})) == expected
    assert decode_dataclass(Thing, JsonNode(dict.fromkeys(FULL) | {"name": "n"})) == expected


def test_field_decoded_by_caller_is_not_read():
    assert decode_dataclass(Part, JsonNode({"size": "wrong"}), size=5) == Part(size=5)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": None}, "name"),
        ({"weight": "heavy"}, "weight"),
        ({"colour": "blue"}, "colour"),
        ({"part": {}}, "part.size"),
        ({"parts": [{"size": 1}, {"size": []}]}, "parts[1].size"),
        ({"tags": ["a", 3]}, "tags[1]"),
        ({"counts": {"x": 1}}, "counts.x"),
        ({"counts": {"1": "x"}}, "counts.1"),
        ({"extra": []}, "extra"),
    ],
)
def test_malformed_field_is_named(change, path):
    with pytest.raises(FormatError) as caught:
        decode_dataclass(Thing, JsonNode(FULL | change))
    assert caught.value.field == path


def test_defaults_are_omitted_and_tuples_become_lists():
    assert encode_fields(Thing(name="n", weight=None, tags=("a",), extra={"k": 1})) == {
        "name": "n",
        "weight": None,
        "tags": ["a"],
        "extra": {"k": 1},
    }
