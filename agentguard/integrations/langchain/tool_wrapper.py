"""Calls of tools that are known again, and tools that are watched while others are wrapped around them.

The guard is the outermost middleware, so it sees that a call paused (``interrupt``) but not where: in the
tool, which then has to be called again, or around it once it had returned, when calling it again would do
what it does a second time. A watched tool tells the ledger at once that it returned; called once more for
the same effect it gives what it returned then, and those around it see nothing unusual.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from langchain_core.messages import ToolMessage

from agentguard.recover.effect_ledger import EffectClaim, ExecutionDecision
from agentguard.recover.tool_effects import EffectClass
from agentguard.runtime.session import Session
from agentguard.runtime.tool_execution import UNKNOWN_OUTCOME_MESSAGE


class Claims:
    """What the ledger said of the calls of one turn, by their ids; thread-safe.

    LangGraph runs a node again when it resumes or retries it, and with it calls that were made before. Those
    are the same calls, and no more of the kind.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._lock = session, threading.Lock()
        self._at: tuple[int, int] = (0, 0)
        self._known: dict[str, EffectClaim] = {}

    def of(self, call: Mapping[str, Any]) -> EffectClaim:
        """Ask the ledger whether a call may run."""
        with self._lock:
            at = len(self._session), len(self._session.recoveries)
            if at != self._at:
                self._at, self._known = at, {}
            known = self._known.get(call["id"])
            if known is None:
                claim = self._session.begin_tool(call["name"], call.get("args") or {})
            else:
                claim = self._again(known)
            self._known[call["id"]] = claim
            return claim

    def done(self, claim: EffectClaim, call: Mapping[str, Any], result: str) -> None:
        """The tool returned."""
        self._session.end_tool(claim, result)
        self._known[call["id"]] = EffectClaim(
            decision=ExecutionDecision.REUSE, effect=replace(claim.effect, result=result)
        )

    def refused(self, claim: EffectClaim, call: Mapping[str, Any]) -> None:
        """The tool did nothing."""
        self._session.end_tool(claim, "", is_refused=True)
        self._known.pop(call["id"], None)

    def _again(self, known: EffectClaim) -> EffectClaim:
        """The claim of a call that is made again: one that never came back is in doubt."""
        declared = self._session.ledger.get_tool_effect(known.effect.tool)
        free = declared.idempotent or declared.effect is EffectClass.READ
        if known.decision is not ExecutionDecision.RUN and not free:
            return known
        return replace(known, decision=ExecutionDecision.RUN if free else ExecutionDecision.OUTCOME_UNKNOWN)


class Watched:
    """The tool of one call.

    Args:
        claims: of the run.
        claim: what the ledger said of the call.
        call: of the model.

    Attributes:
        returned: the tool has returned, now or in an earlier attempt, and the ledger knows.
    """

    def __init__(self, claims: Claims, claim: EffectClaim, call: Mapping[str, Any]) -> None:
        self._claims, self._claim, self._call = claims, claim, call
        self.returned = claim.decision is not ExecutionDecision.RUN

    def tool(self, inner: Any) -> Any:
        """A copy of the tool that can be called in its place."""
        made = copy.copy(inner)

        def invoke(input: Any, config: Any = None, **options: Any) -> Any:
            return self.recorded() or self._took(inner.invoke(input, config, **options))

        async def ainvoke(input: Any, config: Any = None, **options: Any) -> Any:
            return self.recorded() or self._took(await inner.ainvoke(input, config, **options))

        # Tools are pydantic models, which refuse attributes that are no fields of theirs.
        object.__setattr__(made, "invoke", invoke)
        object.__setattr__(made, "ainvoke", ainvoke)
        return made

    def recorded(self) -> ToolMessage | None:
        """What the tool is known to have returned, or that nobody knows; None where it is to be called."""
        if self._claim.decision is ExecutionDecision.RUN:
            return None
        text = (
            self._claim.effect.result
            if self._claim.decision is ExecutionDecision.REUSE
            else UNKNOWN_OUTCOME_MESSAGE
        )
        return ToolMessage(content=text, tool_call_id=self._call["id"], name=self._call["name"])

    def settle(self, result: Any) -> None:
        """Enter a result; an error leaves open whether the tool acted, so that it stays in doubt."""
        if self.returned or (isinstance(result, ToolMessage) and result.status == "error"):
            return
        self._claims.done(self._claim, self._call, result.text if isinstance(result, ToolMessage) else "")
        self.returned = True

    def _took(self, result: Any) -> Any:
        self.settle(result)
        return result
