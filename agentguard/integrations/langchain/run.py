"""One guarded run of a LangChain agent, and how its tools are called: shared by middleware and graph."""

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


class ToolClaims:
    """What the ledger said of the calls of one turn, by their ids; thread-safe.

    LangGraph runs a node again when it resumes or retries it, and with it calls that were made before. Those
    are the same calls, and no more of the kind.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._lock = session, threading.Lock()
        self._position: tuple[int, int] = (0, 0)
        self._claims_by_call: dict[str, EffectClaim] = {}

    def claim(self, call: Mapping[str, Any]) -> EffectClaim:
        """Ask the ledger whether a call may run."""
        with self._lock:
            at = len(self._session), len(self._session.recoveries)
            if at != self._position:
                self._position, self._claims_by_call = at, {}
            known = self._claims_by_call.get(call["id"])
            if known is None:
                claim = self._session.begin_tool(call["name"], call.get("args") or {})
            else:
                claim = self._renew_claim(known)
            self._claims_by_call[call["id"]] = claim
            return claim

    def mark_done(self, claim: EffectClaim, call: Mapping[str, Any], result: str) -> None:
        """The tool returned."""
        self._session.end_tool(claim, result)
        self._claims_by_call[call["id"]] = EffectClaim(
            decision=ExecutionDecision.REUSE, effect=replace(claim.effect, result=result)
        )

    def mark_not_executed(self, claim: EffectClaim, call: Mapping[str, Any]) -> None:
        """The tool did nothing."""
        self._session.end_tool(claim, "", is_refused=True)
        self._claims_by_call.pop(call["id"], None)

    def _renew_claim(self, claim: EffectClaim) -> EffectClaim:
        """The claim of a call that is made again: one that never came back is in doubt."""
        declared = self._session.ledger.get_tool_effect(claim.effect.tool)
        free = declared.idempotent or declared.effect is EffectClass.READ
        if claim.decision is not ExecutionDecision.RUN and not free:
            return claim
        return replace(claim, decision=ExecutionDecision.RUN if free else ExecutionDecision.OUTCOME_UNKNOWN)


class ToolWrapper:
    """The tool of one call.

    Args:
        claims: of the run.
        claim: what the ledger said of the call.
        call: of the model.

    Attributes:
        returned: the tool has returned, now or in an earlier attempt, and the ledger knows.
    """

    def __init__(self, claims: ToolClaims, claim: EffectClaim, call: Mapping[str, Any]) -> None:
        self._claims, self._claim, self._call = claims, claim, call
        self.has_returned = claim.decision is not ExecutionDecision.RUN

    def wrap(self, inner: Any) -> Any:
        """A copy of the tool that can be called in its place."""
        made = copy.copy(inner)

        def invoke(input: Any, config: Any = None, **options: Any) -> Any:
            return self.get_recorded_result() or self._record_and_return(
                inner.invoke(input, config, **options)
            )

        async def ainvoke(input: Any, config: Any = None, **options: Any) -> Any:
            return self.get_recorded_result() or self._record_and_return(
                await inner.ainvoke(input, config, **options)
            )

        # Tools are pydantic models, which refuse attributes that are no fields of theirs.
        object.__setattr__(made, "invoke", invoke)
        object.__setattr__(made, "ainvoke", ainvoke)
        return made

    def get_recorded_result(self) -> ToolMessage | None:
        """What the tool is known to have returned, or that nobody knows; None where it is to be called."""
        if self._claim.decision is ExecutionDecision.RUN:
            return None
        text = (
            self._claim.effect.result
            if self._claim.decision is ExecutionDecision.REUSE
            else UNKNOWN_OUTCOME_MESSAGE
        )
        return ToolMessage(content=text, tool_call_id=self._call["id"], name=self._call["name"])

    def record_result(self, result: Any) -> None:
        """Enter a result; an error leaves open whether the tool acted, so that it stays in doubt."""
        if self.has_returned or (isinstance(result, ToolMessage) and result.status == "error"):
            return
        self._claims.mark_done(
            self._claim, self._call, result.text if isinstance(result, ToolMessage) else ""
        )
        self.has_returned = True

    def _record_and_return(self, result: Any) -> Any:
        self.record_result(result)
        return result


RUN_CONFIG_KEY = "__agentguard_run"
"""Where a guarded graph puts its run in ``configurable``; two underscores keep it out of checkpoints."""

_NAMESPACE_SEPARATOR = "|"
"""Parts the names of a node and of the sub-graph's node in it, in LangGraph's checkpoint namespaces."""


class AgentRun:
    """One run of the agent: its session, its messages by step, and the tools that were taken away."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.branch = MessageBranch()
        self.disabled_tools: set[str] = set()
        self.known_tools: set[str] = set()
        self.response_format: Any = None
        """Tools that the session knows of, and the structured output whose tools are among them."""
        self.ask: Callable[[str], str] | None = None
        """Puts a question to a person, where somebody can be asked."""
        self.claims = ToolClaims(session)


def get_current_run(*, include_nested: bool = False) -> AgentRun | None:
    """The run of the guarded graph whose node this is called in; None outside of one.

    Args:
        nested: in its sub-graphs, too: their tools are tools of the run, their messages are not.
    """
    try:
        given: Mapping[str, Any] = get_config().get("configurable", {})
    except RuntimeError:  # outside of any graph
        return None
    run = given.get(RUN_CONFIG_KEY)
    inside = _NAMESPACE_SEPARATOR in (given.get("checkpoint_ns") or "")
    return run if isinstance(run, AgentRun) and (include_nested or not inside) else None


def call_tool(run: AgentRun | None, request: Any, handler: Callable[[Any], Any]) -> Any:
    """Call a tool so that each effect happens once; without a run it is just called."""
    return handler(request) if run is None else _sync_async.run_sync(_guard_call(run, request), handler)


async def acall_tool(run: AgentRun | None, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
    """As `call_tool`, for a tool that is awaited."""
    return await (
        handler(request) if run is None else _sync_async.run_async(_guard_call(run, request), handler)
    )


def _guard_call(run: AgentRun, request: Any) -> _sync_async.Effects[Any]:
    """Yields the request where the tool is to run; is sent what it returned."""
    call = request.tool_call
    claim = run.claims.claim(call)
    watched = ToolWrapper(run.claims, claim, call)
    if request.tool is None:  # another middleware brings the tool along
        if (known := watched.get_recorded_result()) is not None:
            return known
    else:
        request = request.override(tool=watched.wrap(request.tool))
    if watched.has_returned:  # what is wrapped around the tool may still have something to do or to ask
        return (yield request)
    try:
        result = yield from run_with_read_retry(
            run.session, claim, request, _to_observation, control_exceptions=(GraphBubbleUp,)
        )
    except GraphBubbleUp:
        if not watched.has_returned:
            run.claims.mark_not_executed(claim, call)  # it only paused: it will be called again
        raise
    watched.record_result(result)
    return result


def _to_observation(result: Any) -> tuple[str, bool | None]:
    """What a tool returned, and whether it failed; a command of the graph is no result and no failure."""
    if not isinstance(result, ToolMessage):
        return "a command", False
    return result.text, True if result.status == "error" else None
