"""Side-by-side comparison of two runs, with their first divergence."""

from __future__ import annotations

from dataclasses import dataclass

from agentguard.trajectory.model import Trajectory
from agentguard_server.viewer.run.branch_diff import StepPair, align_steps

_MAX_STEPS = 1_000
_MAX_PAIRS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiff:
    """Comparison of two runs.

    Attributes:
        pairs: corresponding steps, at most 200 pairs.
        more: number of pairs left out.
        divergence: position of the first pair whose steps differ; None if all are the same.
    """

    pairs: tuple[StepPair, ...]
    more: int
    divergence: int | None


def diff_runs(first: Trajectory, second: Trajectory) -> RunDiff:
    """Compare the current branches of two runs; of longer runs, their first 1,000 steps."""
    pairs = align_steps(first.steps[:_MAX_STEPS], second.steps[:_MAX_STEPS], 0)
    divergence = next((place for place, pair in enumerate(pairs) if pair.relation != "same"), None)
    return RunDiff(
        pairs=tuple(pairs[:_MAX_PAIRS]), more=max(0, len(pairs) - _MAX_PAIRS), divergence=divergence
    )
