from __future__ import annotations

from dataclasses import replace

import pytest

from agentguard.errors import EvaluationError
from agentguard.evals.datasets.dataset import Dataset
from agentguard.evals.leave_one_system_out import Share, evaluate_leave_one_system_out
from agentguard.trajectory.model import (
    Annotation,
    Observation,
    Record,
    RootCause,
    Source,
    Step,
    ToolCall,
    Trajectory,
)

COUNT = 24


def build_record(system: str, number: int, *, cause: int | None = None) -> Record:
    """Build a run of one agent; a run that failed repeats a call that fails."""
    failed = number % 2 == 0
    calls = 6 if failed else 2 + number % 3
    steps = [
        Step(index=0, source=Source.USER, agent="user", content=f"Find the record {number} of {system}.")
    ]
    for index in range(1, calls + 1):
        call = ToolCall(id=f"c{index}", name=f"{system}_query", arguments={"id": 1 if failed else index})
        content = "Error: no such table" if failed else f"row {index}: value {index * 7}"
        steps.append(
            Step(
                index=index,
                source=Source.AGENT,
                agent="agent",
                tool_calls=(call,),
                observations=(Observation(content=content, call_id=call.id, is_error=failed),),
            )
        )
    return Record(
        trajectory=Trajectory(
            id=f"{system}-{number}", format="test", task=f"Find the record {number}.", steps=tuple(steps)
        ),
        annotation=Annotation(
            failed=failed,
            group=f"{system} {number}",
            root_cause=None if cause is None or not failed else RootCause(step=cause, agent="agent"),
        ),
    )


def build_dataset(system: str, *, cause: int | None = None) -> Dataset:
    return Dataset(name=system, records=tuple(build_record(system, n, cause=cause) for n in range(COUNT)))


def test_leave_one_system_out_scores_every_source() -> None:
    result = evaluate_leave_one_system_out(
        [build_dataset("a", cause=1), build_dataset("b"), build_dataset("c")]
    )
    assert [row.name for row in result.rows] == ["a", "b", "c"]
    for row in result.rows:
        assert (row.runs, row.failed, row.passed) == (COUNT, COUNT // 2, COUNT // 2)
        assert row.relative is not None
        assert row.single is not None
        assert row.relative.auroc == 1.0
        assert row.relative.false_causes.value == 0.0
    assert result.rows[0].steps is not None
    assert result.rows[0].steps.accuracy.n == COUNT // 2
    assert set(result.rows[0].steps.baselines) == {"two_line", "last_error", "first_finding", "last_step"}
    assert result.rows[1].steps is None
    assert result.as_dict()["sources"][1]["steps"] is None


def test_leave_one_system_out_trains_without_the_scored_path(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentguard.evals import leave_one_system_out

    systems: list[set[str]] = []
    fit = leave_one_system_out.fit_transferable_model

    def record_systems(examples):  # type: ignore[no-untyped-def]
        systems.append({example.system for example in examples})
        return fit(examples)

    monkeypatch.setattr(leave_one_system_out, "fit_transferable_model", record_systems)
    evaluate_leave_one_system_out([build_dataset("a"), build_dataset("b"), build_dataset("c")])
    assert systems == [{"b", "c"}, {"a", "c"}, {"a", "b"}]


def test_leave_one_system_out_excludes_questions_that_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentguard.evals import leave_one_system_out

    ids: list[set[str]] = []
    fit = leave_one_system_out.fit_transferable_model

    def record_ids(examples):  # type: ignore[no-untyped-def]
        ids.append({example.record.trajectory.id for example in examples})
        return fit(examples)

    monkeypatch.setattr(leave_one_system_out, "fit_transferable_model", record_ids)
    first, second = build_dataset("a"), build_dataset("b")
    shared = replace(
        first.records[0],
        annotation=replace(first.records[0].annotation, group=second.records[3].annotation.group),
    )
    evaluate_leave_one_system_out([replace(first, records=(shared, *first.records[1:])), second])
    assert ids[0] == {f"b-{n}" for n in range(COUNT) if n != 3}


def test_leave_one_system_out_with_one_path_is_refused() -> None:
    with pytest.raises(EvaluationError, match="at least two paths"):
        evaluate_leave_one_system_out([build_dataset("a")])


def test_leave_one_system_out_without_annotations_is_refused() -> None:
    plain = [
        replace(data, records=tuple(replace(r, annotation=Annotation()) for r in data.records))
        for data in (build_dataset("a"), build_dataset("b"))
    ]
    with pytest.raises(EvaluationError, match="annotated runs"):
        evaluate_leave_one_system_out(plain)


def test_share_of_nothing_is_nan() -> None:
    assert Share.of([]).value != Share.of([]).value
    assert Share.of([True, False]).interval[0] < 0.5 < Share.of([True, False]).interval[1]
