"""The table of a run: a row a candidate step, a column a feature of the registry."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentguard.judge.features.layout import Layout, layout
from agentguard.judge.features.placing import placing
from agentguard.judge.features.saying import saying
from agentguard.judge.features.spec import NAMES
from agentguard.judge.features.tracing import tracing
from agentguard.judge.features.walk import start, update, whole
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_KEPT = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Features of a run.

    Attributes:
        layout: the run as it was read.
        steps: indices of the candidates, in order; one row each.
        agents: who made each.
        values: float64, shape ``(len(steps), len(spec.NAMES))``.
    """

    layout: Layout
    steps: tuple[int, ...]
    agents: tuple[str, ...]
    values: NDArray[np.float64]


def step_features(run: Trajectory) -> tuple[Layout, list[dict[str, float]]]:
    """Features of each candidate by name, in one walk over the run."""
    held = layout(run)
    facts = whole(held)
    walk = start(held, facts)
    rows = []
    for index in range(len(run.steps)):
        if index in held.place:
            row = placing(held, facts, walk, index)
            row |= saying(held, facts, walk, index)
            row |= tracing(held, facts, walk, index)
            rows.append(row)
        update(walk, held, facts, index)
    return held, rows


def step_table(run: Trajectory) -> StepTable:
    """The table of a run; a few hundred are kept, since a cross-validation asks for each many times."""
    import numpy as np

    key = id(run)
    kept = _TABLES.get(key)
    if kept is not None and kept.layout.run is run:
        return kept
    held, rows = step_features(run)
    values = np.array([[float(row[name]) for name in NAMES] for row in rows], dtype=np.float64)
    table = StepTable(
        layout=held,
        steps=held.candidates,
        agents=tuple(run.steps[i].agent for i in held.candidates),
        values=values.reshape(len(rows), len(NAMES)),
    )
    _TABLES[key] = table
    while len(_TABLES) > _KEPT:
        _TABLES.popitem(last=False)
    return table


_TABLES: OrderedDict[int, StepTable] = OrderedDict()


def forget() -> None:
    """Drop the tables that are kept; for measuring what a run costs."""
    _TABLES.clear()
