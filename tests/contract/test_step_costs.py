"""Times, model, tokens and cost of the turns of a guarded run, in every integration."""

from __future__ import annotations

import pytest

from agentguard.config.policy import Policy
from agentguard.guard import Guard
from agentguard.testing.contracts.integrations import BOOK_CALL, FINAL_ANSWER, FIND_CALL, ContractRun
from agentguard.trajectory.model import Source
from tests.contract.candidate_drivers import DRIVERS

PRICES = {"*": {"input": 2.0, "output": 8.0}}
POLICY = Policy.parse({"prices": PRICES, "detector_deadline_s": 60, "localizer": {"name": "first_finding"}})
PRICED = ("chat", "achat", "chat_httpx", "achat_httpx", "responses", "responses_streamed", "pydantic_ai")
"""Integrations whose scripted model has a name and reports tokens."""


@pytest.mark.parametrize("driver", list(DRIVERS))
def test_every_turn_of_the_agent_has_its_times(driver: str) -> None:
    with Guard.from_policy(POLICY) as guard:
        played = ContractRun(script={"own": [FIND_CALL, BOOK_CALL, FINAL_ANSWER]})
        DRIVERS[driver](guard, played)
    turns = [step for step in played.sessions[0].run.steps if step.source is Source.AGENT]
    assert len(turns) == 3
    for turn in turns:
        assert turn.started_at is not None
        assert turn.ended_at is not None
        assert turn.started_at <= turn.ended_at
    if driver in PRICED:
        assert all(turn.usage is not None and turn.usage.cost_usd for turn in turns)
    assert driver != "chat_streamed" or {turn.model for turn in turns} == {"scripted"}
