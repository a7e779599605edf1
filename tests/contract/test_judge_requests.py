"""Requests of a guarded run to the policy's judge, at its end and beside the agent, in every integration."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentguard.config.policy import Policy
from agentguard.guard import Guard
from agentguard.store import Store
from agentguard.testing.contracts.integrations import (
    BOOK_CALL,
    FINAL_ANSWER,
    FIND_CALL,
    ContractRequest,
    ContractRun,
    ScriptedAnswer,
)
from tests.contract.candidate_drivers import DRIVERS
from tests.unit.judge.chat_server import Script, closed_port, serving

TWO_QUESTIONS_IN_BOTH_ORDERS = 4
LONG_S = 60.0
PAGE = Path(__file__).resolve().parents[2] / "docs" / "chat-judge.md"
ROW = re.compile(r"^\| .* \| `(\w+)` \| (\d+) \| (\d+) \|$", re.MULTILINE)
COUNTS = {driver: (int(at_end), int(live)) for driver, at_end, live in ROW.findall(PAGE.read_text())}
"""AgentDriver to the number of requests at the end, and with a live judge, as the page has them."""
FRAMEWORKS = [driver for driver in COUNTS if driver != "proxy"]


@dataclass
class PacedRun(ContractRun):
    """Run whose model answers only when the live judge is idle, so that the judge skips no turn."""

    guard: Guard | None = None

    def next_answer(self, request: ContractRequest) -> ScriptedAnswer:
        """Wait for the live judge, then answer."""
        assert self.guard is not None
        live_judge = self.guard.components.live_judge
        assert live_judge is None or live_judge.queue.flush(LONG_S)
        return super().next_answer(request)


def run_agent(driver: str, url: str, path: Path, **judge: object) -> ContractRun:
    """Run an agent of the framework to its end under a policy with a judge; close guard and store."""
    policy = Policy.parse({"judge": {"base_url": url, **judge}, "detector_deadline_s": 60})
    with Store.open(path) as store, Guard.from_policy(policy, store=store) as guard:
        played = PacedRun(script={"own": [FIND_CALL, BOOK_CALL, FINAL_ANSWER]}, guard=guard)
        DRIVERS[driver](guard, played)
    assert played.answer.strip() == FINAL_ANSWER
    return played


def test_page_counts_the_requests_of_every_integration() -> None:
    assert set(COUNTS) == {*DRIVERS, "proxy"}


@pytest.mark.parametrize("driver", FRAMEWORKS)
def test_judge_gets_the_documented_number_of_requests(driver: str, tmp_path: Path) -> None:
    for number, options in enumerate(({}, {"live": {}})):
        with serving(Script(prefer=lambda prompt, label: 0.3)) as (url, script):
            run_agent(driver, url, tmp_path / f"{number}.db", **options)
            assert len(script.seen) == COUNTS[driver][number]


@pytest.mark.parametrize("driver", ["loop", "langchain", "chat"])
def test_run_end_asks_the_judge_and_stores_verdict_cost_and_version(driver: str, tmp_path: Path) -> None:
    with serving(Script(prefer=lambda prompt, label: 0.3)) as (url, script):
        played = run_agent(driver, url, tmp_path / "runs.db")
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
