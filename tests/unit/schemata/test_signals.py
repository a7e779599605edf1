from __future__ import annotations

import numpy as np
import pytest

from agentguard.errors import ConfigError
from agentguard.judge.features.table import step_table
from agentguard.schemata.learn import detected, distilled, group_of, heard, learnt, portraits, signals_of
from agentguard.schemata.model import Portrait
from agentguard.schemata.signals import SchemaSignals, Sound
from tests.unit.judge.runs import group_chat
from tests.unit.schemata.made import KINDS, schema


def look(kind: str, step: int = 0) -> Portrait:
    return Portrait(text="\n".join(KINDS[kind]), traits={f"finding:{kind}": 1.0}, step=step)


def test_what_looks_like_a_failure_stands_out() -> None:
    said = signals_of([schema("loop")]).said([look("made_up"), look("loop"), look("ignored")])
    assert int(said.signal[:, 0].argmax()) == 1
    assert said.signal.shape == (3, 1)
    assert said.signal.mean() == pytest.approx(0, abs=1e-9)
    assert said.matches[1][0].schema.id == "loop-r1"


def test_what_looks_like_sound_steps_too_is_taken_off() -> None:
    schemata = [schema("loop"), schema("made_up", "r2")]
    sound = [Sound(portrait=look("loop"), group="other")]
    looks = [look("loop"), look("made_up"), look("ignored")]
    alone = signals_of(schemata, k=1).said(looks).signal[:, 0]
    beside = signals_of(schemata, k=1, sound=sound).said(looks).signal[:, 0]
    assert alone[0] == pytest.approx(alone[1], abs=1e-5)
    assert beside[1] > beside[0]


def test_questions_are_left_out_on_both_sides() -> None:
    sound = [Sound(portrait=look("loop"), group="How many boats?")]
    signals = signals_of([schema("loop", group="How many boats?")], sound=sound)
    said = signals.said([look("loop"), look("made_up")], leave_out_groups=["how many boats"])
    assert said.signal.tolist() == [[0.0], [0.0]]
    assert said.matches == ((), ())


def test_nothing_known_says_nothing() -> None:
    assert signals_of([]).said([look("loop")]).signal.tolist() == [[0.0]]
    assert signals_of([schema()]).said([]).signal.shape == (0, 1)


def test_at_least_one_schema_speaks() -> None:
    with pytest.raises(ConfigError, match="k is 0"):
        SchemaSignals(signals_of([]).index, k=0)


def test_rows_are_those_of_the_features() -> None:
    record = group_chat(1)
    held = portraits(record.trajectory, detected(record.trajectory))
    assert [one.step for one in held] == list(step_table(record.trajectory).steps)
    assert portraits(record.trajectory, detected(record.trajectory)) is held


def test_failures_give_schemata_and_the_steps_beside_them() -> None:
    records = [group_chat(i) for i in range(6)]
    schemata, sound = distilled(records)
    assert {run for one in schemata for run in one.provenance.runs} == {r.trajectory.id for r in records}
    rows = sum(len(step_table(r.trajectory).steps) for r in records)
    assert len(sound) == rows - len(records)


def test_a_training_run_is_not_compared_with_its_own_question() -> None:
    record = group_chat(0)
    alone = learnt([record])
    assert not heard(alone, record).any()
    others = learnt([record, *(group_chat(i) for i in range(1, 8))])
    without = learnt([group_chat(i) for i in range(1, 8)])
    if group_of(record) not in {group_of(group_chat(i)) for i in range(1, 8)}:
        assert np.allclose(heard(others, record), heard(without, record))
