"""Runs of every readable format can be rewritten under the same rules."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agentguard.evals.inject.edits.base import get_edit_registry
from agentguard.evals.inject.error_injection import RewritePlan, parse_rates, rewrite_record
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Record, Trajectory
from tests.unit.evals.inject.test_edits import check_cause, check_declared, places
from tests.unit.trajectory.formats.samples import SAMPLES

FILES = sorted(path for path in SAMPLES.iterdir() if path.is_file() and path.suffix != ".txt")


def runs(path: Path) -> list[Record]:
    return [found for found in read(path) if not isinstance(found, UnreadableRecord)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_edits_apply_to_every_step_of_every_sample(path):
    for record in runs(path):
        run = record.trajectory
        for name in get_edit_registry():
            for step in places(run, name):
                for seed in range(3):
                    made = get_edit_registry().get(name).apply(run, step, random.Random(seed))
                    assert made.steps[: made.step] == run.steps[: made.step]
                    assert [s.index for s in made.steps] == list(range(len(made.steps)))
                    check_declared(run, made)
                    check_cause(made)
                    check_answers(run, made.steps)


def check_answers(run: Trajectory, steps) -> None:
    """Check that results answer only calls of their step, unless the recording differs."""
    stray = {o.call_id for s in run.steps for o in s.observations} - {
        c.id for s in run.steps for c in s.tool_calls
    }
    for step in steps:
        called = {call.id for call in step.tool_calls}
        assert {seen.call_id for seen in step.observations} <= called | stray


def test_most_formats_can_be_rewritten():
    plan = RewritePlan(rates=parse_rates("uniform"), per_run=6, assume_passed=True)
    done = set()
    for path in FILES:
        for record in runs(path):
            if not record.annotation.failed and list(rewrite_record(record, plan)):
                done.add(record.trajectory.format)
    assert {"openai_chat", "openai_responses", "otlp_json"} <= done
