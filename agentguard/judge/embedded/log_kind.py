"""Kinds of log, distinguished by structure: first speaker, place of the calls, and shares of the roles.

A specialist judges only runs that are similar to its training runs. The kind does not depend on the names of
agents, formats and benchmarks. It depends on the names of tools: an agent with other tools is another agent.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentguard.judge.embedded.features.roles import RunLayout, SpeakerRole
from agentguard.trajectory.model import Source, Trajectory

SHAPE_FEATURES = (
    "orchestrated",
    "share of users' turns",
    "share of the executor's turns",
    "share of orchestrator's turns",
    "agents (log)",
    "users' turns (log)",
    "steps (log)",
    "mean length of a turn (log)",
)
_MIN_DEVIATIONS = np.array([0.1, 0.08, 0.15, 0.1, 0.3, 0.35, 0.5, 0.5])
_MIN_SHARED_TOOLS = 0.5  # share of a run's tools; an agent with other tools is another agent
_MAX_Z_SCORE = 3.5  # in any one measure; above it, the run is of another kind


def build_structure_key(run: Trajectory) -> str:
    """Build the coarse kind: source of the first step, and whether the turns contain the tool calls."""
    first = next((s.source for s in run.steps if s.source is not Source.SYSTEM), None)
    folded = any(step.tool_calls or step.observations for step in run.steps)
    return f"{first.value if first else 'nobody'}-{'calls' if folded else 'messages'}"


def measure_shape(layout: RunLayout) -> NDArray[np.float64]:
    """Compute the measures of `SHAPE_FEATURES`, shape ``(8,)``."""
    count = max(1, len(layout.roles))
    shares = {role: layout.roles.count(role) / count for role in SpeakerRole}
    agents = {step.agent for step in layout.run.steps if step.source is Source.AGENT}
    lengths = sum(layout.step_scans[i].length for i in layout.candidates) / max(1, len(layout.candidates))
    return np.array(
        [
            float(layout.has_orchestrator),
            shares[SpeakerRole.USER],
            shares[SpeakerRole.EXECUTOR],
            shares[SpeakerRole.ORCHESTRATOR],
            math.log1p(len(agents)),
            math.log1p(layout.roles.count(SpeakerRole.USER)),
            math.log1p(len(layout.roles)),
            math.log1p(lengths),
        ]
    )


@dataclass(frozen=True, slots=True)
class LogKind:
    """Kind of log.

    Attributes:
        key: structure of its runs.
        mean, deviation: of the shapes of its runs.
        tools: CRC-32 of the names of all tools that its runs call; None in models that lack them.
    """

    key: str
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    tools: tuple[int, ...] | None = None

    def matches(self, layout: RunLayout) -> bool:
        """Return whether the shape of a run is that of the kind, and the kind has most of its tools."""
        if build_structure_key(layout.run) != self.key or not self._shares_tools(layout):
            return False
        return bool((np.abs(measure_shape(layout) - self.mean) / self.deviation).max() <= _MAX_Z_SCORE)

    def _shares_tools(self, layout: RunLayout) -> bool:
        if self.tools is None:
            return True
        tools = hash_tool_names([layout])
        return len(tools & set(self.tools)) >= _MIN_SHARED_TOOLS * len(tools)


def hash_tool_names(layouts: Sequence[RunLayout]) -> set[int]:
    """Return the CRC-32 of the names of all tools that the runs call."""
    names = {call.name for layout in layouts for step in layout.run.steps for call in step.tool_calls}
    return {zlib.crc32(name.encode("utf-8", "surrogatepass")) for name in names}


def build_log_kind(layouts: Sequence[RunLayout]) -> LogKind:
    """Build the kind of runs that share a key."""
    shapes = np.vstack([measure_shape(layout) for layout in layouts])
    return LogKind(
        build_structure_key(layouts[0].run),
        shapes.mean(axis=0),
        np.maximum(shapes.std(axis=0), _MIN_DEVIATIONS),
        tuple(sorted(hash_tool_names(layouts))),
    )
