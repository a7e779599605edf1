"""Kinds of log, told by structure: who opens, whether calls are folded into turns, how the turns are shared.

A specialist is asked only about a run that looks like the runs it learnt from. Names of agents, formats and
benchmarks play no part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentguard.judge.features.layout import Layout, Role
from agentguard.trajectory.model import Source

SHAPE = (
    "orchestrated",
    "share of users' turns",
    "share of the executor's turns",
    "share of orchestrator's turns",
    "agents (log)",
    "users' turns (log)",
    "steps (log)",
    "mean length of a turn (log)",
)
_FLOORS = np.array([0.1, 0.08, 0.15, 0.1, 0.3, 0.35, 0.5, 0.5])
_LIMIT = 3.5  # standard deviations, in any one measure, from which on a run is of another kind


def key(held: Layout) -> str:
    """The coarse kind: who opens the recording, and whether calls and results are folded into turns."""
    first = next((s.source for s in held.run.steps if s.source is not Source.SYSTEM), None)
    folded = any(step.tool_calls or step.observations for step in held.run.steps)
    return f"{first.value if first else 'nobody'}-{'calls' if folded else 'messages'}"


def shape(held: Layout) -> NDArray[np.float64]:
    """The measures of `SHAPE`."""
    count = max(1, len(held.roles))
    shares = {role: held.roles.count(role) / count for role in Role}
    agents = {step.agent for step in held.run.steps if step.source is Source.AGENT}
    lengths = sum(held.said[i].length for i in held.candidates) / max(1, len(held.candidates))
    return np.array(
        [
            float(held.orchestrated),
            shares[Role.USER],
            shares[Role.EXECUTOR],
            shares[Role.ORCHESTRATOR],
            math.log1p(len(agents)),
            math.log1p(held.roles.count(Role.USER)),
            math.log1p(len(held.roles)),
            math.log1p(lengths),
        ]
    )


@dataclass(frozen=True, slots=True)
class Kind:
    """Runs of one coarse kind, and the spread of their shapes."""

    key: str
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    def holds(self, held: Layout) -> bool:
        """Whether a run looks like those the kind was made from."""
        if key(held) != self.key:
            return False
        return bool((np.abs(shape(held) - self.mean) / self.deviation).max() <= _LIMIT)


def kind_of(layouts: Sequence[Layout]) -> Kind:
    """The kind of runs that share a key."""
    shapes = np.vstack([shape(held) for held in layouts])
    return Kind(key(layouts[0]), shapes.mean(axis=0), np.maximum(shapes.std(axis=0), _FLOORS))
