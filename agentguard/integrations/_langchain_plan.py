"""Plans as updates of a LangChain agent's state, and as what its model is asked again with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from agentguard.integrations._langchain_messages import guard_message, step_of, stop_message
from agentguard.integrations._langchain_run import AgentRun
from agentguard.live.acting import told
from agentguard.recover.base import HandOver, Plan, Reject, Restart, Rewind, Stop, Withhold
from agentguard.recover.ledger import Effect
from agentguard.trajectory.model import Step


def rewritten(
    run: AgentRun, messages: list[AnyMessage], plan: Plan, failed: Sequence[Effect]
) -> dict[str, Any]:
    """The state update that makes the agent's messages agree with a plan the session has carried out.

    Args:
        run: whose plan it is; tools that are taken away are noted there.
        messages: the agent's messages now.
        plan: what the session has carried out.
        failed: effects whose undo failed.
    """
    kept = messages
    for action in plan.actions:
        if isinstance(action, Rewind):
            kept = run.line.cut(messages, action.to_step)
        elif isinstance(action, Restart):
            kept = run.line.cut(messages, 0)
        elif isinstance(action, Withhold):
            run.withheld |= set(action.tools)
        elif isinstance(action, Stop):
            return _end_with(action.reason)
    said = told_messages(run, plan, failed)
    if kept is messages:
        return {"messages": said}
    return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *kept, *said]}


def ended(run: AgentRun) -> dict[str, Any] | None:
    """The state update of a run that the guard has ended; None while it goes on."""
    reason = run.session.stopped
    return None if reason is None else _end_with(reason)


def stopped(run: AgentRun) -> AIMessage | None:
    """What stands in place of an answer whose tools must not run, since the guard ended the run."""
    reason = run.session.stopped
    return None if reason is None else stop_message(reason)


def asks_again(plan: Plan) -> bool:
    """Whether a plan about an answer wants another one."""
    return any(isinstance(action, Reject | HandOver) for action in plan.actions)


def told_messages(run: AgentRun, plan: Plan, failed: Sequence[Effect] = ()) -> list[HumanMessage]:
    """All that the agent is told by a plan."""
    return [guard_message(text) for text in told(plan, failed, ask=run.ask)]


def proposed(response: Any, *, agent: str) -> Step | None:
    """The model's answer in a response as a step whose tools have not run; None if there is none."""
    inner = getattr(response, "model_response", response)
    messages = getattr(inner, "result", None) or [inner]
    answer = next((message for message in messages if isinstance(message, AIMessage)), None)
    return None if answer is None else step_of([answer], agent=agent)


def offered(run: AgentRun, request: Any) -> Any:
    """A model's request without the tools that were taken away."""
    if not run.withheld:
        return request
    return request.override(tools=[tool for tool in request.tools if tool_name(tool) not in run.withheld])


def tool_name(tool: Any) -> str:
    """The name of a tool, or of a provider's own tool given as a mapping."""
    if isinstance(tool, Mapping):
        return str(tool.get("name") or (tool.get("function") or {}).get("name", ""))
    return str(getattr(tool, "name", ""))


def _end_with(reason: str) -> dict[str, Any]:
    return {"jump_to": "end", "messages": [stop_message(reason)]}
