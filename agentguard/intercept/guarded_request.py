"""One guarded request, without input or output: what is sent, and what becomes of the answer.

A transport calls `Interceptor.open`, sends `Exchange.content` (or answers with `Exchange.final` at once), and
gives each whole answer to `Exchange.answering`, which says whether the client gets it, the model is asked
again, or the guard answers itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentguard import _sync_async
from agentguard.errors import RecoveryError
from agentguard.intercept.adapters.openai_chat import with_cost
from agentguard.intercept.api_adapter import ApiAdapter, basis_of, response_key
from agentguard.intercept.conversation import BranchStep, Conversation, Item, chain, extended
from agentguard.intercept.history_edits import Edits, told_to_others
from agentguard.intercept.history_matching import answer_key
from agentguard.intercept.history_sync import HistorySync
from agentguard.intercept.types import (
    CandidateRequest,
    Decision,
    How,
    InterceptorServices,
    Shown,
    done_already,
    itself,
    release,
)
from agentguard.recover.effect_ledger import ExecutionDecision
from agentguard.recover.strategy import Recovery, RecoveryPlan, SampleVariant
from agentguard.runtime.session import end_session
from agentguard.runtime.turn_resolution import ResolvedTurn, resolve_turn
from agentguard.trajectory.model import Step

MOST_REFUSALS = 10
"""Times that one request asks again; then the answer is let through, unless it repeats an effect."""


class GuardedRequest(HistorySync):
    """One request and its answers; made by `Interceptor.open`."""

    def __init__(
        self,
        engine: InterceptorServices,
        dialect: ApiAdapter,
        conversation: Conversation,
        body: dict[str, Any],
        *,
        history: list[Item],
        again: bytes,
        seed: str,
    ) -> None:
        super().__init__(engine, dialect, conversation, history)
        self.request, self._again_key, self._seed = body, again, seed
        self._asked, self._settled = 0, False
        self.final: str | None = None
        self.dropped = False
        self.taken: dict[str, Any] | None = None
        self.how: How = "same"
        self._apart = False
        self._before = len(conversation.session.recoveries)

    @property
    def recoveries(self) -> list[Recovery]:
        """What this request led to, so far."""
        return self.session.recoveries[self._before :]

    @property
    def content(self) -> bytes | None:
        """The body to send; None where it is the client's own."""
        body = self._body()
        return None if body is self.request else _bytes(body)

    def candidate(self, variant: SampleVariant) -> bytes:
        """The body that asks for another candidate of the turn; it is never streamed."""
        line, told = self._of.line, list(self._of.line.told)
        if variant.instruction:
            self._apart = True
            line.tell(self.dialect.told(variant.instruction))
        body = {k: v for k, v in self._body().items() if k not in ("stream", "stream_options")}
        line.told = told
        if variant.model:
            body["model"] = variant.model
        if variant.temperature is not None:
            body["temperature"] = variant.temperature
        return _bytes(body)

    def _body(self) -> dict[str, Any]:
        line, body = self._of.line, self.request
        if not self.dialect.unchanged(line, body, self._history):
            body = self.dialect.body(body, line, self._history, root=self._of.root)
        return self.dialect.without_tools(body, self._of.withheld)

    def begin(self, edits: Edits | None = None) -> None:
        """Commit the turns that are new, and do what the guard wants done before the model is asked.

        Args:
            edits: what was done to the conversation elsewhere, where it is new here.
        """
        of, renewed = self._of, self._of.over
        self._edits = edits
        if edits is not None and edits.where is not None:
            self.session.ledger.restore(edits.where, edits.known)
        if renewed:
            self._renew()
        turns = self.dialect.turns(self._history, of.known)
        if renewed or not of.known:
            of.base = self._task(turns, renewed=renewed)
        for start, end in turns:
            self._commit(start, end)
        of.known = len(self._history)
        of.forget_answer()
        if edits is not None:
            self._take_over(edits)
        plan = self.session.check_boundary()
        if plan is not None:
            self._carry_out(plan)
        self._look()

    def answering(
        self, payload: Mapping[str, Any], wire: CandidateRequest, shown: Shown = itself
    ) -> _sync_async.Effects[Decision]:
        """Judge a whole answer of the model; yields what asks for further candidates of it.

        Where another answer is to be delivered in its place, `taken` is that one.

        Args:
            payload: the answer.
            wire: how a candidate is asked for.
            shown: what the client will have seen in the end.
        """
        self._of.superseded_response_ids, self.taken, self.how = (), None, "same"
        answer = self.dialect.answer(payload)
        if answer is None:
            return self._deliver([], payload)
        if self._asked >= MOST_REFUSALS:
            step = self._step(payload)
        else:
            choice = yield from self._choosing(payload, wire)
            if choice.plan is not None:
                return self._again(choice.plan)
            payload, step = choice.response, choice.turn
            answer = self.dialect.answer(payload) or []
        if self._look():
            return "final"
        id = payload.get("id")
        seen, alias = shown(answer, self.how)
        self._of.superseded_response_ids = (alias,) if alias else ()
        if step.tool_calls:
            decision = self._called(step)
        else:
            decision = yield from self._ended(answer, step, id=id)
        if decision != "deliver":
            return decision
        if self._kept_otherwise():
            self._of.superseded_response_ids = (*self._of.superseded_response_ids, *filter(None, [id]))
            payload = {**payload, "id": None}
        self._of.judged = step if step.tool_calls and self.how == "same" and seen is None else None
        return self._deliver(answer, payload, seen=seen)

    def observing(self, payload: Mapping[str, Any]) -> None:
        """Take in an answer that the client has got, whatever the guard thinks of it.

        Calls in it are taken in with the next request, as only that says what they returned.
        """
        answer = self.dialect.answer(payload) or []
        self._deliver(answer, payload)
        if answer and not (step := self._step(payload)).tool_calls:
            self.session.commit(step)
            self._of.over = True
            self.session.end(is_refusable=False)

    def _choosing(
        self, payload: Mapping[str, Any], wire: CandidateRequest
    ) -> _sync_async.Effects[ResolvedTurn]:
        """The choice, with the payload that is gone on with as its answer."""
        choice = yield from resolve_turn(
            self.session,
            payload,
            lambda given: self._step(given if given is payload else wire.received(given)),
            lambda variant: wire.send(self.candidate(variant)),
        )
        if choice.plan is not None:
            return choice
        taken: Any = choice.response
        if taken is not payload:
            taken, self.how = wire.received(taken), "other"
        if choice.is_repaired:
            taken = self.dialect.repaired(taken, choice.turn)
            self._apart = self._apart or self.how == "other"
            self.how = "other" if self.how == "other" else "repaired"
        self.taken = None if taken is payload else taken
        return replace(choice, response=taken)

    def _step(self, payload: Mapping[str, Any]) -> Step:
        """An answer as a turn whose tools have not run. Raises RecoveryError if it is no whole one."""
        answer = self.dialect.answer(payload)
        if answer is None:
            raise RecoveryError("a candidate is no whole answer")
        step = self.dialect.step(answer, self._engine.agent)
        return with_cost(step, self.dialect.usage(payload), payload.get("model"))

    def _kept_otherwise(self) -> bool:
        """Whether a server that keeps answers keeps another one than the client gets, or to other words.

        Then the model is shown the answer anew, and not by its id.
        """
        return self.how == "repaired" or (self.how == "other" and self._apart)

    def drop(self) -> None:
        """The guard failed: nothing is known of the conversation any more."""
        self._settled = self.dropped = True

    def settle(self, told: Sequence[Item] = (), *, id: str = "") -> None:
        """Let the conversation wait for its next request; call this once, whatever became of the request.

        Args:
            told: the items of the guard's own answer, where it gave one.
            id: that answer's id.
        """
        if self._settled:
            return
        self._settled, of = True, self._of
        if told:
            of.answer, of.over, of.anchor, of.replacement = list(told), True, None, None
            of.superseded_response_ids = (id,) if id else ()
        of.history = self._history if self.dialect.keeps else []
        if not of.answer:  # nothing was answered: the same request may come again
            self._engine.waiting.put(of, [self._again_key])
            return
        if self.request.get("previous_response_id") is None:  # the history is what this request resent
            key = extended(self._again_key, of.answer, self.dialect.key)
        else:
            key = chain([*self._history, *of.answer], self.dialect.key, seed=f"{self._seed}\0")[-1]
        tips = [key, *(response_key(one) for one in (*of.superseded_response_ids, of.anchor) if one)]
        if not of.over:  # calls were made in it: their results follow, whatever else the client drops
            tips.append(answer_key(self.dialect, of.answer, self._seed))
        self._engine.waiting.put(of, tips, self._again_key)
        if self._engine.keep is not None:
            data = told_to_others(of, self.dialect, self._history, self.request)
            if data is not None:
                of.version += 1
                self._engine.keep(of, data)

    def _renew(self) -> None:
        """Begin another run in a conversation whose last one has ended."""
        of = self._of
        of.runs, of.over, of.claims = of.runs + 1, False, {}
        of.withheld.clear()
        self._before = 0
        steps = basis_of(self.dialect, self._history, self._engine.agent)
        of.session = self._engine.session(self.dialect, self.request, steps, f"{of.name}.{of.runs}")

    def _called(self, step: Step) -> Decision:
        """Enter the calls in the ledger before the client runs them; what was done is not asked for again."""
        claims = {c.id: self.session.begin_tool(c.name, c.arguments or {}) for c in step.tool_calls}
        barred = [claim for claim in claims.values() if claim.decision is not ExecutionDecision.RUN]
        if not barred:
            self._of.claims = claims
            return "deliver"
        self._of.claims = claims
        release(self._of)
        self._asked += 1
        if self._asked > MOST_REFUSALS:
            self.session.stop_reason = "the model keeps asking for a call that has already been made"
            self._look()
            return "final"
        self._of.line.tell(self.dialect.told(done_already(barred)))
        return "again"

    def _ended(self, answer: list[Item], step: Step, *, id: str | None) -> _sync_async.Effects[Decision]:
        self.session.commit(step)
        if self._look():
            return "final"
        self._of.over = True
        plan = (yield from end_session(self.session)) if self._asked < MOST_REFUSALS else None
        if plan is None:
            return "final" if self._look() else "deliver"
        self._of.over = False
        held = BranchStep(items=list(answer), kept=len(answer))  # the client never sees it
        held.anchor = id if self.dialect.keeps else None
        self._of.line.add(held)
        return self._again(plan)

    def _again(self, plan: RecoveryPlan) -> Decision:
        self._asked += 1
        self._carry_out(plan)
        return "final" if self._look() else "again"

    def _deliver(
        self, answer: list[Item], payload: Mapping[str, Any], *, seen: list[Item] | None = None
    ) -> Decision:
        self._of.answer = answer if seen is None else seen
        self._of.replacement = None if seen is None else answer
        self._of.anchor = payload.get("id") if self.dialect.keeps and answer else None
        return "deliver"

    def _look(self) -> bool:
        """Whether the run was stopped; if so the guard answers, and the run is over."""
        if self.session.stop_reason is None:
            return False
        self.final = f"[guard] The run was stopped: {self.session.stop_reason}"
        self.session.end()
        return True


def _bytes(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
