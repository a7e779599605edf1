"""Requests that have passed, joined to runs: what `Interceptor` and `Exchange` do, without anything to decide.

No line is kept, since nothing is ever taken back; a turn is read once, and only if it is new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentguard.intercept.api_adapter import ApiAdapter, basis_of
from agentguard.intercept.conversation import Conversation, Item
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.history_edits import Edits
from agentguard.intercept.history_matching import answer_key, last_turn
from agentguard.intercept.history_sync import before_the_task
from agentguard.intercept.interceptor import Interceptor
from agentguard.trajectory.model import Source, Step


@dataclass(eq=False, slots=True, kw_only=True)
class PassiveConversation(Conversation):
    """A conversation that has passed.

    Attributes:
        first: the first step of its history, which may be the system prompt.
        read: the first steps of its first run, until they are taken in.
    """

    first: Step
    read: list[Step]


class PassiveRequest(GuardedRequest):
    """One request and its answer; made by `PassiveInterceptor.open`."""

    _of: PassiveConversation

    def begin(self, edits: Edits | None = None) -> None:
        """Take in the turns that are new."""
        del edits  # nobody edits what has passed
        of, dialect, history, agent = self._of, self.dialect, self._history, self._engine.agent
        if of.read:
            steps, of.read = of.read, []
        else:
            steps = _since_the_task(dialect, history, agent, known=of.known, renewed=of.over)
        if of.over:
            of.runs, of.over = of.runs + 1, False
            basis = _basis(dialect, history, agent, [of.first, *steps])
            of.session = self._engine.session(dialect, self.request, basis, f"{of.name}.{of.runs}")
        for step in steps:
            of.session.commit(step)
        of.known = len(history)
        of.forget_answer()


class PassiveInterceptor(Interceptor):
    """As `Interceptor`, of conversations that have passed."""

    exchange = PassiveRequest

    def _begin(
        self, dialect: ApiAdapter, body: Mapping[str, Any], history: Sequence[Item], *, run: str
    ) -> PassiveConversation:
        name, agent = self._name_of(run), self.agent
        start, end = dialect.turns(history, 0)[0]
        first = dialect.step(history[start:end], agent)
        steps = _since_the_task(dialect, history, agent, known=0, renewed=False)
        session = self.session(dialect, body, _basis(dialect, history, agent, [first, *steps]), name)
        root = body.get("previous_response_id")
        return PassiveConversation(session=session, name=name, root=root, first=first, read=steps)

    def _rejoined(self, dialect: ApiAdapter, given: Sequence[Item], run: str) -> Conversation | None:
        last = last_turn(dialect, given)
        if last is None:
            return None
        found = self.waiting.only(answer_key(dialect, given[last[0] : last[1]], run))
        if isinstance(found, PassiveConversation):
            start, end = dialect.turns(given, 0)[0]
            found.known, found.first = last[0], dialect.step(given[start:end], self.agent)
        return found


def _since_the_task(
    dialect: ApiAdapter, history: Sequence[Item], agent: str, *, known: int, renewed: bool
) -> list[Step]:
    """The steps that are new; of a run that begins, those before its task are not read: nobody needs them."""
    turns = dialect.turns(history, known)
    if renewed or not known:
        given = [dialect.given(history[start:end]) for start, end in turns]
        turns = turns[before_the_task(given, renewed=renewed) :]
    return [dialect.step(history[start:end], agent) for start, end in turns]


def _basis(dialect: ApiAdapter, history: Sequence[Item], agent: str, steps: list[Step]) -> list[Step]:
    """As `basis_of`, from the first step and the new ones, where these hold what was asked."""
    asked = any(step.source is Source.USER for step in steps[1:])
    return steps if asked else basis_of(dialect, history, agent)
