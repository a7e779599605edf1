"""Plugin of Google ADK with scripted models; docs/integrations.md has the environment of these tests."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

pytest.importorskip("google.adk")

from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import LlmCallsLimitExceededError
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from agentguard.guard import Guard
from agentguard.integrations.google_adk.contents import ContentHistory
from agentguard.recover import RecoveryPolicy

TASK = "Find a seat."


class ScriptedLlm(BaseLlm):
    """Model that answers with parts from a list, and records its requests."""

    script: list[Any]
    requests: list[Any]

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        self.requests.append(llm_request.model_copy())
        parts = self.script.pop(0)
        if isinstance(parts, Exception):
            raise parts
        content = types.Content(role="model", parts=parts)
        if stream:
            yield LlmResponse(content=content, partial=True)
        yield LlmResponse(content=content)


def find(row: int) -> str:
    """Find a seat."""
    return "none"


def call(row: int = 7, *, name: str = "find", signature: bytes | None = None) -> types.Part:
    part = types.Part.from_function_call(name=name, args={"row": row})
    part.thought_signature = signature
    return part


def run(
    guard: Guard,
    script: list[Any],
    *,
    config: RunConfig | None = None,
    is_repeated: bool = False,
    **options: Any,
) -> Any:
    """Return the model, the events and the guard's sessions; repeat a failed request if ``is_repeated``."""
    sessions: list[Any] = []
    model = ScriptedLlm(model="own", script=script, requests=[])
    agent = LlmAgent(name="clerk", model=model, tools=[find], **options)
    events: list[Any] = []

    async def drive() -> None:
        plugin = guard.google_adk(on_run=sessions.append)
        async with InMemoryRunner(app=App(name="seats", root_agent=agent, plugins=[plugin])) as runner:
            session = await runner.session_service.create_session(app_name="seats", user_id="u")
            message = types.Content(role="user", parts=[types.Part(text=TASK)])
            options = {"run_config": config} if config is not None else {}
            given = {"user_id": "u", "session_id": session.id, "new_message": message, **options}
            for is_last in (not is_repeated, True)[: 1 + is_repeated]:
                with contextlib.suppress(*(() if is_last else (ConnectionError,))):
                    events.extend([event async for event in runner.run_async(**given)])

    asyncio.run(drive())
    return model, events, sessions


def build_guard(**parts: Any) -> Guard:
    guard = Guard(**{"localizer": "first_finding", **parts})
    guard.tool(effect="read")(find)
    return guard


def test_request_of_healthy_run_keeps_contents_and_thought_signatures() -> None:
    model, events, sessions = run(build_guard(), [[call(signature=b"s")], [types.Part(text="none")]])
    sent = [part for content in model.requests[-1].contents for part in content.parts]
    assert [part.thought_signature for part in sent] == [None, b"s", None]
    assert events[-1].content.parts[0].text == "none"
    assert [step.content for step in sessions[0].run.steps] == [TASK, "", "none"]
    assert sessions[0].has_ended


def test_call_keeps_its_signature_in_request_with_hint() -> None:
    script = [[call(signature=bytes([place]))] for place in (1, 2, 3)] + [[types.Part(text="none")]]
    model, _, sessions = run(build_guard(), script)
    contents = model.requests[-1].contents
    signatures = [part.thought_signature for content in contents for part in content.parts]
    assert [one for one in signatures if one] == [b"\x01", b"\x02", b"\x03"]
    assert contents[-1].parts[0].text.startswith("[guard]")
    assert len(sessions[0].recoveries) == 1


def test_refused_call_of_unknown_tool_counts_as_model_call() -> None:
    script = [[call(name="fly")], [call()], [types.Part(text="none")]]
    guard = build_guard(recover=RecoveryPolicy(on_fail="rollback"))
    with pytest.raises(LlmCallsLimitExceededError):
        run(guard, list(script), config=RunConfig(max_llm_calls=2))
    model, events, _ = run(guard, list(script), config=RunConfig(max_llm_calls=3))
    assert len(model.requests) == 3
    names = [one.name for event in events for one in event.get_function_calls()]
    assert names == ["find"], "the refused call is no event"


def test_streamed_response_is_judged_once_it_is_complete() -> None:
    script = [[call(name="fly")], [types.Part(text="none")]]
    guard = build_guard(recover=RecoveryPolicy(on_fail="rollback"))
    _, events, sessions = run(guard, script, config=RunConfig(streaming_mode=StreamingMode.SSE))
    complete = [event for event in events if not event.partial]
    assert [event.content.parts[0].text for event in complete] == ["none"]
    assert len(sessions[0].recoveries) == 1


def test_failed_request_releases_its_run_for_next_invocation() -> None:
    script = [ConnectionError("lost"), [types.Part(text="none")]]
    _, events, sessions = run(build_guard(), script, is_repeated=True)
    assert events[-1].content.parts[0].text == "none"
    assert len(sessions) == 1
    assert [step.content for step in sessions[0].run.steps] == [TASK, TASK, "none"]


def test_callbacks_of_agent_run_for_responses_that_guard_accepts() -> None:
    seen: list[str] = []

    def before(callback_context: Any, llm_request: Any) -> None:
        seen.append("before")

    def after(callback_context: Any, llm_response: Any) -> None:
        seen.append("after")

    run(
        build_guard(),
        [[types.Part(text="none")]],
        before_model_callback=before,
        after_model_callback=after,
    )
    assert seen == ["before", "after"]


def test_stopped_run_ends_with_text_of_guard() -> None:
    guard = build_guard(recover=RecoveryPolicy(on_fail="stop"))
    _, events, sessions = run(guard, [[call()] for _ in range(10)])
    assert events[-1].content.parts[0].text.startswith("[guard] The run was stopped")
    assert sessions[0].stop_reason is not None


def test_history_joins_results_of_parallel_calls_to_their_calls() -> None:
    results = [
        types.Part.from_function_response(name="find", response={"result": text}) for text in ("a", "b")
    ]
    contents = [
        types.Content(role="user", parts=[types.Part(text=TASK)]),
        types.Content(role="model", parts=[call(1), call(2)]),
        types.Content(role="user", parts=results),
    ]
    history = ContentHistory(contents)
    assert [one.get("tool_call_id") for one in history.messages] == [None, None, "call-0", "call-1"]
    assert history.build_contents(history.messages) == contents
    changed = [*history.messages[:-1], {**history.messages[-1], "content": "c"}]
    built = history.build_contents(changed)[-1].parts
    assert [part.function_response.response["result"] for part in built] == ["a", "c"]
