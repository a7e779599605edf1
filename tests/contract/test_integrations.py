"""Public contract of the built-in integrations."""

from __future__ import annotations

from typing import Any

import pytest

from agentguard.guard import Guard
from agentguard.runtime.integration_registry import integration_registry
from agentguard.testing.contracts.integrations import CHECKS, TASK, ContractRequest, ContractRun
from tests.contract.candidate_worlds import WORLDS
from tests.contract.client_framework_worlds import CLIENT_FRAMEWORK_WORLDS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("world", WORLDS)
def test_built_in_integration_satisfies_the_contract(world: str, check: Any) -> None:
    check(WORLDS[world])


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


def test_every_built_in_integration_has_a_world() -> None:
    by_world = {
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
    assert set(by_world) <= set(WORLDS)
    in_own_environment = {"google_adk": "google.adk", "crewai": "crewai"}
    assert set(in_own_environment.values()) <= set(CLIENT_FRAMEWORK_WORLDS)
    rest = set(integration_registry().names()) - set(by_world.values()) - set(in_own_environment)
    assert rest == {
        "langgraph_tools",  # part of langgraph
        "claude_agent_sdk",  # hooks; test_claude_agent_sdk.py
    }
