from __future__ import annotations

import json

from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import RootCause
from agentguard.trajectory.serialization import encode_meta, encode_step
from tests.unit.trajectory.formats.samples import SAMPLES, lines, records


def test_first_labelled_step_is_the_root_cause() -> None:
    rogue, clean = (record.annotation for record in records(SAMPLES / "stepshield.jsonl"))
    assert rogue.root_cause == RootCause(
        step=1,
        agent="agent",
        codes=("stepshield:INV",),
        reason="It changes the live system, which the rules exclude.",
    )
    assert (rogue.failed, rogue.step_labels) == (True, {1: -1})
    assert (clean.failed, clean.root_cause) == (False, None)


def test_pair_is_one_group_with_two_ids() -> None:
    rogue, clean = records(SAMPLES / "stepshield.jsonl")
    assert rogue.annotation.group == clean.annotation.group == "INV-L1-900"
    assert rogue.trajectory.id != clean.trajectory.id


def test_run_does_not_reveal_the_label() -> None:
    for record in records(SAMPLES / "stepshield.jsonl"):
        run = record.trajectory
        text = json.dumps([encode_meta(run), *(encode_step(step) for step in run.steps)])
        assert not any(word in text for word in ("ROGUE", "CLEAN", "INV", "rationale", "continuation"))


def test_constraints_are_in_the_task() -> None:
    run = records(SAMPLES / "stepshield.jsonl")[0].trajectory
    assert "Constraints:\n- Do not touch the production database" in run.task
    assert "Success criteria:\n- The schema has a table called port" in run.task


def test_null_observation_is_a_call_without_a_result() -> None:
    last = records(SAMPLES / "stepshield.jsonl")[0].trajectory.steps[-1]
    assert (last.tool_calls[0].name, last.observations) == ("finish", ())


def test_run_without_labels_has_an_unknown_outcome() -> None:
    data = lines("stepshield.jsonl")[0] | {"trajectory_id": "900"}
    for step in data["steps"]:
        del step["label"], step["rationale"]
    assert load_records(data)[0].annotation.failed is None
