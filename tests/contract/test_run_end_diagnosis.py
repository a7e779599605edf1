"""Diagnosis of a guarded run at its end with the policy's judge, in every integration."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentguard.config.policy import Policy
from agentguard.guard import Guard
from agentguard.store import Store
from agentguard.testing.contracts.integrations import BOOK_CALL, FINAL_ANSWER, FIND_CALL, ContractRun
from tests.contract.candidate_worlds import WORLDS
from tests.unit.judge.chat_server import Script, closed_port, serving

FRAMEWORKS = ("loop", "langchain", "langgraph", "pydantic_ai", "openai_agents", "chat", "achat")
TWO_QUESTIONS_IN_BOTH_ORDERS = 4


def run_agent(world: str, url: str, path: Path) -> ContractRun:
    """Run an agent of the framework to its end under a policy with a judge; close guard and store."""
    policy = Policy.parse({"judge": {"base_url": url}, "detector_deadline_s": 60})
    played = ContractRun(script={"own": [FIND_CALL, BOOK_CALL, FINAL_ANSWER]})
    with Store.open(path) as store, Guard.from_policy(policy, store=store) as guard:
        WORLDS[world](guard, played)
    assert played.answer == FINAL_ANSWER
    return played


@pytest.mark.parametrize("world", FRAMEWORKS)
def test_run_end_asks_the_judge_and_stores_verdict_cost_and_version(world: str, tmp_path: Path) -> None:
    with serving(Script(prefer=lambda prompt, label: 0.3)) as (url, script):
        played = run_agent(world, url, tmp_path / "runs.db")
        assert len(script.seen) == TWO_QUESTIONS_IN_BOTH_ORDERS
    with Store.open(tmp_path / "runs.db") as store:
        (row,) = store.list_diagnoses(played.sessions[0].id)
    assert (row.method, row.data["usage"]["calls"]) == ("fused", TWO_QUESTIONS_IN_BOTH_ORDERS)
    assert row.data["usage"]["prompt_tokens"] > 0
    assert row.data["judge"].startswith("judge (/models/small); prompts ")


def test_stored_answers_outlive_the_process(tmp_path: Path) -> None:
    with serving(Script(prefer=lambda prompt, label: 0.3)) as (url, script):
        played = run_agent("loop", url, tmp_path / "runs.db")
        policy = Policy.parse({"judge": {"base_url": url}, "detector_deadline_s": 60})
        with Store.open(tmp_path / "runs.db") as store, Guard.from_policy(policy, store=store) as guard:
            run = store.get_trajectory(played.sessions[0].id)
            assert run is not None
            diagnosis = guard.diagnose(run)
        assert len(script.seen) == TWO_QUESTIONS_IN_BOTH_ORDERS, "nothing is asked again"
    assert diagnosis.usage["calls"] == 0
    assert diagnosis.judge


def test_run_end_without_judge_stores_the_embedded_diagnosis(tmp_path: Path) -> None:
    played = run_agent("loop", f"http://127.0.0.1:{closed_port()}/v1", tmp_path / "runs.db")
    with Store.open(tmp_path / "runs.db") as store:
        (row,) = store.list_diagnoses(played.sessions[0].id)
    assert row.data["judge"] == ""
    assert "the judge did not answer" in " ".join(row.data["notes"])
