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
        of, renewed = self._of, self._of.over
        turns = self.dialect.turns(self._history, of.known)
        steps = self._since_the_task(turns) if renewed else [self._read(turn) for turn in turns]
        if renewed:
            self._anew(steps)
        elif not of.known:
            steps = steps[before_the_task([*map(_is_given, steps)], renewed=False) :]
        for step in steps:
            of.session.commit(step)
        of.known = len(self._history)
        of.forget_answer()

    def _since_the_task(self, turns: Sequence[tuple[int, int]]) -> list[Step]:
        """The steps from the latest task on; what was said before it is not read, since nobody needs it."""
        found: list[Step] = []
        asked = False
        for turn in reversed(turns):
            step = self._read(turn)
            given = _is_given(step)
            if asked and not given:
                break
            found.append(step)
            asked = asked or given
        return found[::-1] if asked else []

    def _read(self, turn: tuple[int, int]) -> Step:
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
        if any(step.source is Source.USER for step in steps):  # the first step may be the system prompt
            said = [self._read(dialect.turns(self._history, 0)[0]), *steps]
        else:
            said = steps_of(dialect, self._history, self._engine.agent)
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


def _is_given(step: Step) -> bool:
    return step.source in (Source.USER, Source.SYSTEM)
