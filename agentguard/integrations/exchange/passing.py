"""Requests that have passed, joined to runs: what `Engine` and `Exchange` do, without anything to decide.

No line is kept, since nothing is ever taken back; a turn is read once, and only if it is new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentguard.integrations.exchange.conversation import Conversation, Item
from agentguard.integrations.exchange.dialect import Dialect, steps_of
from agentguard.integrations.exchange.edits import Edits
from agentguard.integrations.exchange.engine import Engine
from agentguard.integrations.exchange.exchange import Exchange
from agentguard.integrations.exchange.lined import before_the_task
from agentguard.integrations.exchange.rejoin import answer_key, last_turn
from agentguard.trajectory.model import Source, Step


class Passing(Exchange):
    """One request and its answer; made by `PassingEngine.open`."""

    def begin(self, edits: Edits | None = None) -> None:
        """Take in the turns that are new."""
        del edits  # nobody edits what has passed
        of, history, agent = self._of, self._history, self._engine.agent
        renewed = of.over
        begins = renewed or not of.known
        steps = [
            self.dialect.step(history[start:end], agent)
            for start, end in self.dialect.turns(history, of.known)
        ]
        if renewed:
            self._anew(steps)
        given = [step.source in (Source.USER, Source.SYSTEM) for step in steps] if begins else []
        for step in steps[before_the_task(given, renewed=renewed) :]:
            of.session.commit(step)
        of.known = len(history)
        of.forget_answer()

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
        of, dialect, agent = self._of, self.dialect, self._engine.agent
        of.runs, of.over = of.runs + 1, False
        if any(step.source is Source.USER for step in steps):
            start, end = dialect.turns(self._history, 0)[0]
            said = [dialect.step(self._history[start:end], agent), *steps]
        else:
            said = steps_of(dialect, self._history, agent)
        of.session = self._engine.session(dialect, self.request, said, f"{of.name}.{of.runs}")


class PassingEngine(Engine):
    """As `Engine`, of conversations that have passed."""

    exchange = Passing

    def _rejoined(self, dialect: Dialect, given: Sequence[Item], run: str) -> Conversation | None:
        last = last_turn(dialect, given)
        if last is None:
            return None
        found = self.waiting.only(answer_key(dialect, given[last[0] : last[1]], run))
        if found is not None:
            found.known = last[0]
        return found
