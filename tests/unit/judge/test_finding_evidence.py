from __future__ import annotations

import numpy as np
import pytest

from agentguard.detect.base import Finding
from agentguard.judge.embedded.features.table import StepTable, build_step_table
from agentguard.judge.embedded.finding_evidence import find_cause_row, weight_by_findings
from agentguard.judge.embedded.model import sharpen_steps
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Trajectory


def build_table(*calls: bool) -> StepTable:
    """Build the table of a run: a question, and for each flag a turn with a call, else with text."""
    steps = [Step(index=0, source=Source.USER, agent="user", content="How many files are there?")]
    for index, is_call in enumerate(calls, start=1):
        call = ToolCall(id=str(index), name="list_files", arguments={"page": index})
        steps.append(
            Step(
                index=index,
                source=Source.AGENT,
                agent="clerk",
                content="" if is_call else f"I think about page {index} of the files.",
                tool_calls=(call,) if is_call else (),
                observations=(Observation(content="A file.", call_id=str(index)),) if is_call else (),
            )
        )
    return build_step_table(Trajectory(id="r", format="test", task="Count the files.", steps=tuple(steps)))


def build_finding(detector: str, step: int, probability: float = 0.6, repaired: int | None = None) -> Finding:
    return Finding(
        detector=detector,
        step=step,
        codes=("mast:step_repetition",),
        probability=probability,
        message="m",
        recovered_after=repaired,
    )


def test_repetition_is_evidence_for_its_first_occurrence() -> None:
    table = build_table(True, True, True, True)
    assert find_cause_row(table, build_finding("exact_loop", 3)) == 1
    assert find_cause_row(table, build_finding("exact_loop", 1)) == 0
    assert find_cause_row(table, build_finding("unknown_tool", 3)) == 2
    assert find_cause_row(table, build_finding("unknown_tool", 0)) is None


def test_repeated_call_is_traced_past_turns_without_a_call() -> None:
    table = build_table(True, False, True, False)
    assert find_cause_row(table, build_finding("exact_loop", 3)) == 0
    assert find_cause_row(table, build_finding("repeated_plan", 4)) == 1


def test_weight_by_findings_prefers_the_earliest_and_counts_an_episode_once() -> None:
    table = build_table(*[True] * 8)
    even = np.full(8, 1 / 8)
    first = build_finding("unknown_tool", 2)
    early = weight_by_findings(even, table, [build_finding("schema_violation", 6), first])
    assert early.argmax() == 1
    assert early[5] > 1.5 * early[0]
    again = weight_by_findings(even, table, [first, build_finding("unknown_tool", 4)])
    assert again == pytest.approx(weight_by_findings(even, table, [first]))


def test_weight_by_findings_counts_a_repaired_fault_by_its_probability() -> None:
    table = build_table(*[True] * 4)
    even = np.full(4, 1 / 4)
    repaired = weight_by_findings(even, table, [build_finding("tool_error", 2, 0.24, repaired=3)])
    assert repaired.argmax() == 1
    assert weight_by_findings(even, table, [build_finding("tool_error", 2, 0.1)]) == pytest.approx(even)


@pytest.mark.parametrize("count", [2, 10, 100])
def test_sharpen_steps_keeps_the_order_and_sharpens_long_runs_more(count: int) -> None:
    ranking = np.linspace(1, 2, count)
    ranking /= ranking.sum()
    sharp = sharpen_steps(ranking, 0.3)
    assert sharp.sum() == pytest.approx(1)
    assert (np.diff(sharp) > 0).all()
    assert np.log(sharp[-1] / sharp[0]) == pytest.approx(0.3 * np.log(count) * np.log(2), abs=1e-6)


def test_answer_that_ignores_an_error_is_the_fault_and_a_further_call_is_a_consequence() -> None:
    table = build_table(True, True, False)
    assert find_cause_row(table, build_finding("tool_error_ignored", 2)) == 0
    assert find_cause_row(table, build_finding("tool_error_ignored", 3)) == 2
