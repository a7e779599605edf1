"""Public contract of the built-in integrations."""

from __future__ import annotations

from typing import Any

import pytest

from agentguard.errors import RunStopped
from agentguard.guard import Guard
from agentguard.runtime.integration_registry import integration_registry
from agentguard.testing.contracts.integrations import (
    CHECKS,
    TASK,
    ContractRequest,
    ContractRun,
    FixedStepLocalizer,
)
from tests.contract.candidate_drivers import DRIVERS
from tests.contract.client_framework_drivers import CLIENT_FRAMEWORK_DRIVERS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("driver", DRIVERS)
def test_built_in_integration_satisfies_the_contract(driver: str, check: Any) -> None:
    check(DRIVERS[driver])


def unguarded(guard: Guard, played: ContractRun) -> None:
    """Unguarded loop with a separate session that receives no event."""
    played.sessions.append(guard.run(TASK).session)
    while not played.answer:
        answer = played.next_answer(ContractRequest("own", [TASK], []))
        if isinstance(answer, str):
            played.answer = answer
        else:
            getattr(played, answer[0], lambda **_: None)(**answer[1])


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract_rejects_inactive_integration(check: Any) -> None:
    with pytest.raises((AssertionError, IndexError)):
        check(unguarded)


def test_every_built_in_integration_has_a_driver() -> None:
    by_driver = {
        "loop": "loop",
        "langchain": "langchain",
        "langgraph": "langgraph",
        "pydantic_ai": "pydantic_ai",
        "openai_agents": "openai_agents",
        "smolagents": "smolagents",
        "chat": "openai",
        "achat": "openai_async",
        "chat_httpx": "openai_httpx",
        "achat_httpx": "openai_httpx_async",
    }
    assert set(by_driver) <= set(DRIVERS)
    in_own_environment = {"google_adk": "google.adk", "crewai": "crewai"}
    assert set(in_own_environment.values()) <= set(CLIENT_FRAMEWORK_DRIVERS)
    rest = set(integration_registry().names()) - set(by_driver.values()) - set(in_own_environment)
    assert rest == {
        "langgraph_tools",  # part of langgraph
        "claude_agent_sdk",  # hooks; test_claude_agent_sdk.py
        "claude_agent_query",  # the same with rollbacks
    }


def play_insistent_model(driver: str, effect: str | None) -> tuple[ContractRun, str | None]:
    """Run a model that books a seat which the task does not name, whatever the guard answers."""
    played = ContractRun({"own": [*[("book", {"seat": 1234})] * 2, *["Seat 1234 is booked."] * 4]})
    guard = Guard(localizer=FixedStepLocalizer())
    guard.tool(effect="read")(played.find)
    if effect is not None:
        guard.tool(effect=effect)(played.book)
    try:
        DRIVERS[driver](guard, played)
    except RunStopped as stop:
        return played, str(stop)
    return played, played.session.stop_reason


@pytest.mark.parametrize("driver", DRIVERS)
def test_withheld_call_of_undeclared_tool_runs_if_the_agent_repeats_it(driver: str) -> None:
    played, stop_reason = play_insistent_model(driver, None)
    assert [one.plan.strategy for one in played.session.recoveries][:1] == ["reprompt"]
    assert stop_reason is None
    assert played.bookings == {1234: 1}


@pytest.mark.parametrize("driver", DRIVERS)
def test_withheld_call_of_destructive_tool_never_runs(driver: str) -> None:
    played, stop_reason = play_insistent_model(driver, "destructive")
    assert stop_reason is not None
    assert not played.bookings
