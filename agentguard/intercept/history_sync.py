"""The history of a request on the line of its conversation, and what plans do to it; a part of `Exchange`."""

from __future__ import annotations

from collections.abc import Sequence

from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.conversation import BranchStep, Conversation, Item, view
from agentguard.intercept.history_edits import Edits, turn_name
from agentguard.intercept.types import InterceptorServices
from agentguard.recover.strategy import DisableTools, RecoveryPlan, Repair, Restart, Rewind, SendMessage
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Step


class HistorySync:
    """Keeps the line and the session in step with the client's history.

    Args:
        engine: made it.
        dialect: of the request.
        conversation: that the request goes on with.
        history: all that was said before, as the client has it.
    """

    def __init__(
        self,
        engine: InterceptorServices,
        dialect: ApiAdapter,
        conversation: Conversation,
        history: list[Item],
    ) -> None:
        self._engine, self.dialect, self._of, self._history = engine, dialect, conversation, history
        self._edits: Edits | None = None

    @property
    def session(self) -> Session:
        """Of the run."""
        return self._of.session

    def _take_over(self, edits: Edits) -> None:
        """Go on as it was gone on elsewhere; the turns have been taken in."""
        of, self._edits = self._of, None
        of.version += 1
        self.session.ledger.rewind(len(self.session))
        of.left |= edits.left
        of.withheld |= edits.withheld
        of.session.account.restore(edits.spent, {})
        for item in edits.told:
            of.line.tell(item)

    def _task(self, turns: Sequence[tuple[int, int]], *, renewed: bool) -> int:
        """Steps before the latest task: they are the model's context, and no part of the run."""
        given = [self.dialect.given(self._history[start:end]) for start, end in turns]
        return len(self._of.line) + before_the_task(given, renewed=renewed)

    def _retake(self) -> None:
        """Commit the steps of the line that the session does not have."""
        for held in self._of.line.steps[max(0, self._of.base + len(self.session)) :]:
            self._take_in(self.dialect.step(view(held.items, self._history), self._engine.agent))

    def _commit(self, start: int, end: int) -> None:
        of, items = self._of, self._history[start:end]
        places: list[int | Item] = list(range(start, end))
        results = [one for one in range(start, end) if self.dialect.result(self._history[one])]
        answer = start == of.known
        if of.replacement is not None and answer:
            places = [*of.replacement, *results]
        if self._edits is not None:
            name = turn_name(self.dialect, items)
            if name in self._edits.left:
                if len(of.line) >= of.base:
                    self._enter(self.dialect.step(items, self._engine.agent))
                of.base -= len(of.line) < of.base
                return
            self.session.ledger.rewind(len(self.session))  # what was left before it is not on the line
            for item in self._edits.notes.get(name, ()):
                of.line.tell(item)
        if len(of.line) >= of.base:
            self._take_in(self._turn(items, answer=answer))
        held = BranchStep(items=places, given=self.dialect.given(items))
        if answer and of.anchor is not None:
            held.anchor, held.kept = of.anchor, len(places) - len(results)
        of.line.add(held)

    def _turn(self, items: Sequence[Item], *, answer: bool) -> Step:
        """A turn as a step: the one that was judged, where the client resends the answer as it got it."""
        judged, given = self._of.judged, len(self._of.answer)
        if answer and judged is not None and _alike(items[:given], self._of.answer):
            results = items[given:]
            if all(map(self.dialect.result, results)):
                return self.dialect.answered(judged, results)
        return self.dialect.step(items, self._engine.agent)

    def _take_in(self, step: Step) -> None:
        """Commit a step, its calls whose results are there as done."""
        self._enter(step)
        self.session.commit(step)

    def _enter(self, step: Step) -> None:
        """Enter a step's calls in the ledger; of a turn that was taken back, too, as they were made."""
        seen = {one.call_id: one.content for one in step.observations}
        for call in step.tool_calls:
            claim = self._of.claims.pop(call.id, None)
            if claim is None:
                claim = self.session.begin_tool(call.name, call.arguments or {})
            if call.id in seen:
                self.session.end_tool(claim, seen[call.id])

    def _carry_out(self, plan: RecoveryPlan) -> None:
        """Make the line agree with a plan that the session has carried out."""
        line = self._of.line
        for action in plan.actions:
            if isinstance(action, Rewind):
                self._cut(max(0, self._of.base + action.to_step))
            elif isinstance(action, Restart):
                self._cut(self._first_answer())
                line.tell(self.dialect.told(action.note))
            elif isinstance(action, SendMessage):
                line.tell(self.dialect.told(action.text))
            elif isinstance(action, Repair):
                self._repair(action)
            elif isinstance(action, DisableTools):
                self._of.withheld |= set(action.tools)
        if self.session.stop_reason is None:
            self._retake()

    def _cut(self, keep: int) -> None:
        """Take back the agent's steps from ``keep`` on."""
        for held in self._of.line.steps[keep:]:
            if not held.given:
                self._of.left.add(turn_name(self.dialect, view(held.items, self._history)))
        self._of.line.cut(keep)

    def _repair(self, repair: Repair) -> None:
        """Send the model another text in place of what a call returned."""
        line, step = self._of.line, self._of.base + repair.step
        if step < 0:  # the client has dropped it
            return
        items = view(line.steps[step].items, self._history)
        results = [place for place, item in enumerate(items) if self.dialect.result(item)]
        at = results[int(repair.field.partition("[")[2].rstrip("]"))]
        line.repair(step, at, self.dialect.result_saying(items[at], repair.text))

    def _first_answer(self) -> int:
        """The step after the latest task."""
        return max((i for i, held in enumerate(self._of.line.steps) if held.given), default=-1) + 1


def before_the_task(given: Sequence[bool], *, renewed: bool) -> int:
    """How many turns stand before the latest task.

    Args:
        given: of each turn, whether a user or a system prompt gave it.
        renewed: they follow a run that has ended; else they are all that is known, and where nothing but
            prompts comes before the task, these belong to the run.
    """
    asked = max((place for place, is_given in enumerate(given) if is_given), default=None)
    if asked is None:
        return len(given) if renewed else 0
    while asked and given[asked - 1]:
        asked -= 1
    return asked if renewed or not all(given[:asked]) else 0


def _alike(some: Sequence[Item], others: Sequence[Item]) -> bool:
    """Whether items are equal but for fields that are null, which clients add and leave out."""
    return len(some) == len(others) and all(
        one is other or one == other or _said(one) == _said(other)
        for one, other in zip(some, others, strict=True)
    )


def _said(item: Item) -> Item:
    return {name: value for name, value in item.items() if value is not None}
