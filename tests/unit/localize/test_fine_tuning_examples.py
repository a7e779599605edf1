"""Examples for fine-tuning a judge: its own prompts, with the answers of people."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.judge.base import RUN_FAILED, build_root_cause_question
from agentguard.judge.llm.chat_judge import ChatJudge
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.multiple_choice import trace_choice
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.localize.human_labels import RunLabel
from agentguard.localize.llm.fine_tuning_examples import build_fine_tuning_examples
from agentguard.localize.serialization import build_diagnosis_rows
from agentguard.store import Store
from agentguard.store.db.rows import JudgementRow
from agentguard.trajectory.model import Source, Step, Trajectory
from agentguard.verdict import Verdict
from tests.unit.judge.chat_server import Script, serving


def build_run(steps: int = 3) -> Trajectory:
    made = tuple(
        Step(index=i, source=Source.AGENT, agent="assistant", content=f"Note number {i}.")
        for i in range(steps)
    )
    return Trajectory(id="r", format="test", task="Write notes.", steps=made)


def diagnose(verdict: Verdict = Verdict.FAILED, step: int = 0) -> Diagnosis:
    hypotheses = (Hypothesis(step=step, agent="assistant", probability=0.9),)
    return Diagnosis(trajectory_id="r", method="m", verdict=verdict, probability=0.9, hypotheses=hypotheses)


def test_examples_have_the_judges_prompt_and_the_persons_answer() -> None:
    label = RunLabel(run_id="r", diagnosis=diagnose(), failed=True, step=2)
    examples = list(build_fine_tuning_examples(build_run(), label))
    assert [(one.answer, one.rejected) for one in examples] == [("A", ""), ("B", ""), ("C", "A"), ("A", "C")]
    with serving(Script()) as (url, script):
        judge = ChatJudge(JudgeEndpoint(url))
        judge.decide(build_run(), (RUN_FAILED, build_root_cause_question(build_run())))
        judge.close()
    asked = [body["messages"][-1]["content"].rpartition("Question:")[2] for body in script.seen]
    exported = [str(one.messages[-1]["content"]).rpartition("Question:")[2] for one in examples]
    assert set(asked) == {exported[0], exported[2]}


def test_examples_of_long_runs_follow_the_groups_of_the_judge() -> None:
    label = RunLabel(run_id="r", diagnosis=diagnose(step=1), failed=True, step=44)
    examples = list(build_fine_tuning_examples(build_run(50), label))[2:]
    assert len(examples) == 4, "two levels in two orders"
    assert examples[0].rejected
    assert not examples[1].rejected, "the wrong step is in another group"


def test_trace_choice_leads_to_the_option() -> None:
    options = [str(i) for i in range(450)]
    *_, (shown, place) = trace_choice(options, "444")
    assert shown[place] == "444"
    assert list(trace_choice(["only"], "only")) == []


def test_corrected_outcome_is_a_preference() -> None:
    label = RunLabel(run_id="r", diagnosis=diagnose(), failed=False)
    assert [(one.answer, one.rejected) for one in build_fine_tuning_examples(build_run(), label)] == [
        ("B", "A"),
        ("A", "B"),
    ]


@pytest.mark.parametrize(("to", "lines"), [("judge_sft", 4), ("judge_preference", 2)])
def test_convert_exports_questions_of_judged_runs(tmp_path: Path, to: str, lines: int) -> None:
    with Store.open(tmp_path / "runs.db") as store:
        store.write_run(build_run())
        rows = build_diagnosis_rows(diagnose())
        store.write(*rows)
        store.write(
            JudgementRow(
                run_id="r",
                subject="diagnosis",
                subject_id=rows[0].id,  # type: ignore[attr-defined]
                right=False,
                by="ann",
                data={"step": 2},
                created_at=time.time(),
            )
        )
        store.flush()
    result = CliRunner().invoke(build_app(), ["convert", "--to", to, "--store", str(tmp_path / "runs.db")])
    assert result.exit_code == 0, result.output
    written = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(written) == lines
    answers = [one["messages"][-1] if to == "judge_sft" else one["chosen"][0] for one in written]
    assert all(one["role"] == "assistant" and len(one["content"]) == 1 for one in answers)
