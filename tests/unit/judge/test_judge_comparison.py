"""External signals beside the judge: their effect, and no effect without signals."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from agentguard.evals.splits import shuffle_record_labels
from agentguard.judge.embedded.features.table import build_step_table
from agentguard.judge.embedded.model import EmbeddedModel
from agentguard.judge.embedded.model_card import MODEL_FILE, get_default_folder
from agentguard.judge.embedded.model_io import dump_model, encode_model, load_model, parse_model
from agentguard.judge.embedded.ranker import Ranker, build_signal_model
from agentguard.judge.embedded.training import train_model
from agentguard.trajectory.model import Record
from tests.unit.judge.runs import group_chat

CHATS = [group_chat(i) for i in range(24)]


def telling(record: Record) -> np.ndarray:
    """Return the signals of an oracle that marks the gold step."""
    cause = record.annotation.root_cause
    assert cause is not None
    return np.array(
        [[2.0 if step == cause.step else -0.5] for step in build_step_table(record.trajectory).steps]
    )


@pytest.fixture(scope="module")
def deaf() -> EmbeddedModel:
    return train_model(CHATS)


@pytest.fixture(scope="module")
def heard() -> EmbeddedModel:
    return train_model(CHATS, signals=telling)


def specialist(model: EmbeddedModel) -> Ranker:
    ranker = model.specialists[0].ranker
    assert ranker is not None
    return ranker


def test_shipped_model_is_serialized_unchanged() -> None:
    data = (get_default_folder() / MODEL_FILE).read_bytes()
    assert dump_model(load_model()) == data
    assert b"beside" not in str(encode_model(load_model())[0]).encode()


def test_training_without_signals_gives_the_same_model(deaf: EmbeddedModel, heard: EmbeddedModel) -> None:
    for record in CHATS[:5]:
        one, other = (m.judge(record.trajectory, risk=0.1).step_probabilities for m in (deaf, heard))
        assert one.tolist() == other.tolist()


def test_informative_signals_are_used() -> None:
    dealt = shuffle_record_labels(CHATS, seed=0)
    heard = train_model(dealt, signals=telling)
    beside = specialist(heard).beside
    assert beside is not None
    assert beside.weights[0] > 0.05
    for record in dealt[:5]:
        cause = record.annotation.root_cause
        row = build_step_table(record.trajectory).steps.index(cause.step)  # type: ignore[union-attr, arg-type]
        quiet = heard.judge(record.trajectory, risk=0.1).step_probabilities
        loud = heard.judge(record.trajectory, risk=0.1, signals=telling(record)).step_probabilities
        assert loud[row] > quiet[row]
        assert loud.sum() == pytest.approx(1)


def test_contradicting_signals_get_no_weight() -> None:
    wrong = train_model(CHATS, signals=lambda record: -telling(record))
    assert specialist(wrong).beside.weights.tolist() == [0.0]  # type: ignore[union-attr]


def test_model_without_signal_weights_ignores_signals_by_default(deaf: EmbeddedModel) -> None:
    record = CHATS[0]
    plain = deaf.judge(record.trajectory, risk=0.1).step_probabilities
    assert (
        deaf.judge(record.trajectory, risk=0.1, signals=telling(record)).step_probabilities.tolist()
        == plain.tolist()
    )
    told = (
        deaf.with_signal_weights([1.0])
        .judge(record.trajectory, risk=0.1, signals=telling(record))
        .step_probabilities
    )
    assert told.tolist() != plain.tolist()


def test_learnt_weights_override_given_ones(heard: EmbeddedModel) -> None:
    assert specialist(heard.with_signal_weights([9.0])).beside is specialist(heard).beside


def test_signal_weights_are_stored_with_the_model(heard: EmbeddedModel) -> None:
    again = parse_model(dump_model(heard))
    assert dump_model(again) == dump_model(heard)
    record = CHATS[0]
    one, other = (m.judge(record.trajectory, risk=0.1, signals=telling(record)) for m in (heard, again))
    assert one.step_probabilities.tolist() == other.step_probabilities.tolist()


def test_empty_signal_changes_nothing() -> None:
    assert build_signal_model([0.5]).score(np.zeros((3, 1))).tolist() == [0.0, 0.0, 0.0]
    assert [f.name for f in fields(Ranker)][-1] == "beside"
