from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agentguard.detect.detection import detect
from agentguard.judge.embedded.features.run_signals import RUN_SIGNAL_NAMES
from agentguard.judge.embedded.relative_outcome import LabelledBatch, fit_relative_outcome
from agentguard.judge.embedded.rule_outcome import RuleOutcomeModel
from agentguard.judge.embedded.training import build_untrained_model
from agentguard.localize.base import Diagnosis, OutcomeBasis
from agentguard.localize.embedded import EmbeddedLocalizer
from agentguard.localize.run_comparison import compare_runs
from agentguard.runtime.run_diagnosis import apply_known_outcome
from agentguard.trajectory.model import (
    Annotation,
    Observation,
    Record,
    Source,
    Step,
    ToolCall,
    Trajectory,
)
from agentguard.verdict import Verdict


def build_run(number: int, *, errors: int = 0, calls: int = 3) -> Trajectory:
    steps = [Step(index=0, source=Source.USER, agent="user", content=f"Find record {number}.")]
    for index in range(1, calls + errors + 1):
        is_error = index > calls
        call = ToolCall(id=f"c{index}", name="query", arguments={"id": 1 if is_error else index * number})
        steps.append(
            Step(
                index=index,
                source=Source.AGENT,
                agent="agent",
                tool_calls=(call,),
                observations=(
                    Observation(
                        content="Error: no such table" if is_error else f"row {index}-{number}",
                        call_id=call.id,
                        is_error=is_error,
                    ),
                ),
            )
        )
    return Trajectory(id=f"run-{number}", format="test", task="Find a record.", steps=tuple(steps))


@pytest.fixture
def localizer() -> EmbeddedLocalizer:
    rng = np.random.default_rng(0)
    failed = np.arange(60) % 2 == 0
    signals = rng.normal(size=(60, len(RUN_SIGNAL_NAMES))) + 3 * failed[:, None]
    batch = LabelledBatch(signals, failed, np.zeros(60, dtype=bool))
    model = replace(
        build_untrained_model(),
        rules=RuleOutcomeModel(rules=(), precision=0.9, slope=1.0, intercept=0.0),
        relative=fit_relative_outcome([batch, batch]),
    )
    return EmbeddedLocalizer.from_model(model)


def diagnose(localizer: EmbeddedLocalizer, runs: list[Trajectory]) -> list[tuple[Trajectory, Diagnosis]]:
    diagnosed = []
    for run in runs:
        findings = detect(run).findings
        diagnosed.append((run, replace(localizer.locate(run, findings), findings=tuple(findings))))
    return diagnosed


def test_compare_runs_calls_the_unusual_run_failed(localizer: EmbeddedLocalizer) -> None:
    runs = [build_run(number) for number in range(1, 24)] + [build_run(24, errors=6)]
    compared = list(compare_runs(diagnose(localizer, runs), localizer))
    assert [run.id for run, _ in compared] == [run.id for run in runs]
    last = compared[-1][1]
    assert last.basis is OutcomeBasis.OTHER_RUNS
    assert last.verdict is Verdict.FAILED
    assert last.hypotheses
    assert any("unusual for this agent" in note and "6 tool errors" in note for note in last.notes)
    assert last.probability > max(diagnosis.probability for _, diagnosis in compared[:-1])


def test_compare_runs_with_references_compares_a_single_run(localizer: EmbeddedLocalizer) -> None:
    references = diagnose(localizer, [build_run(number) for number in range(1, 24)])
    (single,) = diagnose(localizer, [build_run(24, errors=6)])
    ((run, diagnosis),) = compare_runs([single], localizer, references=references)
    assert run.id == single[0].id
    assert (diagnosis.verdict, diagnosis.basis) == (Verdict.FAILED, OutcomeBasis.OTHER_RUNS)


def test_compare_runs_with_too_few_runs_keeps_the_rules(localizer: EmbeddedLocalizer) -> None:
    diagnosed = diagnose(localizer, [build_run(number, errors=number % 2) for number in range(1, 12)])
    assert list(compare_runs(diagnosed, localizer)) == diagnosed


def test_compare_runs_keeps_a_known_outcome(localizer: EmbeddedLocalizer) -> None:
    diagnosed = diagnose(localizer, [build_run(number, errors=number // 20) for number in range(1, 31)])
    diagnosed[0] = (diagnosed[0][0], apply_known_outcome(diagnosed[0][1], failed=True))
    compared = list(compare_runs(diagnosed, localizer))
    assert compared[0] == diagnosed[0]
    assert compared[1][1].basis is OutcomeBasis.OTHER_RUNS


def test_compare_runs_keeps_a_failure_by_rules(localizer: EmbeddedLocalizer) -> None:
    diagnosed = diagnose(localizer, [build_run(number, errors=number // 20) for number in range(1, 31)])
    failed = replace(diagnosed[0][1], verdict=Verdict.FAILED, probability=0.9)
    assert failed.basis is OutcomeBasis.RULES
    diagnosed[0] = (diagnosed[0][0], failed)
    compared = list(compare_runs(diagnosed, localizer))
    assert compared[0][1] == failed
    assert compared[1][1].basis is OutcomeBasis.OTHER_RUNS


def test_compare_runs_separates_agents(localizer: EmbeddedLocalizer) -> None:
    runs = [build_run(number) for number in range(1, 16)]
    others = [replace(build_run(number), format="other") for number in range(16, 31)]
    diagnosed = diagnose(localizer, [*runs, *others])
    assert list(compare_runs(diagnosed, localizer)) == diagnosed


def test_apply_known_outcome_of_a_passed_run_drops_the_hypotheses(localizer: EmbeddedLocalizer) -> None:
    ((_, diagnosis),) = diagnose(localizer, [build_run(1, errors=2)])
    known = apply_known_outcome(diagnosis, failed=False)
    assert (known.verdict, known.probability, known.hypotheses) == (Verdict.NO_FAILURE_FOUND, 0.0, ())
    assert known.basis is OutcomeBasis.KNOWN
    assert apply_known_outcome(diagnosis, failed=True).hypotheses == diagnosis.hypotheses


def test_learn_agents_makes_an_outcome_model_of_the_agent(localizer: EmbeddedLocalizer) -> None:
    labelled = [
        Record(
            trajectory=build_run(number, errors=4 * (number % 2)),
            annotation=Annotation(failed=number % 2 == 1, group=str(number)),
        )
        for number in range(1, 41)
    ]
    learnt = localizer.learn_agents(labelled)
    failed, passed = (learnt.locate(run, ()) for run in (build_run(50, errors=4), build_run(51)))
    assert failed.basis is passed.basis is OutcomeBasis.LABELLED_RUNS
    assert failed.probability > 0.5 > passed.probability
    other = learnt.locate(
        replace(
            build_run(52),
            steps=tuple(
                replace(step, tool_calls=tuple(replace(call, name="other") for call in step.tool_calls))
                for step in build_run(52).steps
            ),
        ),
        (),
    )
    assert other.basis is OutcomeBasis.RULES
    assert learnt.model.relative is localizer.model.relative
