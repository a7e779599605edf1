"""Contract of both schema stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentguard.errors import FormatError, StoreError
from agentguard.schemata.model import SchemaOrigin, SchemaStatus
from agentguard.schemata.persistence import (
    FileSchemaStore,
    SchemaStore,
    SqlSchemaStore,
    load_schemata,
    open_schema_store,
)
from agentguard.store.db.rows import SchemaRow
from agentguard.store.store import Store
from tests.unit.schemata.builders import schema

Again = Callable[[], SchemaStore]


@pytest.fixture(params=["file", "table"])
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Again]:
    """Open the store again at the same location, as another process does."""
    if request.param == "file":
        yield lambda: FileSchemaStore(tmp_path / "deep" / "schemata.jsonl")
        return
    stores: list[Store] = []

    def open_() -> SchemaStore:
        for held in stores:
            held.close()
        stores.append(Store.open(tmp_path / "s.db"))
        return SqlSchemaStore(stores[-1])

    yield open_
    for held in stores:
        held.close()


FULL = replace(
    schema("made_up", "r9", codes=("mast:x",), origin=SchemaOrigin.INJECTED, correction="Ask for it."),
    context=("Nothing had been run before.",),
    heuristics=("It has no source.",),
    module="memory",
    version=3,
    support=4,
    confirmed=2,
    refuted=1,
    used=7,
    status=SchemaStatus.RETIRED,
    created_at=1.5,
    updated_at=2.5,
    used_at=3.5,
)


def test_new_store_is_empty(again: Again) -> None:
    assert again().load() == ()


def test_stored_schemata_are_loaded_completely_and_by_id(again: Again) -> None:
    again().upsert([schema("made_up"), FULL, schema("loop")])
    assert again().load() == (schema("loop"), schema("made_up"), FULL)


def test_later_version_replaces_earlier_one(again: Again) -> None:
    keep = again()
    keep.upsert([schema("loop"), schema("made_up")])
    newer = replace(schema("loop"), version=2, used=5)
    keep.upsert([newer])
    counted = replace(newer, used=6)  # a count alone does not make a new version
    keep.upsert([counted])
    assert again().load() == (counted, schema("made_up"))


def test_deleted_schema_stays_deleted_until_stored_again(again: Again) -> None:
    keep = again()
    keep.upsert([schema("loop"), schema("made_up")])
    assert len(keep.load()) == 2
    keep.delete(["loop-r1", "nobody"])
    assert again().load() == (schema("made_up"),)
    keep = again()
    keep.upsert([schema("loop")])
    assert keep.load() == (schema("loop"), schema("made_up"))


def test_delete_of_missing_schema_does_nothing(again: Again) -> None:
    again().delete(["nobody"])
    assert again().load() == ()


def test_corrupt_file_error_names_the_location(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    FileSchemaStore(file).upsert([schema()])
    file.write_bytes(file.read_bytes() + b'{"id": 3}\n')
    with pytest.raises(FormatError, match=r"s\.jsonl:2, field id"):
        FileSchemaStore(file).load()


def test_corrupt_row_error_names_the_row(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        store.write(SchemaRow(id="bad", data={"id": "bad"}))
        with pytest.raises(FormatError, match="schema bad of the store"):
            SqlSchemaStore(store).load()


def test_tenants_are_separated(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        SqlSchemaStore(store, tenant="a").upsert([schema("loop")])
        SqlSchemaStore(store, tenant="b").upsert([schema("made_up")])
        assert SqlSchemaStore(store, tenant="a").load() == (schema("loop"),)


@pytest.mark.parametrize("name", ["s.jsonl", "s.db", "s.sqlite"])
def test_location_is_a_file_or_database_by_its_name(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    with open_schema_store(place) as keep:
        assert isinstance(keep, FileSchemaStore) is (name == "s.jsonl")
        keep.upsert([schema()])
    assert load_schemata(place) == (schema(),)


def test_default_location_is_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGUARD_STORE", str(tmp_path / "mine.db"))
    with open_schema_store(None) as keep:
        keep.upsert([schema()])
    assert load_schemata(None) == (schema(),)


@pytest.mark.parametrize(("name", "error"), [("no.jsonl", FormatError), ("no.db", StoreError)])
def test_reading_creates_no_file(name: str, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match="no"):
        load_schemata(tmp_path / name)
    assert not (tmp_path / name).exists()
