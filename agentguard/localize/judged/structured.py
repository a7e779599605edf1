"""``structured``: the run as numbered turns with their roles and outcomes, in one question.

Consecutive steps of one agent are one turn, turns are numbered, and a log beside the run says of each who
made it, what part that agent has, and what came back. Structure lifts one-call judges more than any other
change to the prompt (see `agentguard.localize.structure`); what the rules found is noted, without a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentguard.detect.base import Finding
from agentguard.judge.base import Choice
from agentguard.localize.judged.asking import Asking
from agentguard.localize.judged.method import Judged, Ranked, judged
from agentguard.localize.roles import brief, coordinators, failed_outcome
from agentguard.localize.structure import Turn, turns
from agentguard.trajectory.model import Source, Trajectory

_MOST_LINES: Final = 200
_MESSAGE: Final = 120


def structured(**options: Any) -> Judged:
    """Make the localizer; options as `agentguard.localize.judged.method.judged` takes them."""
    return judged("structured", ask, options)


def ask(asking: Asking, run: Trajectory, findings: Sequence[Finding]) -> Ranked:
    """Which turn it was; the first step of a turn is the likeliest of it, the next half as likely."""
    held = candidates(run)
    found = asking.choose(run, question(run, held, findings)) or {}
    return Ranked(steps=shared(held, found))


def candidates(run: Trajectory) -> tuple[Turn, ...]:
    """The turns that can be at fault: those of agents; all turns where no agent made one."""
    grouped = turns(run)
    return tuple(turn for turn in grouped if turn.source is Source.AGENT) or grouped


def question(run: Trajectory, held: Sequence[Turn], findings: Sequence[Finding]) -> Choice:
    """Which of some turns is the root cause, with the structured log beside the run."""
    text = (
        "The task failed. Which turn made the first mistake that decided it, so that the task could have "
        "been done if that turn had been right?"
    )
    return Choice(
        id="root_cause_turn",
        text=text,
        options=tuple(label(turn) for turn in held),
        shown=log(run, held, findings),
    )


def label(turn: Turn) -> str:
    """A turn by its steps, as the run shows them."""
    first, last = turn.steps[0], turn.steps[-1]
    return f"step {first}" if first == last else f"steps {first} to {last}"


def log(run: Trajectory, held: Sequence[Turn], findings: Sequence[Finding]) -> tuple[str, ...]:
    """A line a turn: its steps, who made it, in which part, what came back, what rules noticed."""
    steering, opening = coordinators(run), brief(run)
    at: dict[int, list[str]] = {}
    for finding in findings:
        at.setdefault(finding.step, []).append(" ".join(finding.message.split())[:_MESSAGE])
    lines = []
    for turn in held[:_MOST_LINES]:
        part = "gives the task" if opening in turn.steps else "steers" if turn.agent in steering else "works"
        came = "; an error came back" if any(failed_outcome(run, step) for step in turn.steps) else ""
        noticed = [said for step in turn.steps for said in at.get(step, ())]
        more = f"; noticed: {' | '.join(noticed[:2])}" if noticed else ""
        lines.append(f"turn {turn.number}, {label(turn)}, {turn.agent}: {part}{came}{more}")
    return tuple(lines)


def shared(held: Sequence[Turn], said: Mapping[str, float]) -> dict[int, float]:
    """Each turn's probability, by its label, dealt out to its steps."""
    steps: dict[int, float] = {}
    for turn in held:
        weights = [0.5**place for place in range(len(turn.steps))]
        total = sum(weights)
        for step, weight in zip(turn.steps, weights, strict=True):
            steps[step] = said.get(label(turn), 0.0) * weight / total
    return {step: share for step, share in steps.items() if share > 0.0}
