"""One guarded request, without input or output: what is sent, and what becomes of the answer.

A transport calls `Engine.open`, sends `Exchange.content` (or answers with `Exchange.final` at once), and
gives each whole answer to `Exchange.answered`, which says whether the client gets it, the model is asked
again, or the guard answers itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from agentguard.integrations._conversation import Conversation, Conversations, Held, Item, chain, view
from agentguard.integrations._openai_chat import with_cost, without_tools
from agentguard.integrations._openai_dialect import Dialect, response_key, steps_of
from agentguard.live.acting import IN_DOUBT
from agentguard.live.session import Session
from agentguard.recover.base import Plan, Restart, Rewind, Tell, Withhold
from agentguard.recover.ledger import Claim, Ruling
from agentguard.recover.wording import listed
from agentguard.trajectory.model import Source, Step

MOST_REFUSALS = 10
"""Times that one request asks again; then the answer is let through, unless it repeats an effect."""

Decision = Literal["deliver", "again", "final"]


class Host(Protocol):
    """What an exchange needs of the engine that made it."""

    agent: str
    waiting: Conversations

    def session(self, body: Mapping[str, Any], history: Sequence[Step], name: str) -> Session:
        """Begin the session of a run."""
        ...


class Exchange:
    """One request and its answers; made by `Engine.open`."""

    def __init__(
        self,
        engine: Host,
        dialect: Dialect,
        conversation: Conversation,
        body: dict[str, Any],
        *,
        history: list[Item],
        again: bytes,
        seed: str,
    ) -> None:
        self._engine, self.dialect, self._of = engine, dialect, conversation
        self.request, self._history, self._again_key, self._seed = body, history, again, seed
        self._asked, self._settled = 0, False
        self.final: str | None = None
        self.dropped = False

    @property
    def session(self) -> Session:
        """Of the run."""
        return self._of.session

    @property
    def content(self) -> bytes | None:
        """The body to send; None where it is the client's own."""
        line, body = self._of.line, self.request
        if not self.dialect.unchanged(line, body, self._history):
            body = self.dialect.body(body, line, self._history, root=self._of.root)
        body = without_tools(body, self._of.withheld)
        return None if body is self.request else json.dumps(body, separators=(",", ":")).encode()

    def begin(self) -> None:
        """Commit the turns that are new, and do what the guard wants done before the model is asked."""
        of, renewed = self._of, self._of.over
        if renewed:
            self._renew()
        turns = self.dialect.turns(self._history, of.known)
        if renewed or not of.known:
            of.base = self._task(turns, renewed=renewed)
        for start, end in turns:
            self._commit(start, end)
        of.known = len(self._history)
        of.forget_answer()
        plan = self.session.boundary()
        if plan is not None:
            self._carry_out(plan)
        self._look()

    def answered(
        self, payload: Mapping[str, Any], *, seen: list[Item] | None = None, alias: str = ""
    ) -> Decision:
        """Judge a whole answer of the model.

        Args:
            payload: the answer.
            seen: what the client will have seen, where that is not the answer itself: text of a refused one
                was streamed before it.
            alias: id of the response that the client saw begin, where that is another one.
        """
        self._of.aliases = (alias,) if alias else ()
        answer = self.dialect.answer(payload)
        if answer is None:
            return self._deliver([], payload)
        step = self.dialect.step(answer, self._engine.agent)
        step = with_cost(step, self.dialect.usage(payload), payload.get("model"))
        plan = self.session.propose(step) if self._asked < MOST_REFUSALS else None
        if plan is not None:
            return self._again(plan)
        if self._look():
            return "final"
        id = payload.get("id")
        decision = self._called(step) if step.tool_calls else self._ended(answer, step, id=id)
        if decision != "deliver":
            return decision
        return self._deliver(answer, payload, seen=seen)

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
            of.answer, of.over, of.anchor, of.better = list(told), True, None, None
            of.aliases = (id,) if id else ()
        of.history = self._history if self.dialect.keeps else []
        if not of.answer:  # nothing was answered: the same request may come again
            self._engine.waiting.put(of, [self._again_key])
            return
        key = chain([*self._history, *of.answer], self.dialect.key, seed=f"{self._seed}\0")[-1]
        tips = [key, *(response_key(one) for one in (*of.aliases, of.anchor) if one)]
        self._engine.waiting.put(of, tips, self._again_key)

    def _renew(self) -> None:
        """Begin another run in a conversation whose last one has ended."""
        of = self._of
        of.runs, of.over, of.claims = of.runs + 1, False, {}
        of.withheld.clear()
        steps = steps_of(self.dialect, self._history, self._engine.agent)
        of.session = self._engine.session(self.request, steps, f"{of.name}.{of.runs}")

    def _task(self, turns: Sequence[tuple[int, int]], *, renewed: bool) -> int:
        """Steps before the latest task: they are the model's context, and no part of the run."""
        given = [self._is_given(self._history[start:end]) for start, end in turns]
        asked = max((place for place, is_given in enumerate(given) if is_given), default=None)
        if asked is None:
            return len(self._of.line) + len(turns) if renewed else 0
        while asked and given[asked - 1]:
            asked -= 1
        return len(self._of.line) + asked if renewed or not all(given[:asked]) else 0

    def _is_given(self, items: Sequence[Item]) -> bool:
        return self.dialect.step(items, self._engine.agent).source in (Source.USER, Source.SYSTEM)

    def _retake(self) -> None:
        """Commit the steps of the line that the session does not have."""
        for held in self._of.line.steps[self._of.base + len(self.session) :]:
            self._take_in(self.dialect.step(view(held.items, self._history), self._engine.agent))

    def _commit(self, start: int, end: int) -> None:
        of, items = self._of, self._history[start:end]
        places: list[int | Item] = list(range(start, end))
        results = [one for one in range(start, end) if self.dialect.result(self._history[one])]
        answer = start == of.known
        if of.better is not None and answer:
            places = [*of.better, *results]
        step = self.dialect.step(items, self._engine.agent)
        if len(of.line) >= of.base:
            self._take_in(step)
        held = Held(items=places, given=step.source in (Source.USER, Source.SYSTEM))
        if answer and of.anchor is not None:
            held.anchor, held.kept = of.anchor, len(places) - len(results)
        of.line.add(held)

    def _take_in(self, step: Step) -> None:
        """Commit a step, its calls whose results are there as done."""
        seen = {one.call_id: one.content for one in step.observations}
        for call in step.tool_calls:
            claim = self._of.claims.pop(call.id, None)
            if claim is None:
                claim = self.session.begin_tool(call.name, call.arguments or {})
            if call.id in seen:
                self.session.end_tool(claim, seen[call.id])
        self.session.commit(step)

    def _called(self, step: Step) -> Decision:
        """Enter the calls in the ledger before the client runs them; what was done is not asked for again."""
        claims = {c.id: self.session.begin_tool(c.name, c.arguments or {}) for c in step.tool_calls}
        barred = [claim for claim in claims.values() if claim.ruling is not Ruling.RUN]
        if not barred:
            self._of.claims = claims
            return "deliver"
        self._of.claims = claims
        release(self._of)
        self._asked += 1
        if self._asked > MOST_REFUSALS:
            self.session.stopped = "the model keeps asking for a call that has already been made"
            self._look()
            return "final"
        self._of.line.tell(self.dialect.told(_done_already(barred)))
        return "again"

    def _ended(self, answer: list[Item], step: Step, *, id: str | None) -> Decision:
        self.session.commit(step)
        if self._look():
            return "final"
        self._of.over = True
        plan = self.session.end() if self._asked < MOST_REFUSALS else None
        if plan is None:
            return "final" if self._look() else "deliver"
        self._of.over = False
        held = Held(items=list(answer), kept=len(answer))  # the client never sees it
        held.anchor = id if self.dialect.keeps else None
        self._of.line.add(held)
        return self._again(plan)

    def _again(self, plan: Plan) -> Decision:
        self._asked += 1
        self._carry_out(plan)
        return "final" if self._look() else "again"

    def _deliver(
        self, answer: list[Item], payload: Mapping[str, Any], *, seen: list[Item] | None = None
    ) -> Decision:
        self._of.answer = answer if seen is None else seen
        self._of.better = None if seen is None else answer
        self._of.anchor = payload.get("id") if self.dialect.keeps and answer else None
        return "deliver"

    def _carry_out(self, plan: Plan) -> None:
        """Make the line agree with a plan that the session has carried out."""
        line = self._of.line
        for action in plan.actions:
            if isinstance(action, Rewind):
                line.cut(self._of.base + action.to_step)
            elif isinstance(action, Restart):
                line.cut(self._first_answer())
                line.tell(self.dialect.told(action.note))
            elif isinstance(action, Tell):
                line.tell(self.dialect.told(action.text))
            elif isinstance(action, Withhold):
                self._of.withheld |= set(action.tools)
        if self.session.stopped is None:
            self._retake()

    def _first_answer(self) -> int:
        """The step after the latest task."""
        return max((i for i, held in enumerate(self._of.line.steps) if held.given), default=-1) + 1

    def _look(self) -> bool:
        """Whether the run was stopped; if so the guard answers, and the run is over."""
        if self.session.stopped is None:
            return False
        self.final = f"[guard] The run was stopped: {self.session.stopped}"
        self.session.end()
        return True


def release(conversation: Conversation) -> None:
    """Calls that were claimed and that nobody ran: they may be made again."""
    session = conversation.session
    for claim in conversation.claims.values():
        session.end_tool(claim, "", refused=True)
    session.ledger.rewind(len(session))
    conversation.claims = {}


def _done_already(barred: Sequence[Claim]) -> str:
    done = [claim.effect for claim in barred if claim.ruling is Ruling.REUSE]
    doubt = [claim.effect for claim in barred if claim.ruling is Ruling.IN_DOUBT]
    parts = ["[guard] Your last answer was dropped."]
    if done:
        parts.append(f"These calls have already taken effect; do not repeat them: {listed(done)}.")
    if doubt:
        parts.append(f"{IN_DOUBT.removeprefix('[guard] ')} The call: {listed(doubt)}.")
    return " ".join([*parts, "Go on from what they returned."])
