"""Requests that have passed, joined to runs: what `Engine` and `Exchange` do, without anything to decide.

No line is kept, since nothing is ever taken back; a turn is read once, and only if it is new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentguard.integrations.exchange.conversation import Conversation, Item
from agentguard.integrations.exchange.dialect import Dialect, steps_of
from agentguard.integrations.exchange.edits import Edits
from agentguard.integrations.exchange.engine import Engine
from agentguard.integrations.exchange.exchange import Exchange
from agentguard.integrations.exchange.lined import before_the_task
from agentguard.integrations.exchange.rejoin import answer_key, last_turn
from agentguard.trajectory.model import Source, Step


@dataclass(eq=False, slots=True, kw_only=True)
class Passed(Conversation):
    """A conversation that has passed.

    Attributes:
        first: the first step of its history, which may be the system prompt.
        read: its first steps, until they are taken in.
    """

    first: Step
    read: list[Step]


class Passing(Exchange):
    """One request and its answer; made by `PassingEngine.open`."""

    _of: Passed

    def begin(self, edits: Edits | None = None) -> None:
        """Take in the turns that are new."""
        del edits  # nobody edits what has passed
        of = self._of
        if of.over:
            steps = self._since_the_task()
            self._anew(steps)
        elif of.read:
            steps, of.read = of.read, []
            steps = steps[before_the_task([*map(_is_given, steps)], renewed=False) :]
        else:
            steps = [self._step_of(turn) for turn in self.dialect.turns(self._history, of.known)]
        for step in steps:
            of.session.commit(step)
        of.known = len(self._history)
        of.forget_answer()

    def _since_the_task(self) -> list[Step]:
        """The steps from the latest task on; what was said before it is not read, since nobody needs it."""
        of, found, asked = self._of, list[Step](), False
        for turn in reversed(self.dialect.turns(self._history, of.known)):
            if of.answer and turn[0] == of.known:
                break  # the answer, by which the conversation was found
            step = self._step_of(turn)
            given = _is_given(step)
            if asked and not given:
                break
            found.append(step)
            asked = asked or given
        return found[::-1] if asked else []

    def _step_of(self, turn: tuple[int, int]) -> Step:
        start, end = turn
        return self.dialect.step(self._history[start:end], self._engine.agent)

    def observing(self, payload: Mapping[str, Any]) -> None:
        """Take in an answer that the client has got.

        Calls in it are taken in with the next request, as only that says what they returned.
        """
        of, answer = self._of, self.dialect.answer(payload) or []
        self._deliver(answer, payload)
        if answer and not (step := self._step(payload)).tool_calls:
            of.session.commit(step)
            of.over = True
            of.session.end(refusable=False)

    def _anew(self, steps: Sequence[Step]) -> None:
        """Begin another run in a conversation whose last one has ended, with these steps."""
        of, dialect = self._of, self.dialect
        of.runs, of.over = of.runs + 1, False
        if any(step.source is Source.USER for step in steps):
            said = [of.first, *steps]
        else:
            said = steps_of(dialect, self._history, self._engine.agent)
        of.session = self._engine.session(dialect, self.request, said, f"{of.name}.{of.runs}")


class PassingEngine(Engine):
    """As `Engine`, of conversations that have passed."""

    exchange = Passing

    def _begin(
        self, dialect: Dialect, body: Mapping[str, Any], history: Sequence[Item], *, run: str
    ) -> Passed:
        name, steps = self._name_of(run), steps_of(dialect, history, self.agent)
        session = self.session(dialect, body, steps, name)
        root = body.get("previous_response_id")
        return Passed(session=session, name=name, root=root, first=steps[0], read=steps)

    def _rejoined(self, dialect: Dialect, given: Sequence[Item], run: str) -> Conversation | None:
        last = last_turn(dialect, given)
        if last is None:
            return None
        found = self.waiting.only(answer_key(dialect, given[last[0] : last[1]], run))
        if isinstance(found, Passed):
            start, end = dialect.turns(given, 0)[0]
            found.known, found.first = last[0], dialect.step(given[start:end], self.agent)
        return found


def _is_given(step: Step) -> bool:
    return step.source in (Source.USER, Source.SYSTEM)
