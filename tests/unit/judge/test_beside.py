"""Signals from outside the judge: what they change, and that nothing changes without them."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from agentguard.evals.splits import shuffled
from agentguard.judge.coding import encode
from agentguard.judge.features.table import step_table
from agentguard.judge.model import Model
from agentguard.judge.ranker import Ranker, listening
from agentguard.judge.store import FILE, default_folder, dump, load, parse
from agentguard.judge.train import train
from agentguard.trajectory.model import Record
from tests.unit.judge.runs import group_chat

CHATS = [group_chat(i) for i in range(24)]


def telling(record: Record) -> np.ndarray:
    """Signals of an oracle: the gold step stands out."""
    cause = record.annotation.root_cause
    assert cause is not None
    return np.array([[2.0 if step == cause.step else -0.5] for step in step_table(record.trajectory).steps])


@pytest.fixture(scope="module")
def deaf() -> Model:
    return train(CHATS)


@pytest.fixture(scope="module")
def heard() -> Model:
    return train(CHATS, signals=telling)


def specialist(model: Model) -> Ranker:
    ranker = model.specialists[0].ranker
    assert ranker is not None
    return ranker


def test_the_model_that_ships_is_written_as_it_was() -> None:
    data = (default_folder() / FILE).read_bytes()
    assert dump(load()) == data
    assert b"beside" not in str(encode(load())[0]).encode()


def test_without_signals_the_same_model_is_learnt(deaf: Model, heard: Model) -> None:
    for record in CHATS[:5]:
        one, other = (m.judge(record.trajectory, risk=0.1).steps for m in (deaf, heard))
        assert one.tolist() == other.tolist()


def test_signals_that_tell_what_features_do_not_are_heard() -> None:
    dealt = shuffled(CHATS, seed=0)
    heard = train(dealt, signals=telling)
    beside = specialist(heard).beside
    assert beside is not None
    assert beside.weights[0] > 0.05
    for record in dealt[:5]:
        cause = record.annotation.root_cause
        row = step_table(record.trajectory).steps.index(cause.step)  # type: ignore[union-attr, arg-type]
        quiet = heard.judge(record.trajectory, risk=0.1).steps
        loud = heard.judge(record.trajectory, risk=0.1, signals=telling(record)).steps
        assert loud[row] > quiet[row]
        assert loud.sum() == pytest.approx(1)


def test_signals_that_speak_against_the_gold_step_get_no_weight() -> None:
    wrong = train(CHATS, signals=lambda record: -telling(record))
    assert specialist(wrong).beside.weights.tolist() == [0.0]  # type: ignore[union-attr]


def test_a_model_trained_without_ignores_them_unless_told_what_they_weigh(deaf: Model) -> None:
    record = CHATS[0]
    plain = deaf.judge(record.trajectory, risk=0.1).steps
    assert deaf.judge(record.trajectory, risk=0.1, signals=telling(record)).steps.tolist() == plain.tolist()
    told = deaf.listens([1.0]).judge(record.trajectory, risk=0.1, signals=telling(record)).steps
    assert told.tolist() != plain.tolist()


def test_learnt_weights_outrank_given_ones(heard: Model) -> None:
    assert specialist(heard.listens([9.0])).beside is specialist(heard).beside


def test_it_is_stored_with_the_model(heard: Model) -> None:
    again = parse(dump(heard))
    assert dump(again) == dump(heard)
    record = CHATS[0]
    one, other = (m.judge(record.trajectory, risk=0.1, signals=telling(record)) for m in (heard, again))
    assert one.steps.tolist() == other.steps.tolist()


def test_a_signal_of_nothing_changes_nothing() -> None:
    assert listening([0.5]).score(np.zeros((3, 1))).tolist() == [0.0, 0.0, 0.0]
    assert [f.name for f in fields(Ranker)][-1] == "beside"
