"""Plans as updates of a LangChain agent's state, and as what its model is asked again with."""

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
from agentguard.recover.effect_ledger import Effect
from agentguard.recover.strategy import (
    DisableTools,
    Escalate,
    RecoveryPlan,
    Reject,
    Repair,
    Restart,
    Rewind,
    SampleVariant,
    Stop,
)
from agentguard.runtime.tool_execution import collect_messages
from agentguard.runtime.turn_resolution import ResolvedTurn
from agentguard.trajectory.model import Step


def build_plan_update(
    run: AgentRun, messages: list[AnyMessage], plan: RecoveryPlan, failed_effects: Sequence[Effect]
) -> dict[str, Any]:
    """The state update that makes the agent's messages agree with a plan the session has carried out.

    Args:
        run: whose plan it is; tools that are taken away are noted there.
        messages: the agent's messages now.
        plan: what the session has carried out.
        failed: effects whose undo failed.
    """
    kept, fixed = messages, build_repaired_results(run, messages, plan)
    for action in plan.actions:
        if isinstance(action, Rewind):
            kept = run.branch.truncate(messages, action.to_step)
        elif isinstance(action, Restart):
            kept = run.branch.truncate(messages, 0)
        elif isinstance(action, DisableTools):
            run.disabled_tools |= set(action.tools)
        elif isinstance(action, Stop):
            return _build_jump_to_end(action.reason)
    said = build_guard_messages(run, plan, failed_effects)
    if kept is messages:
        return {"messages": [*fixed, *said]}
    return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *kept, *said]}


def build_end_update(run: AgentRun) -> dict[str, Any] | None:
    """The state update of a run that the guard has ended; None while it goes on."""
    reason = run.session.stop_reason
    return None if reason is None else _build_jump_to_end(reason)


def build_stop_answer(run: AgentRun) -> AIMessage | None:
    """What stands in place of an answer whose tools must not run, since the guard ended the run."""
    reason = run.session.stop_reason
    return None if reason is None else build_stop_message(reason)


def requests_new_answer(plan: RecoveryPlan) -> bool:
    """Whether a plan about an answer wants another one."""
    return any(isinstance(action, Reject | Escalate) for action in plan.actions)


def build_guard_messages(
    run: AgentRun, plan: RecoveryPlan, failed_effects: Sequence[Effect] = ()
) -> list[HumanMessage]:
    """All that the agent is told by a plan."""
    return [build_guard_message(text) for text in collect_messages(plan, failed_effects, ask_person=run.ask)]


def prepend_messages(messages: Sequence[HumanMessage], response: Any) -> Any:
    """The response with what the model was told before it, so that later turns know it, too.

    Without it an agent whose answer was refused would be told of it once, and forget it by the next turn.
    """
    if not messages:
        return response
    if isinstance(response, AIMessage):
        return ModelResponse(result=[*messages, response])
    inner = getattr(response, "model_response", response)
    new = replace(inner, result=[*messages, *inner.result])
    return new if inner is response else replace(response, model_response=new)


def parse_answer(response: Any, *, agent: str) -> Step | None:
    """The model's answer in a response as a step whose tools have not run; None if there is none."""
    inner = getattr(response, "model_response", response)
    messages = getattr(inner, "result", None) or [inner]
    answer = next((message for message in messages if isinstance(message, AIMessage)), None)
    return None if answer is None else build_step([answer], agent=agent)


def remove_disabled_tools(run: AgentRun, request: Any) -> Any:
    """A model's request without the tools that were taken away."""
    if not run.disabled_tools:
        return request
    return request.override(
        tools=[tool for tool in request.tools if get_tool_name(tool) not in run.disabled_tools]
    )


def build_candidate_request(
    run: AgentRun, request: Any, variant: SampleVariant, models: Mapping[str, Any]
) -> Any:
    """The request of another candidate of the turn.

    Args:
        run: whose turn it is.
        request: of the turn itself.
        variant: how this candidate is asked for.
        models: chat models by name; one that is not there is made by LangChain's ``init_chat_model``.
    """
    made = request
    if variant.model:
        made = made.override(model=models.get(variant.model) or _init_model(variant.model))
    if variant.instruction:
        made = made.override(messages=[*made.messages, build_guard_message(variant.instruction)])
    if variant.temperature is not None:
        made = made.override(model_settings={**made.model_settings, "temperature": variant.temperature})
    return remove_disabled_tools(run, made)


def build_selected_response(choice: ResolvedTurn) -> Any:
    """The response that was chosen, repaired if it had to be."""
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
    """Results of tools that a plan repairs, as messages that take the place of those with their ids."""
    made: list[AnyMessage] = []
    for action in plan.actions:
        if isinstance(action, Repair):
            found = run.branch.find_result(messages, action.step, action.field)
            if found is not None:
                made.append(found.model_copy(update={"content": action.text, "status": "success"}))
    return made


def get_tool_name(tool: Any) -> str:
    """The name of a tool, or of a provider's own tool given as a mapping."""
    if isinstance(tool, Mapping):
        return str(tool.get("name") or (tool.get("function") or {}).get("name", ""))
    return str(getattr(tool, "name", ""))


def _init_model(name: str) -> Any:
    from langchain.chat_models import init_chat_model

    return init_chat_model(name)


def _build_jump_to_end(reason: str) -> dict[str, Any]:
    return {"jump_to": "end", "messages": [build_stop_message(reason)]}
