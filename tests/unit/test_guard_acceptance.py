"""Acceptance section of a policy: guarded runs, diagnoses, and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.config.policy import Policy
from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.localize.base import OutcomeBasis
from agentguard.recover import AcceptanceTest, LlmRule
from agentguard.store import Store
from agentguard.trajectory.model import Source, Step, Trajectory
from agentguard.verdict import Verdict
from tests.unit.judge.judges import TableJudge

ACCEPTANCE: dict[str, Any] = {
    "rules": [{"number": "total", "minimum": 0, "maximum": 500}],
    "on_fail": ["restart"],
}
TASK = "Compute the total as JSON."


def build_run(answer: str) -> Trajectory:
    step = Step(index=0, source=Source.AGENT, agent="a", content=answer)
    return Trajectory(id="r", format="event_log", task=TASK, steps=(step,))


def test_policy_acceptance_refusal_restarts_the_run_and_is_recorded(tmp_path: Path) -> None:
    policy = Policy.model_validate_json(Policy.parse({"acceptance": ACCEPTANCE}).model_dump_json())
    answers = iter(['{"total": 900}', '{"total": 90}'])
    with Store.open(tmp_path / "runs.db") as store, Guard.from_policy(policy, store=store) as guard:
        with guard.run(TASK) as run:
            while not run.done:
                run.tools(run.model(lambda messages: next(answers)))
        assert run.answer == '{"total": 90}'
        assert run.session.recoveries[0].plan.strategy == "restart"
        guard.flush()
        store.flush()
        rows = store.list_run_acceptances(run.session.id)
        diagnosis = store.list_diagnoses(run.session.id)[0]
    assert [row.accepted for row in rows] == [False, True]
    assert diagnosis.data["basis"] == "known"
    assert diagnosis.verdict == "no_failure_found"


@pytest.mark.parametrize(
    ("answer", "failed"), [('{"total": 3}', False), ('{"total": 900}', True), ("", True)]
)
def test_diagnose_takes_the_outcome_from_acceptance_rules(answer: str, failed: bool) -> None:
    diagnosis = Guard.from_policy(Policy.parse({"acceptance": ACCEPTANCE})).diagnose(build_run(answer))
    assert diagnosis.basis is OutcomeBasis.KNOWN
    assert diagnosis.verdict is (Verdict.FAILED if failed else Verdict.NO_FAILURE_FOUND)
    assert bool(diagnosis.hypotheses) == failed
    assert any("acceptance rules refuse" in note for note in diagnosis.notes) == failed


def test_diagnose_prefers_a_known_outcome_to_acceptance_rules() -> None:
    guard = Guard.from_policy(Policy.parse({"acceptance": ACCEPTANCE}))
    assert guard.diagnose(build_run("{}"), failed=False).verdict is Verdict.NO_FAILURE_FOUND


def test_diagnose_without_an_answer_of_the_judge_leaves_the_outcome_open() -> None:
    judge = TableJudge(lambda run, question: None)
    guard = Guard(accept=AcceptanceTest(LlmRule("Is it polite?", judge)))
    diagnosis = guard.diagnose(build_run("Hello."))
    assert diagnosis.basis is not OutcomeBasis.KNOWN
    assert [one.detector for one in diagnosis.failures] == ["acceptance"]


@pytest.mark.parametrize(
    ("acceptance", "part"),
    [
        ({}, "set rules"),
        ({"question": {"text": "Is it polite?"}}, "set judge"),
        ({"rules": [{"match": "x"}]}, "expected one of the keys"),
        ({"question": {"text": "?", "min_probability": 2}}, "min_probability"),
    ],
)
def test_invalid_acceptance_section_is_a_config_error(acceptance: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        Guard.from_policy(Policy.parse({"acceptance": acceptance}))


def test_diagnose_command_uses_acceptance_rules_of_the_policy(tmp_path: Path) -> None:
    policy, runs = tmp_path / "policy.yaml", tmp_path / "run.json"
    policy.write_text(json.dumps({"acceptance": ACCEPTANCE}))
    runs.write_text(
        json.dumps([{"role": "user", "content": TASK}, {"role": "assistant", "content": '{"total": 900}'}])
    )
    result = CliRunner().invoke(
        build_app(), ["diagnose", str(runs), "--policy", str(policy), "--json", "--fail-on-failure"]
    )
    assert result.exit_code == 3, result.output
    assert orjson.loads(result.stdout)["basis"] == "known"


@pytest.mark.parametrize("place", ["acceptance", "recover"])
def test_one_judge_may_not_undo_effects_after_a_refusal(place: str) -> None:
    judge = {"base_url": "http://127.0.0.1:1/v1"}
    levels = {"on_fail": ["hint", {"compensate": {}}]}
    document: dict[str, Any] = {"judge": judge, "acceptance": {"question": {"text": "Is it right?"}}}
    document[place] = {**document.get(place, {}), **levels}
    with pytest.raises(ConfigError, match="compensate undoes effects, which two judges must decide"):
        Policy.parse(document)
    Policy.parse({**document, "judge": {**judge, "second": judge}})
    Policy.parse({**document, "acceptance": {"rules": ACCEPTANCE["rules"]}})
