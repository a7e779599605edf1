"""Both keeps keep to one contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentguard.errors import FormatError, StoreError
from agentguard.schemata.keep import Keep, SchemaFile, SchemaTable, opened, stored
from agentguard.schemata.model import Origin, Status
from agentguard.store.rows import SchemaRow
from agentguard.store.store import Store
from tests.unit.schemata.made import schema

Again = Callable[[], Keep]


@pytest.fixture(params=["file", "table"])
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Again]:
    """Makes the keep anew over the same place, as another process would."""
    if request.param == "file":
        yield lambda: SchemaFile(tmp_path / "deep" / "schemata.jsonl")
        return
    stores: list[Store] = []

    def open_() -> Keep:
        for held in stores:
            held.close()
        stores.append(Store.open(tmp_path / "s.db"))
        return SchemaTable(stores[-1])

    yield open_
    for held in stores:
        held.close()


FULL = replace(
    schema("made_up", "r9", codes=("mast:x",), origin=Origin.INJECTED, correction="Ask for it."),
    context=("Nothing had been run before.",),
    heuristics=("It has no source.",),
    module="memory",
    version=3,
    support=4,
    confirmed=2,
    refuted=1,
    used=7,
    status=Status.RETIRED,
    created_at=1.5,
    updated_at=2.5,
    used_at=3.5,
)


def test_nothing_is_there_at_first(again: Again) -> None:
    assert again().load() == ()


def test_what_was_put_is_loaded_whole_and_by_id(again: Again) -> None:
    again().put([schema("made_up"), FULL, schema("loop")])
    assert again().load() == (schema("loop"), schema("made_up"), FULL)


def test_what_is_put_later_replaces_what_was_before(again: Again) -> None:
    keep = again()
    keep.put([schema("loop"), schema("made_up")])
    newer = replace(schema("loop"), version=2, used=5)
    keep.put([newer])
    counted = replace(newer, used=6)  # a count alone does not make a new version
    keep.put([counted])
    assert again().load() == (counted, schema("made_up"))


def test_what_is_forgotten_stays_away_until_it_is_put_again(again: Again) -> None:
    keep = again()
    keep.put([schema("loop"), schema("made_up")])
    assert len(keep.load()) == 2
    keep.forget(["loop-r1", "nobody"])
    assert again().load() == (schema("made_up"),)
    keep = again()
    keep.put([schema("loop")])
    assert keep.load() == (schema("loop"), schema("made_up"))


def test_forgetting_where_nothing_is_does_nothing(again: Again) -> None:
    again().forget(["nobody"])
    assert again().load() == ()


def test_a_file_that_is_broken_says_where(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    SchemaFile(file).put([schema()])
    file.write_bytes(file.read_bytes() + b'{"id": 3}\n')
    with pytest.raises(FormatError, match=r"s\.jsonl:2, field id"):
        SchemaFile(file).load()


def test_a_row_that_is_no_schema_says_which(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        store.write(SchemaRow(id="bad", data={"id": "bad"}))
        with pytest.raises(FormatError, match="schema bad of the store"):
            SchemaTable(store).load()


def test_tenants_do_not_see_each_other(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        SchemaTable(store, tenant="a").put([schema("loop")])
        SchemaTable(store, tenant="b").put([schema("made_up")])
        assert SchemaTable(store, tenant="a").load() == (schema("loop"),)


@pytest.mark.parametrize("name", ["s.jsonl", "s.db", "s.sqlite"])
def test_a_place_is_a_file_or_a_database_by_its_name(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    with opened(place) as keep:
        assert isinstance(keep, SchemaFile) is (name == "s.jsonl")
        keep.put([schema()])
    assert stored(place) == (schema(),)


def test_the_default_place_is_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGUARD_STORE", str(tmp_path / "mine.db"))
    with opened(None) as keep:
        keep.put([schema()])
    assert stored(None) == (schema(),)


@pytest.mark.parametrize(("name", "error"), [("no.jsonl", FormatError), ("no.db", StoreError)])
def test_reading_makes_no_place(name: str, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match="no"):
        stored(tmp_path / name)
    assert not (tmp_path / name).exists()
