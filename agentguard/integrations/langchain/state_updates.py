"""Conversion of recovery plans to state updates and model requests of a LangChain agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain.agents.middleware.types import ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from agentguard.integrations.langchain.messages import (
    apply_repaired_turn,
    build_guard_message,
    build_step,
    build_stop_message,
)
from agentguard.integrations.langchain.run import AgentRun
from agentguard.recover.actions import (
    DisableTools,
    Escalate,
    Reject,
    Repair,
    Restart,
    Rewind,
    SampleVariant,
    Stop,
)
from agentguard.recover.effect_store import Effect
from agentguard.recover.plan import RecoveryPlan
from agentguard.runtime.session import ResolvedTurn
from agentguard.runtime.tool_execution import collect_messages
from agentguard.trajectory.model import Step


def build_plan_update(
    run: AgentRun, messages: list[AnyMessage], plan: RecoveryPlan, failed_effects: Sequence[Effect]
) -> dict[str, Any]:
    """Build the state update for a plan that the session has executed.

    Args:
        run: the run of the plan; its disabled tools are updated.
        messages: the agent's current messages.
        plan: the executed plan.
        failed_effects: effects whose undo failed.
    """
    remaining, repaired = messages, build_repaired_results(run, messages, plan)
    for action in plan.actions:
        if isinstance(action, Rewind):
            remaining = run.branch.truncate(messages, action.to_step)
        elif isinstance(action, Restart):
            remaining = run.branch.truncate(messages, 0)
        elif isinstance(action, DisableTools):
            run.disabled_tools |= set(action.tools)
        elif isinstance(action, Stop):
            return _build_jump_to_end(action.reason)
    guard_messages = build_guard_messages(run, plan, failed_effects)
    if remaining is messages:
        return {"messages": [*repaired, *guard_messages]}
    return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *remaining, *guard_messages]}


def build_end_update(run: AgentRun) -> dict[str, Any] | None:
    """Build the state update for a run that the guard has ended; None while the run continues."""
    reason = run.session.stop_reason
    return None if reason is None else _build_jump_to_end(reason)


def build_stop_response(run: AgentRun) -> AIMessage | None:
    """Build the response that replaces a rejected one; None unless the guard has ended the run."""
    reason = run.session.stop_reason
    return None if reason is None else build_stop_message(reason)


def requests_new_response(plan: RecoveryPlan) -> bool:
    """Return whether a plan rejects a response and requests another one."""
    return any(isinstance(action, Reject | Escalate) for action in plan.actions)


def build_guard_messages(
    run: AgentRun, plan: RecoveryPlan, failed_effects: Sequence[Effect] = ()
) -> list[HumanMessage]:
    """Build the guard's messages of a plan to the agent."""
    return [
        build_guard_message(text)
        for text in collect_messages(run.session, plan, failed_effects, ask_person=run.ask)
    ]


def prepend_messages(messages: Sequence[HumanMessage], response: Any) -> Any:
    """Return the response with the guard's messages before it, so that later turns see them too.

    Without them the model would get the reason for a rejection only once.
    """
    if not messages:
        return response
    if isinstance(response, AIMessage):
        return ModelResponse(result=[*messages, response])
    inner = getattr(response, "model_response", response)
    new = replace(inner, result=[*messages, *inner.result])
    return new if inner is response else replace(response, model_response=new)


def parse_response(response: Any, *, agent: str) -> Step | None:
    """Convert the model's message in a response to a step without results; None without such a message."""
    inner = getattr(response, "model_response", response)
    messages = getattr(inner, "result", None) or [inner]
    message = next((one for one in messages if isinstance(one, AIMessage)), None)
    return None if message is None else build_step([message], agent=agent)


def remove_disabled_tools(run: AgentRun, request: Any) -> Any:
    """Return a model request without the disabled tools."""
    if not run.disabled_tools:
        return request
    return request.override(
        tools=[tool for tool in request.tools if get_tool_name(tool) not in run.disabled_tools]
    )


def build_candidate_request(
    run: AgentRun, request: Any, variant: SampleVariant, models: Mapping[str, Any]
) -> Any:
    """Build the request for another candidate of the turn.

    Args:
        run: the run of the turn.
        request: request of the turn.
        variant: variation of the request for this candidate.
        models: chat models by name; ``init_chat_model`` of LangChain creates others.
    """
    candidate = request
    if variant.model:
        candidate = candidate.override(model=models.get(variant.model) or _init_model(variant.model))
    if variant.instruction:
        candidate = candidate.override(
            messages=[*candidate.messages, build_guard_message(variant.instruction)]
        )
    if variant.temperature is not None:
        candidate = candidate.override(
            model_settings={**candidate.model_settings, "temperature": variant.temperature}
        )
    return remove_disabled_tools(run, candidate)


def build_selected_response(choice: ResolvedTurn) -> Any:
    """Return the selected response, repaired if necessary."""
    if not choice.is_repaired:
        return choice.response
    inner = getattr(choice.response, "model_response", choice.response)
    if isinstance(inner, AIMessage):
        return apply_repaired_turn(inner, choice.turn)
    result = [
        apply_repaired_turn(message, choice.turn) if isinstance(message, AIMessage) else message
        for message in inner.result
    ]
    new = replace(inner, result=result)
    return new if inner is choice.response else replace(choice.response, model_response=new)


def build_repaired_results(
    run: AgentRun, messages: Sequence[AnyMessage], plan: RecoveryPlan
) -> list[AnyMessage]:
    """Build the messages for repaired tool results; they replace the messages with the same IDs."""
    results: list[AnyMessage] = []
    for action in plan.actions:
        if isinstance(action, Repair):
            found = run.branch.find_result(messages, action.step, action.index)
            if found is not None:
                results.append(found.model_copy(update={"content": action.text, "status": "success"}))
    return results


def get_tool_name(tool: Any) -> str:
    """Return the name of a tool, or of a provider's own tool in the form of a mapping."""
    if isinstance(tool, Mapping):
        return str(tool.get("name") or (tool.get("function") or {}).get("name", ""))
    return str(getattr(tool, "name", ""))


def _init_model(name: str) -> Any:
    from langchain.chat_models import init_chat_model

    return init_chat_model(name)


def _build_jump_to_end(reason: str) -> dict[str, Any]:
    return {"jump_to": "end", "messages": [build_stop_message(reason)]}
