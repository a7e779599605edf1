"""Errors in the course of a run: a check left out, an end declared too early, a loop, a limit."""

from __future__ import annotations

import random
import re

from agentguard.evals.inject.edits.base import Rewritten, Tail
from agentguard.evals.inject.edits.draft import Draft, plain_turn
from agentguard.evals.inject.edits.maker import Maker
from agentguard.evals.inject.edits.reading import Reading
from agentguard.evals.inject.edits.wording import claiming_done
from agentguard.judge.features.tools import changes
from agentguard.trajectory.model import Source

_LEAST_REPEATS, _MOST_REPEATS = 3, 10
_RULE = re.compile(
    r"\b(?:verif\w+|check\w*|confirm\w*|ensure|make sure|must|before|obtain|required?|only if|never)\b",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"\b(?:confirm\w*|proceed|go ahead|would you like|shall i|is (?:that|this) (?:ok|correct))\b"
)
_AGREES = re.compile(
    r"\W*(?:yes|sure|ok(?:ay)?|please (?:do|go|proceed)|go ahead|correct|that works|confirmed)\b"
)
_LONG = 600


class DroppedConstraint(Maker):
    """A look or a confirmation that the instructions ask for is left out; the change is made all the same."""

    name = "dropped_constraint"
    summary = "a check or a confirmation that the instructions ask for is left out"
    codes = (
        "agent_error:planning.constraint_ignorance",
        "agentrx:instruction_adherence_failure",
        "mast:no_or_incomplete_verification",
    )
    module = "planning"

    def make(self, read: Reading, step: int, rng: random.Random) -> Rewritten | None:
        """Take out a look whose result is not needed to go on, or a question and its answer."""
        given = (read.run.task, *read.run.system_prompts.values())
        if not any(_RULE.search(text) for text in given):
            return None
        end = _look(read, step) or _confirmation(read, step)
        if end is None or not read.is_agent(end) or read.needed_later(step, end):
            return None
        draft = Draft(read, rng)
        draft.remove(step, end)
        what = "A look" if read.steps[step].tool_calls else "A confirmation"
        reason = f"{what} that the instructions ask for is left out, and the agent goes on."
        cause = self.cause(read.steps[end].agent, step, reason)
        return draft.finish(step=step, cause=cause, tail=Tail.KEPT)


class ProgressMisjudge(Maker):
    """The agent declares the work done although there is more to do."""

    name = "progress_misjudge"
    summary = "the agent says that all is done while there is more to do"
    codes = ("agent_error:reflection.progress_misjudge", "mast:premature_termination")
    module = "reflection"

    def make(self, read: Reading, step: int, rng: random.Random) -> Rewritten | None:
        """Replace a turn by the claim and end the run, or leave out a change that nothing later shows."""
        begun = any((read.is_agent(i) and read.end_of_turn(i) > i + 1) or read.acts(i) for i in range(step))
        if not begun or not read.work_left(step):
            return None
        return self._skipped(read, step, rng) or self._declared(read, step, rng)

    def _declared(self, read: Reading, step: int, rng: random.Random) -> Rewritten:
        turn = read.steps[step]
        draft = Draft(read, rng)
        draft.cut(step + 1)
        draft.set(step, plain_turn(turn, claiming_done(read, step, rng)))
        draft.farewell(step + 1)
        reason = "The agent says that the work is done; there was more to do."
        return draft.finish(step=step, cause=self.cause(turn.agent, step, reason), tail=Tail.TRUNCATED)

    def _skipped(self, read: Reading, step: int, rng: random.Random) -> Rewritten | None:
        ends = step + 1
        if not (read.acts(step) and read.writes(step) and read.is_agent(ends)) or read.answers_after(step):
            return None
        if read.needed_later(step, ends) or not read.steps[ends].content:
            return None
        draft = Draft(read, rng)
        draft.remove(step, ends)
        reason = "The agent says that the work is done; its last change was not made."
        cause = self.cause(read.steps[ends].agent, step, reason)
        return draft.finish(step=step, cause=cause, tail=Tail.KEPT)


class RepeatLoop(Maker):
    """A look is made again and again until the run ends."""

    name = "repeat_loop"
    summary = "a look is made again and again with nothing changed, until the run ends"
    codes = ("agent_error:planning.inefficient_plan", "mast:step_repetition")
    module = "planning"

    def make(self, read: Reading, step: int, rng: random.Random) -> Rewritten | None:
        """Repeat a turn that only looks; what it finds cannot change."""
        turn = read.steps[step]
        if not read.acts(step) or read.writes(step) or not read.went_well(step):
            return None
        if not read.work_left(step + 1) and not read.answers_after(step):
            return None
        draft = Draft(read, rng)
        draft.cut(step + 1)
        left = len(read.steps) - step - 1
        for _ in range(min(_MOST_REPEATS, max(_LEAST_REPEATS, left + rng.randint(-1, 2)))):
            draft.add(draft.again(turn))
        reason = "The same look is made again, with nothing changed in between, until the run ends."
        cause = self.cause(turn.agent, step + 1, reason)
        return draft.finish(step=step + 1, cause=cause, tail=Tail.TRUNCATED)


class StepLimit(Maker):
    """The run is stopped while it is going well."""

    name = "step_limit"
    summary = "the run stops while there is more to do, as at a limit of steps"
    codes = ("agent_error:system.step_limit",)
    module = "system"

    def make(self, read: Reading, step: int, rng: random.Random) -> Rewritten | None:
        """End the run behind a turn that acted; the turn itself stays as it was."""
        end = read.end_of_turn(step)
        if not read.work_left(end) or not (read.acts(step) or end > step + 1):
            return None
        draft = Draft(read, rng)
        draft.cut(end)
        reason = "The run was stopped here although there was more to do."
        cause = self.cause(read.steps[step].agent, step, reason)
        return draft.finish(step=step, cause=cause, tail=Tail.TRUNCATED)


DROPPED_CONSTRAINT = DroppedConstraint()
PROGRESS_MISJUDGE = ProgressMisjudge()
REPEAT_LOOP = RepeatLoop()
STEP_LIMIT = StepLimit()


def _look(read: Reading, step: int) -> int | None:
    """Index behind a turn that only looks, where changes follow."""
    if not read.acts(step) or not read.went_well(step) or not read.writes_from(step + 1):
        return None
    return None if any(changes(call.name) for call in read.steps[step].tool_calls) else step + 1


def _confirmation(read: Reading, step: int) -> int | None:
    """Index behind a question for consent and its answer, where the change follows at once."""
    asked = read.steps[step]
    if asked.tool_calls or step + 2 >= len(read.steps) or "?" not in asked.content:
        return None
    reply = read.steps[step + 1]
    consents = (
        reply.source is Source.USER and len(reply.content) <= _LONG and _AGREES.match(reply.content.lower())
    )
    return step + 2 if consents and _ASKS.search(asked.content.lower()) and read.writes(step + 2) else None
