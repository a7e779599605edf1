from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from agentguard.cli.diagnosis_text import DiagnosisView, render_diagnosis
from agentguard.cli.run_summary import RunSummary
from agentguard.detect.base import Finding
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.trajectory.model import Source, Step, Trajectory
from agentguard.verdict import Verdict

RUN = Trajectory(
    id="r", format="test", task="t", steps=(Step(index=0, source=Source.AGENT, agent="Ada", content="Hi."),)
)
SUPPORTED = Hypothesis(
    step=0, agent="Ada", module=None, codes=("mast:step_repetition",), probability=0.5, correction="Stop it."
)
CANDIDATE = Hypothesis(step=0, agent="Ada", probability=0.24, reason="a reason")
UNSUPPORTED = Hypothesis(step=0, agent="Ada", module=None, codes=(), probability=0.5, reason="a reason")


def diagnose(verdict: Verdict, hypothesis: Hypothesis) -> Diagnosis:
    return Diagnosis(
        trajectory_id="r", method="m", verdict=verdict, probability=0.6, hypotheses=(hypothesis,)
    )


@pytest.mark.parametrize(
    ("verdict", "hypothesis", "cause", "kind"),
    [
        (Verdict.FAILED, SUPPORTED, "step 0 · Ada", "Steps repeated"),
        (Verdict.FAILED, UNSUPPORTED, "likely step 0 · Ada", "no evidence"),
        (Verdict.FAILED, CANDIDATE, "candidate step 0 · Ada", "no evidence"),
        (Verdict.UNDECIDED, SUPPORTED, "likely step 0 · Ada", "Steps repeated"),
        (Verdict.UNDECIDED, UNSUPPORTED, "likely step 0 · Ada", "no evidence"),
        (Verdict.NO_FAILURE_FOUND, SUPPORTED, "", ""),
    ],
)
def test_table_row_shows_the_likeliest_step_of_undecided_runs(
    verdict: Verdict, hypothesis: Hypothesis, cause: str, kind: str
) -> None:
    row = RunSummary.from_diagnosis(RUN, diagnose(verdict, hypothesis), None)
    assert (row.step_label, row.cause) == (cause, kind)


def test_report_names_the_detectors_of_the_root_cause() -> None:
    console = Console(width=100)
    hypothesis = replace(SUPPORTED, detectors=("exact_loop", "tool_error"))
    with console.capture() as capture:
        render_diagnosis(console, RUN, diagnose(Verdict.FAILED, hypothesis), DiagnosisView())
    assert any(
        line.split() == ["detector", "exact_loop,", "tool_error"] for line in capture.get().splitlines()
    )


def test_report_names_no_root_cause_without_support() -> None:
    console = Console(width=100, record=True, quiet=False)
    with console.capture() as capture:
        render_diagnosis(console, RUN, diagnose(Verdict.FAILED, UNSUPPORTED), DiagnosisView())
    text = capture.get()
    assert "likely step" in text
    assert "root cause" not in text
    assert "suggested fix" not in text


def test_hidden_weak_findings_have_a_label() -> None:
    console = Console(width=100)
    finding = Finding(
        detector="tool_error", step=0, codes=("mast:step_repetition",), probability=0.2, message="m"
    )
    with console.capture() as capture:
        diagnosis = replace(diagnose(Verdict.FAILED, SUPPORTED), findings=(finding, finding))
        render_diagnosis(console, RUN, diagnosis, DiagnosisView())
    (line,) = [line for line in capture.get().splitlines() if "weak" in line]
    assert line.split()[:4] == ["findings", "2", "weak", "findings;"]
