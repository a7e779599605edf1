"""Guarded run of a LangChain agent, and its tool calls; the middleware and the guarded graph use it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp

from agentguard import _sync_async
from agentguard.integrations.langchain.messages import MessageBranch
from agentguard.recover.effect_ledger import EffectClaim, ExecutionDecision
from agentguard.recover.tool_effects import EffectClass
from agentguard.runtime.session import Session
from agentguard.runtime.tool_execution import UNKNOWN_OUTCOME_MESSAGE, run_with_read_retry
from agentguard.runtime.tool_timeout import ToolTimeout, alimit_call, limit_call


class ToolClaims:
    """Effect claims of the calls of one turn, by call ID; thread-safe.

    LangGraph repeats the calls of a node when it resumes or retries the node. A repeated call gets the claim
    of its first execution.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._lock = session, threading.Lock()
        self._position: tuple[int, int] = (0, 0)
        self._claims_by_call: dict[str, EffectClaim] = {}

    def claim(self, call: Mapping[str, Any]) -> EffectClaim:
        """Return the claim of a call, with the decision of the ledger."""
        with self._lock:
            position = len(self._session), len(self._session.recoveries)
            if position != self._position:
                self._position, self._claims_by_call = position, {}
            earlier = self._claims_by_call.get(call["id"])
            if earlier is None:
                claim = self._session.begin_tool(call["name"], call.get("args") or {})
            else:
                claim = self._renew_claim(earlier)
            self._claims_by_call[call["id"]] = claim
            return claim

    def mark_done(self, claim: EffectClaim, call: Mapping[str, Any], result: str) -> None:
        """Record that the tool returned a result."""
        self._session.end_tool(claim, result)
        self._claims_by_call[call["id"]] = EffectClaim(
            decision=ExecutionDecision.REUSE, effect=replace(claim.effect, result=result)
        )

    def mark_failed(self, claim: EffectClaim, error: str) -> None:
        """Record that the tool returned an error."""
        self._session.end_tool(claim, error, has_failed=True)

    def mark_not_executed(self, claim: EffectClaim, call: Mapping[str, Any]) -> None:
        """Record that the tool did not run."""
        self._session.end_tool(claim, "", is_refused=True)
        self._claims_by_call.pop(call["id"], None)

    def _renew_claim(self, claim: EffectClaim) -> EffectClaim:
        """Return the claim of a repeated call; its outcome is unknown if no execution has returned."""
        tool_effect = self._session.ledger.get_tool_effect(claim.effect.tool)
        is_repeatable = tool_effect.idempotent or tool_effect.effect is EffectClass.READ
        if claim.decision is not ExecutionDecision.RUN and not is_repeatable:
            return claim
        decision = ExecutionDecision.RUN if is_repeatable else ExecutionDecision.OUTCOME_UNKNOWN
        return replace(claim, decision=decision)


class ToolWrapper:
    """Wrapper of the tool for one call.

    Args:
        claims: claims of the run.
        claim: the ledger's decision on the call.
        call: the model's tool call.

    Attributes:
        has_returned: whether the tool must not run: an execution has returned, or its outcome is unknown.
    """

    def __init__(self, claims: ToolClaims, claim: EffectClaim, call: Mapping[str, Any]) -> None:
        self._claims, self._claim, self._call = claims, claim, call
        self.has_returned = claim.decision is not ExecutionDecision.RUN

    def wrap(self, inner: Any) -> Any:
        """Return a copy of the tool that records its results."""
        wrapped = copy.copy(inner)

        def invoke(input: Any, config: Any = None, **options: Any) -> Any:
            return self.get_recorded_result() or self._record_and_return(
                inner.invoke(input, config, **options)
            )

        async def ainvoke(input: Any, config: Any = None, **options: Any) -> Any:
            return self.get_recorded_result() or self._record_and_return(
                await inner.ainvoke(input, config, **options)
            )

        # Tools are pydantic models, which reject attributes that are not fields.
        object.__setattr__(wrapped, "invoke", invoke)
        object.__setattr__(wrapped, "ainvoke", ainvoke)
        return wrapped

    def get_recorded_result(self) -> ToolMessage | None:
        """Return the recorded result, or a text that the outcome is unknown; None if the tool must run."""
        if self._claim.decision is ExecutionDecision.RUN:
            return None
        text = (
            self._claim.effect.result
            if self._claim.decision is ExecutionDecision.REUSE
            else UNKNOWN_OUTCOME_MESSAGE
        )
        return ToolMessage(content=text, tool_call_id=self._call["id"], name=self._call["name"])

    def record_result(self, result: Any) -> None:
        """Record a result; the ledger infers from the text of an error whether the tool took effect."""
        if self.has_returned:
            return
        if isinstance(result, ToolMessage) and result.status == "error":
            self._claims.mark_failed(self._claim, result.text)
            return
        self._claims.mark_done(
            self._claim, self._call, result.text if isinstance(result, ToolMessage) else ""
        )
        self.has_returned = True

    def _record_and_return(self, result: Any) -> Any:
        self.record_result(result)
        return result


RUN_CONFIG_KEY = "__agentguard_run"
"""Key of the guarded graph's run in ``configurable``; LangGraph does not store keys with two underscores."""

_NAMESPACE_SEPARATOR = "|"
"""Separator of node names in LangGraph's checkpoint namespaces."""


class AgentRun:
    """Run of an agent: its session, its branch of messages and its disabled tools."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.branch = MessageBranch()
        self.disabled_tools: set[str] = set()
        self.known_tools: set[str] = set()
        self.response_format: Any = None
        """Structured output whose tools are in `known_tools`, the names of the tools of the session."""
        self.ask: Callable[[str], str] | None = None
        """Function that asks a person a question; None without a person."""
        self.claims = ToolClaims(session)


def get_current_run(*, include_nested: bool = False) -> AgentRun | None:
    """Return the run of the guarded graph whose node makes this call; None outside such a graph.

    Args:
        include_nested: return the run in subgraphs too; their tools are part of the run, their messages are
            not.
    """
    try:
        configurable: Mapping[str, Any] = get_config().get("configurable", {})
    except RuntimeError:  # outside of any graph
        return None
    run = configurable.get(RUN_CONFIG_KEY)
    is_nested = _NAMESPACE_SEPARATOR in (configurable.get("checkpoint_ns") or "")
    return run if isinstance(run, AgentRun) and (include_nested or not is_nested) else None


def call_tool(run: AgentRun | None, request: Any, handler: Callable[[Any], Any]) -> Any:
    """Call a tool so that each effect happens once; without a run, call it directly."""
    if run is None:
        return handler(request)
    limited = limit_call(run.session, request.tool_call["name"], handler)
    return _sync_async.run_sync(_guard_call(run, request), limited)


async def acall_tool(run: AgentRun | None, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
    """Call an awaitable tool like `call_tool`."""
    if run is None:
        return await handler(request)
    limited = alimit_call(run.session, request.tool_call["name"], handler)
    return await _sync_async.run_async(_guard_call(run, request), limited)


def _guard_call(run: AgentRun, request: Any) -> _sync_async.SharedBody[Any]:
    """Return the result of a tool call. Yield the request if the tool must run; receive its result."""
    call = request.tool_call
    claim = run.claims.claim(call)
    wrapper = ToolWrapper(run.claims, claim, call)
    if request.tool is None:  # another middleware provides the tool
        if (known := wrapper.get_recorded_result()) is not None:
            return known
    else:
        request = request.override(tool=wrapper.wrap(request.tool))
    if wrapper.has_returned:  # the wrapped tool returns the recorded result to other middleware
        return (yield request)
    try:
        result = yield from run_with_read_retry(
            run.session, claim, request, _to_observation, control_exceptions=(GraphBubbleUp,)
        )
    except GraphBubbleUp:
        if not wrapper.has_returned:
            run.claims.mark_not_executed(claim, call)  # an interrupt: LangGraph calls the tool again
        raise
    except ToolTimeout as error:  # an exception would end the run
        return ToolMessage(content=str(error), tool_call_id=call["id"], name=call["name"], status="error")
    wrapper.record_result(result)
    return result


def _to_observation(result: Any) -> tuple[str, bool | None]:
    """Return the text of a result and whether it is an error; a graph command has neither."""
    if not isinstance(result, ToolMessage):
        return "a command", False
    return result.text, True if result.status == "error" else None
