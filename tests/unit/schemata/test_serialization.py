"""Schemata and profiles survive a round trip through JSON; errors name the place of malformed data."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given, strategies as st

from agentguard.errors import FormatError
from agentguard.schemata.model import ErrorSchema, Provenance, SchemaOrigin, SchemaStatus
from agentguard.schemata.serialization import (
    MAX_LINE_BYTES,
    decode_schema,
    encode_schema,
    read_schemata,
    write_schemata,
)
from agentguard.trajectory.formats.sdk import JsonNode

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
filled = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
lists = st.lists(texts, max_size=3).map(tuple)
traits = st.dictionaries(texts, st.floats(0, 1), max_size=4)
times = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 10**6)
schemata = st.builds(
    ErrorSchema,
    id=filled,
    signature=lists,
    context=lists,
    heuristics=lists,
    traits=traits,
    codes=lists,
    module=st.none() | texts,
    correction=texts,
    provenance=st.builds(
        Provenance, method=filled, runs=lists, groups=lists, origin=st.sampled_from(list(SchemaOrigin))
    ),
    version=st.integers(1, 99),
    support=st.integers(1, 99),
    confirmed=counts,
    refuted=counts,
    used=counts,
    status=st.sampled_from(list(SchemaStatus)),
    created_at=times,
    updated_at=times,
    used_at=st.none() | times,
)


def there(data: object) -> object:
    return orjson.loads(orjson.dumps(data))


@given(schemata)
def test_schema_round_trips(schema: ErrorSchema) -> None:
    assert decode_schema(JsonNode.from_value(there(encode_schema(schema)))) == schema


@given(st.lists(schemata, max_size=4, unique_by=lambda one: one.id))
def test_file_round_trips(tmp_path_factory: pytest.TempPathFactory, many: list[ErrorSchema]) -> None:
    path = tmp_path_factory.mktemp("schemata") / "deep" / "s.jsonl"
    assert write_schemata(path, many) == len(many)
    assert read_schemata(path) == tuple(many)
    assert [one.name for one in path.parent.iterdir()] == ["s.jsonl"]


GOOD = {"id": "x", "signature": ["It fails."], "provenance": {"method": "embedded", "runs": ["r"]}}


def test_default_values_are_omitted() -> None:
    schema = decode_schema(JsonNode.from_value(GOOD))
    assert encode_schema(schema) == GOOD


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": ""}, "id"),
        ({"id": None}, "id"),
        ({"signature": "It fails."}, "signature"),
        ({"signature": [1]}, "signature[0]"),
        ({"traits": {"a": 1.5}}, "traits.a"),
        ({"traits": {"a": "x"}}, "traits.a"),
        ({"traits": []}, "traits"),
        ({"support": 0}, "support"),
        ({"used": -1}, "used"),
        ({"status": "old"}, "status"),
        ({"provenance": {}}, "provenance.method"),
        ({"provenance": {"method": "m", "origin": "both"}}, "provenance.origin"),
        ({"provenance": None}, "provenance"),
        ({"created_at": "now"}, "created_at"),
    ],
)
def test_invalid_field_is_named_with_its_line(tmp_path: Path, change: dict[str, object], field: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(orjson.dumps(GOOD) + b"\n\n" + orjson.dumps({**GOOD, "id": "y", **change}) + b"\n")
    with pytest.raises(FormatError) as caught:
        read_schemata(path)
    assert caught.value.file == f"{path}:3"
    assert caught.value.field == field
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "is not JSON"),
        (b"[]", "expected an object"),
        (b"\xff", "is not JSON"),
        (b" " * (MAX_LINE_BYTES - 1) + b"{}x", "longer than"),
        (orjson.dumps(GOOD) + b"\n" + orjson.dumps(GOOD), "has the id of line 1"),
    ],
)
def test_line_that_is_not_a_schema_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=reason):
        read_schemata(path)


def test_unreadable_or_unwritable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"none\.jsonl: cannot be read"):
        read_schemata(tmp_path / "none.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match="cannot be written"):
        write_schemata(tmp_path / "file" / "s.jsonl", ())


def test_failed_write_keeps_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    schema = decode_schema(JsonNode.from_value(GOOD))
    write_schemata(path, [schema])

    def breaks() -> object:
        yield schema
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_schemata(path, breaks())  # type: ignore[arg-type]
    assert read_schemata(path) == (schema,)
    assert [one.name for one in tmp_path.iterdir()] == ["s.jsonl"]
