"""Feature table of a run: one row for each candidate step, one column for each feature of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING

from agentguard._bounded_map import BoundedMap
from agentguard.judge.embedded.features.catalogue import (
    FEATURE_NAMES,
    GROUPS,
    Feature,
    select_columns,
)
from agentguard.judge.embedded.features.data_flow import compute_data_flow_features
from agentguard.judge.embedded.features.position import compute_position_features
from agentguard.judge.embedded.features.roles import RunLayout, analyze_layout
from agentguard.judge.embedded.features.run_state import RunContext, start_progress, update_progress
from agentguard.judge.embedded.features.text import compute_text_features
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_ALL_GROUPS = frozenset(GROUPS)
GroupSelection = Callable[["RunLayout"], frozenset[str]]
"""Function from a run's layout to the groups of features that a model reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Features of a run's candidate steps.

    Attributes:
        layout: roles and candidates of the run.
        steps: indices of the candidates, in order; one row each.
        agents: agent of each candidate.
        groups: groups of the features that were computed.
        values: float64, shape ``(len(steps), len(FEATURE_NAMES))``; NaN in the columns of other groups.
    """

    layout: RunLayout
    steps: tuple[int, ...]
    agents: tuple[str, ...]
    groups: frozenset[str]
    values: NDArray[np.float64]

    def get_features(self, row: int) -> dict[str, float]:
        """Return the computed features of a candidate by name."""
        values = self.values[row].tolist()
        return {name: values[column] for column, name in _list_columns(self.groups)}


@lru_cache(maxsize=8)
def _list_columns(groups: frozenset[str]) -> tuple[tuple[int, str], ...]:
    """Return column and name of each feature of the groups."""
    return tuple((column, FEATURE_NAMES[column]) for column in select_columns(*groups))


class _TableCache:
    """The last tables that were built."""

    def __init__(self, max_tables: int) -> None:
        self._tables = BoundedMap[int, StepTable](max_tables)

    def get(self, run: Trajectory) -> StepTable | None:
        table = self._tables.get(id(run))
        return table if table is not None and table.layout.run is run else None

    def add(self, table: StepTable) -> None:
        self._tables[id(table.layout.run)] = table

    def clear(self) -> None:
        self._tables.clear()


# Cross-validation reads complete tables repeatedly. The models of a diagnosis read one table in succession.
_COMPLETE_TABLES, _PARTIAL_TABLES = _TableCache(512), _TableCache(8)


def _compute_rows(layout: RunLayout, groups: frozenset[str]) -> list[dict[str, float]]:
    context = RunContext(layout)
    progress = start_progress(layout, context)
    rows = []
    for index in range(len(layout.run.steps)):
        if index in layout.candidate_ordinals:
            row = compute_position_features(layout, context, progress, index, groups)
            row |= compute_text_features(layout, context, progress, index, groups)
            row |= compute_data_flow_features(layout, context, progress, index, groups)
            rows.append(row)
        update_progress(progress, layout, context, index)
    return rows


def build_step_table(run: Trajectory, select_groups: GroupSelection | None = None) -> StepTable:
    """Build the table of a run, with all groups of features by default.

    The last 512 complete and 8 partial tables are cached.
    """
    cached = _COMPLETE_TABLES.get(run) or _PARTIAL_TABLES.get(run)
    layout = analyze_layout(run) if cached is None else cached.layout
    groups = _ALL_GROUPS if select_groups is None else select_groups(layout)
    if cached is not None and groups <= cached.groups:
        return cached
    table = StepTable(
        layout=layout,
        steps=layout.candidates,
        agents=tuple(run.steps[i].agent for i in layout.candidates),
        groups=groups,
        values=_build_values(_compute_rows(layout, groups), groups),
    )
    (_COMPLETE_TABLES if select_groups is None else _PARTIAL_TABLES).add(table)
    return table


def _build_values(rows: list[dict[str, float]], groups: frozenset[str]) -> NDArray[np.float64]:
    import numpy as np

    columns, names = zip(*_list_columns(groups), strict=True)
    values = np.full((len(rows), len(FEATURE_NAMES)), np.nan)
    if rows:
        values[:, columns] = list(map(itemgetter(*names), rows))
    return values


def clear_cache() -> None:
    """Clear the table cache, to measure the cost of a run."""
    _COMPLETE_TABLES.clear()
    _PARTIAL_TABLES.clear()


_NON_WORD = re.compile(r"\W+")

ANSWER_FEATURES = (
    Feature(name="answer.holds", meaning="has the gold answer"),
    Feature(name="answer.share", meaning="share of the gold answer's words that it has"),
    Feature(name="answer.lost", meaning="lacks it though an earlier candidate had it"),
)


def compute_answer_columns(table: StepTable, answer: str | None) -> NDArray[np.float64]:
    """Compute the columns of `ANSWER_FEATURES`, shape ``(rows, 3)``; zeros if the answer is unknown."""
    import numpy as np

    columns = np.zeros((len(table.steps), len(ANSWER_FEATURES)))
    answer_text = _normalize_text(answer or "")
    if not answer_text:
        return columns
    words, was_stated = answer_text.split(), False
    for row, index in enumerate(table.steps):
        text = f" {_normalize_text(table.layout.step_scans[index].lower_text)} "
        is_stated = f" {answer_text} " in text
        share = sum(f" {word} " in text for word in words) / len(words)
        columns[row] = is_stated, share, was_stated and not is_stated
        was_stated = was_stated or is_stated
    return columns


def _normalize_text(text: str) -> str:
    return _NON_WORD.sub(" ", text.lower()).strip()
