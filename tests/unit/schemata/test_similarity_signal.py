from __future__ import annotations

import numpy as np
import pytest

from agentguard.errors import ConfigError
from agentguard.judge.embedded.features.table import build_step_table
from agentguard.schemata.model import Profile
from agentguard.schemata.signal_trainer import (
    build_signals,
    compute_training_signals,
    detect_cached,
    distill_records,
    profile_cached,
    select_group,
    train_signals,
)
from agentguard.schemata.similarity_signal import NegativeExample, SchemaSignals
from tests.unit.judge.runs import group_chat
from tests.unit.schemata.builders import KINDS, schema


def look(kind: str, step: int = 0) -> Profile:
    return Profile(text="\n".join(KINDS[kind]), traits={f"finding:{kind}": 1.0}, step=step)


def test_step_similar_to_a_failure_has_high_signal() -> None:
    said = build_signals([schema("loop")]).compute([look("made_up"), look("loop"), look("ignored")])
    assert int(said.signal[:, 0].argmax()) == 1
    assert said.signal.shape == (3, 1)
    assert said.signal.mean() == pytest.approx(0, abs=1e-9)
    assert said.matches[1][0].schema.id == "loop-r1"


def test_similarity_to_sound_steps_is_subtracted() -> None:
    schemata = [schema("loop"), schema("made_up", "r2")]
    sound = [NegativeExample(profile=look("loop"), group="other")]
    looks = [look("loop"), look("made_up"), look("ignored")]
    alone = build_signals(schemata, k=1).compute(looks).signal[:, 0]
    beside = build_signals(schemata, k=1, negatives=sound).compute(looks).signal[:, 0]
    assert alone[0] == pytest.approx(alone[1], abs=1e-5)
    assert beside[1] > beside[0]


def test_same_groups_are_excluded_on_both_sides() -> None:
    sound = [NegativeExample(profile=look("loop"), group="How many boats?")]
    signals = build_signals([schema("loop", group="How many boats?")], negatives=sound)
    said = signals.compute([look("loop"), look("made_up")], excluded_groups=["how many boats"])
    assert said.signal.tolist() == [[0.0], [0.0]]
    assert said.matches == ((), ())


def test_empty_index_gives_no_signal() -> None:
    assert build_signals([]).compute([look("loop")]).signal.tolist() == [[0.0]]
    assert build_signals([schema()]).compute([]).signal.shape == (0, 1)


def test_number_of_neighbours_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="k is 0"):
        SchemaSignals(build_signals([]).index, k=0)


def test_rows_match_the_feature_table() -> None:
    record = group_chat(1)
    held = profile_cached(record.trajectory, detect_cached(record.trajectory))
    assert [one.step for one in held] == list(build_step_table(record.trajectory).steps)
    assert profile_cached(record.trajectory, detect_cached(record.trajectory)) is held


def test_failures_give_schemata_and_their_sound_steps() -> None:
    records = [group_chat(i) for i in range(6)]
    schemata, sound = distill_records(records)
    assert {run for one in schemata for run in one.provenance.runs} == {r.trajectory.id for r in records}
    rows = sum(len(build_step_table(r.trajectory).steps) for r in records)
    assert len(sound) == rows - len(records)


def test_training_run_is_not_compared_with_its_own_group() -> None:
    record = group_chat(0)
    alone = train_signals([record])
    assert not compute_training_signals(alone, record).any()
    others = train_signals([record, *(group_chat(i) for i in range(1, 8))])
    without = train_signals([group_chat(i) for i in range(1, 8)])
    if select_group(record) not in {select_group(group_chat(i)) for i in range(1, 8)}:
        assert np.allclose(
            compute_training_signals(others, record), compute_training_signals(without, record)
        )
