"""Totals of a run in a file whose turns have no usage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace

from agentguard.trajectory.model import Source, Trajectory, Usage
from agentguard.trajectory.usage import sum_usages


def add_run_totals(run: Trajectory, totals: Iterable[Usage | None]) -> Trajectory:
    """Return the run with the sum of the totals as usage of its last turn.

    A count that any turn has is not added: the totals include it. A total of 0 counts as not recorded.

    Args:
        run: the run.
        totals: usage of the whole run, or of each of its models.
    """
    turn = next((step for step in reversed(run.steps) if step.source is Source.AGENT), None)
    total = sum_usages(totals)
    if turn is None or total is None:
        return run
    recorded = [step.usage for step in run.steps if step.usage is not None]
    missing = {
        name: value
        for name, value in asdict(total).items()
        if value and not any(getattr(usage, name) for usage in recorded)
    }
    if not missing:
        return run
    usage = replace(turn.usage or Usage(), **missing)
    steps = list(run.steps)
    steps[turn.index] = turn.with_usage(usage, turn.model)
    return replace(run, steps=tuple(steps))
