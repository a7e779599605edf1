"""Edits of the course of a run: a skipped check, a premature end, a loop, a step limit."""

from __future__ import annotations

import random
import re

from agentguard.detect.tool_names import is_write_tool
from agentguard.evals.inject.edits.base import BaseEdit, RewrittenRun, TailHandling
from agentguard.evals.inject.edits.failure_messages import format_done_claim
from agentguard.evals.inject.edits.run_editor import RunEditor, build_message_turn
from agentguard.evals.inject.edits.run_index import RunIndex
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


class DroppedConstraint(BaseEdit):
    """Edit that removes a lookup or confirmation that the instructions require, but keeps the change."""

    name = "dropped_constraint"
    summary = "a check or a confirmation that the instructions ask for is left out"
    codes = (
        "agent_error:planning.constraint_ignorance",
        "agentrx:instruction_adherence_failure",
        "mast:no_or_incomplete_verification",
    )
    module = "planning"

    def make(self, run_index: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """Remove a lookup whose result no later step needs, or a question and its answer."""
        instructions = (run_index.run.task, *run_index.run.system_prompts.values())
        if not any(_RULE.search(text) for text in instructions):
            return None
        end = _find_lookup_end(run_index, step) or _find_confirmation_end(run_index, step)
        if end is None or not run_index.is_agent(end) or run_index.is_needed_later(step, end):
            return None
        draft = RunEditor(run_index, rng)
        draft.remove(step, end)
        action = "A look" if run_index.steps[step].tool_calls else "A confirmation"
        reason = f"{action} that the instructions ask for is left out, and the agent goes on."
        cause = self.build_cause(run_index.steps[end].agent, step, reason)
        return draft.finish(step=step, cause=cause, tail=TailHandling.KEPT)


class ProgressMisjudge(BaseEdit):
    """Edit that makes the agent declare the task complete although work remains."""

    name = "progress_misjudge"
    summary = "the agent says that all is done while there is more to do"
    codes = ("agent_error:reflection.progress_misjudge", "mast:premature_termination")
    module = "reflection"

    def make(self, run_index: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """Replace a turn with the claim and end the run, or remove a change that no later step shows."""
        has_progress = any(
            (run_index.is_agent(i) and run_index.find_turn_end(i) > i + 1) or run_index.has_answered_calls(i)
            for i in range(step)
        )
        if not has_progress or not run_index.has_work_left(step):
            return None
        return self._skip_change(run_index, step, rng) or self._declare_done(run_index, step, rng)

    def _declare_done(self, run_index: RunIndex, step: int, rng: random.Random) -> RewrittenRun:
        turn = run_index.steps[step]
        draft = RunEditor(run_index, rng)
        draft.truncate(step + 1)
        draft.set(step, build_message_turn(turn, format_done_claim(run_index, step, rng)))
        draft.append_farewell(step + 1)
        reason = "The agent says that the work is done; there was more to do."
        return draft.finish(
            step=step, cause=self.build_cause(turn.agent, step, reason), tail=TailHandling.TRUNCATED
        )

    def _skip_change(self, run_index: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        ends = step + 1
        if not (
            run_index.has_answered_calls(step) and run_index.is_mutating(step) and run_index.is_agent(ends)
        ) or run_index.has_answers_after(step):
            return None
        if run_index.is_needed_later(step, ends) or not run_index.steps[ends].content:
            return None
        draft = RunEditor(run_index, rng)
        draft.remove(step, ends)
        reason = "The agent says that the work is done; its last change was not made."
        cause = self.build_cause(run_index.steps[ends].agent, step, reason)
        return draft.finish(step=step, cause=cause, tail=TailHandling.KEPT)


class RepeatLoop(BaseEdit):
    """Edit that repeats a lookup until the run ends."""

    name = "repeat_loop"
    summary = "a look is made again and again with nothing changed, until the run ends"
    codes = ("agent_error:planning.inefficient_plan", "mast:step_repetition")
    module = "planning"

    def make(self, run_index: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """Repeat a turn that only reads; its result stays the same."""
        turn = run_index.steps[step]
        if (
            not run_index.has_answered_calls(step)
            or run_index.is_mutating(step)
            or not run_index.has_no_error(step)
        ):
            return None
        if not run_index.has_work_left(step + 1) and not run_index.has_answers_after(step):
            return None
        draft = RunEditor(run_index, rng)
        draft.truncate(step + 1)
        remaining_steps = len(run_index.steps) - step - 1
        for _ in range(min(_MOST_REPEATS, max(_LEAST_REPEATS, remaining_steps + rng.randint(-1, 2)))):
            draft.append(draft.copy_step(turn))
        reason = "The same look is made again, with nothing changed in between, until the run ends."
        cause = self.build_cause(turn.agent, step + 1, reason)
        return draft.finish(step=step + 1, cause=cause, tail=TailHandling.TRUNCATED)


class StepLimit(BaseEdit):
    """Edit that stops a correct run before its end."""

    name = "step_limit"
    summary = "the run stops while there is more to do, as at a limit of steps"
    codes = ("agent_error:system.step_limit",)
    module = "system"

    def make(self, run_index: RunIndex, step: int, rng: random.Random) -> RewrittenRun | None:
        """End the run after a turn with tool calls; the turn itself is unchanged."""
        end = run_index.find_turn_end(step)
        if not run_index.has_work_left(end) or not (run_index.has_answered_calls(step) or end > step + 1):
            return None
        draft = RunEditor(run_index, rng)
        draft.truncate(end)
        reason = "The run was stopped here although there was more to do."
        cause = self.build_cause(run_index.steps[step].agent, step, reason)
        return draft.finish(step=step, cause=cause, tail=TailHandling.TRUNCATED)


DROPPED_CONSTRAINT = DroppedConstraint()
PROGRESS_MISJUDGE = ProgressMisjudge()
REPEAT_LOOP = RepeatLoop()
STEP_LIMIT = StepLimit()


def _find_lookup_end(run_index: RunIndex, step: int) -> int | None:
    """Return the index after a turn that only reads, if a later step changes state; otherwise None."""
    if (
        not run_index.has_answered_calls(step)
        or not run_index.has_no_error(step)
        or not run_index.is_mutating_from(step + 1)
    ):
        return None
    return None if any(is_write_tool(call.name) for call in run_index.steps[step].tool_calls) else step + 1


def _find_confirmation_end(run_index: RunIndex, step: int) -> int | None:
    """Return the index after a request for consent and its answer, if the change follows directly."""
    request = run_index.steps[step]
    if request.tool_calls or step + 2 >= len(run_index.steps) or "?" not in request.content:
        return None
    reply = run_index.steps[step + 1]
    consents = (
        reply.source is Source.USER and len(reply.content) <= _LONG and _AGREES.match(reply.content.lower())
    )
    return (
        step + 2
        if consents and _ASKS.search(request.content.lower()) and run_index.is_mutating(step + 2)
        else None
    )
