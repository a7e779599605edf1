"""Guarded LLM of CrewAI with scripted LLMs; docs/integrations.md has the environment of these tests."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TESTING="true", OTEL_SDK_DISABLED="true")
pytest.importorskip("crewai")

from crewai.llms.base_llm import BaseLLM, call_stop_override

from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.recover import RecoveryPolicy

TASK = "Find a seat."
MESSAGES = [{"role": "system", "content": "You find seats."}, {"role": "user", "content": TASK}]
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
AGENT = SimpleNamespace(role="clerk")


class ScriptedLLM(BaseLLM):
    """LLM that answers from a list, and records its calls."""

    script: list[Any]
    calls: list[dict[str, Any]]
    supports_calls: bool = True

    def supports_function_calling(self) -> bool:
        return self.supports_calls

    def call(self, messages: Any, tools: Any = None, **options: Any) -> Any:
        self.calls.append({"messages": messages, "tools": tools, "stop": self.stop_sequences, **options})
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def acall(self, messages: Any, tools: Any = None, **options: Any) -> Any:
        return self.call(messages, tools, **options)


def build(script: list[Any], **parts: Any) -> tuple[Any, ScriptedLLM, list[Any]]:
    """Return a guarded LLM, its inner one, and the sessions."""
    guard, sessions = Guard(**{"localizer": "first_finding", **parts}), list[Any]()
    inner = ScriptedLLM(model="own", script=script, calls=[])
    return guard.crewai(inner, on_run=sessions.append), inner, sessions


def ask(llm: Any, messages: list[Any] = MESSAGES) -> Any:
    return llm.call(messages, tools=TOOLS, from_agent=AGENT)


def call(name: str, id: str = "call-1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": '{"row": 7}'}}


def test_accepted_answer_is_the_object_of_the_inner_llm() -> None:
    answer = [call("find")]
    llm, inner, sessions = build([answer])
    assert ask(llm) is answer
    assert inner.calls[0]["messages"] == MESSAGES
    assert inner.calls[0]["tools"] == TOOLS
    assert sessions[0].run.system_prompts == {"assistant": "You find seats."}


def test_refused_call_of_unknown_tool_is_asked_again_with_hint() -> None:
    for is_async in (False, True):
        llm, inner, _ = build([[call("fly")], "None is free."], recover=RecoveryPolicy(on_fail="rollback"))
        options: Any = {"tools": TOOLS, "from_agent": AGENT}
        said = asyncio.run(llm.acall(MESSAGES, **options)) if is_async else llm.call(MESSAGES, **options)
        assert said == "None is free."
        assert inner.calls[-1]["messages"][:2] == MESSAGES
        assert inner.calls[-1]["messages"][-1]["content"].startswith("[guard]")


def test_calls_of_each_provider_have_the_ids_that_crewai_resends() -> None:
    openai = SimpleNamespace(id="a", function=SimpleNamespace(name="find", arguments='{"row": 7}'))
    anthropic = SimpleNamespace(type="tool_use", id="b", name="find", input={"row": 7})
    bedrock = {"toolUseId": "c", "name": "find", "input": {"row": 7}}
    for answer, id in ((openai, "a"), (anthropic, "b"), (bedrock, "c")):
        llm, _, sessions = build([[answer], "None is free."])
        assert ask(llm) == [answer]
        made = {"role": "assistant", "content": None, "tool_calls": [call("find", id)]}
        ask(llm, [*MESSAGES, made, {"role": "tool", "tool_call_id": id, "name": "find", "content": "full"}])
        assert len(sessions) == 1, "the second call continues the run"
        assert sessions[0].run.steps[1].observations[0].content == "full"
        assert sessions[0].run.steps[1].tool_calls[0].arguments == {"row": 7}


def test_call_without_agent_goes_to_inner_llm_unchanged() -> None:
    llm, inner, sessions = build(["a summary", "data"])
    assert llm.call("Summarise.") == "a summary"
    model = SimpleNamespace
    assert llm.call(MESSAGES, from_agent=AGENT, response_model=model) == "data"
    assert inner.calls[0]["messages"] == "Summarise."
    assert inner.calls[1]["response_model"] is model
    assert not sessions


def test_stop_words_of_agent_reach_inner_llm() -> None:
    llm, inner, _ = build(["None is free."])
    with call_stop_override(llm, ["Observation:"]):
        ask(llm)
    assert inner.calls[0]["stop"] == ["Observation:"]


def test_failed_call_is_continued_by_its_retry() -> None:
    llm, _, sessions = build([ConnectionError("lost"), "None is free."])
    with pytest.raises(ConnectionError):
        ask(llm)
    assert ask(llm) == "None is free."
    assert len(sessions) == 1
    assert [step.content for step in sessions[0].run.steps] == [TASK, "None is free."]


def test_llm_without_function_calls_is_rejected() -> None:
    inner = ScriptedLLM(model="own", script=[], calls=[], supports_calls=False)
    with pytest.raises(ConfigError, match="own does not support function calls"):
        Guard(localizer="first_finding").crewai(inner)
