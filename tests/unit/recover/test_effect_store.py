"""Contract of all effect stores; the database store also persists across processes."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentguard.recover.effect_store import (
    Effect,
    EffectState,
    EffectStore,
    InMemoryEffectStore,
    SqlEffectStore,
)
from agentguard.store import Store
from agentguard.store.db.rows import SnapshotRow

EFFECT = Effect(key="k", occurrence=0, tool="book", arguments={"seat": 4}, step=3)
Opener = Callable[[str], EffectStore]


@pytest.fixture(params=["memory", "store"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Open the effect store of a run; the same run has the same content."""
    if request.param == "memory":
        books: dict[str, EffectStore] = {}
        yield lambda run: books.setdefault(run, InMemoryEffectStore())
        return
    with Store.open(tmp_path / "s.db") as store:
        yield lambda run: SqlEffectStore(store, run)


def test_claim_is_granted_once(opened: Opener) -> None:
    assert opened("r").claim(EFFECT) is None
    there = opened("r").claim(EFFECT)
    assert there is not None
    assert (there.state, there.arguments, there.step) == (EffectState.ATTEMPTED, {"seat": 4}, 3)
    assert opened("other").claim(EFFECT) is None, "another run is another book"


def test_rows_written_before_a_claim_are_durable_when_it_returns(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store.open(path) as store, contextlib.closing(sqlite3.connect(path)) as other:
        for step in range(5):
            store.write(SnapshotRow(run_id="r", step=step, state=b"at 3"))
            SqlEffectStore(store, "r").claim(replace(EFFECT, occurrence=step))
            (count,) = other.execute("select count(*) from agentguard_snapshots").fetchone()
            assert count == step + 1


def test_done_effect_has_its_result(opened: Opener) -> None:
    book = opened("r")
    book.claim(EFFECT)
    book.settle(replace(EFFECT, state=EffectState.DONE, result="seat 4 is yours"))
    again = opened("r").claim(replace(EFFECT, step=9))
    assert again is not None
    assert (again.state, again.result) == (EffectState.DONE, "seat 4 is yours")


def test_ambiguous_effect_is_kept_until_it_is_reconciled(opened: Opener) -> None:
    book = opened("r")
    book.claim(EFFECT)
    for state, result in [(EffectState.AMBIGUOUS, ""), (EffectState.RECONCILED, "seat 4 is yours")]:
        book.settle(replace(EFFECT, state=state, result=result))
        again = opened("r").claim(EFFECT)
        assert again is not None
        assert (again.state, again.result) == (state, result)


@pytest.mark.parametrize("state", [EffectState.FAILED, EffectState.COMPENSATED])
def test_failed_or_undone_effect_can_be_claimed_again(opened: Opener, state: EffectState) -> None:
    book = opened("r")
    for turn in range(3):
        assert book.claim(EFFECT) is None, f"attempt {turn}"
        if state is EffectState.COMPENSATED:
            book.settle(replace(EFFECT, state=EffectState.DONE, result="done"))
        book.settle(replace(EFFECT, state=state))
        assert [effect.state for effect in opened("r").effects()] == [state]
        book = opened("r")
    assert book.claim(EFFECT) is None
    assert book.claim(EFFECT) is not None


def test_effects_are_ordered_by_claim(opened: Opener) -> None:
    book = opened("r")
    for place in range(4):
        book.claim(replace(EFFECT, key=f"k{place}"))
    book.settle(replace(EFFECT, key="k2", state=EffectState.DONE, result="two"))
    assert [(e.key, e.state.value) for e in opened("r").effects()] == [
        ("k0", "attempted"),
        ("k1", "attempted"),
        ("k2", "done"),
        ("k3", "attempted"),
    ]
