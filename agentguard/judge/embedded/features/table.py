"""Feature table of a run: one row for each candidate step, one column for each feature of the catalogue."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentguard.judge.embedded.features.catalogue import FEATURE_NAMES, Feature
from agentguard.judge.embedded.features.data_flow import compute_data_flow_features
from agentguard.judge.embedded.features.position import compute_position_features
from agentguard.judge.embedded.features.roles import RunLayout, analyze_layout
from agentguard.judge.embedded.features.run_state import build_run_context, start_progress, update_progress
from agentguard.judge.embedded.features.text import compute_text_features
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_MAX_CACHED_TABLES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Features of a run's candidate steps.

    Attributes:
        layout: roles and candidates of the run.
        steps: indices of the candidates, in order; one row each.
        agents: agent of each candidate.
        values: float64, shape ``(len(steps), len(FEATURE_NAMES))``.
    """

    layout: RunLayout
    steps: tuple[int, ...]
    agents: tuple[str, ...]
    values: NDArray[np.float64]


def compute_step_features(run: Trajectory) -> tuple[RunLayout, list[dict[str, float]]]:
    """Compute the features of each candidate by name, in one pass over the run."""
    layout = analyze_layout(run)
    context = build_run_context(layout)
    progress = start_progress(layout, context)
    rows = []
    for index in range(len(run.steps)):
        if index in layout.candidate_ordinals:
            row = compute_position_features(layout, context, progress, index)
            row |= compute_text_features(layout, context, progress, index)
            row |= compute_data_flow_features(layout, context, progress, index)
            rows.append(row)
        update_progress(progress, layout, context, index)
    return layout, rows


def build_step_table(run: Trajectory) -> StepTable:
    """Build the table of a run; up to 512 tables are cached, since cross-validation reads them repeatedly."""
    import numpy as np

    key = id(run)
    cached_table = _TABLE_CACHE.get(key)
    if cached_table is not None and cached_table.layout.run is run:
        return cached_table
    layout, rows = compute_step_features(run)
    values = np.array([[float(row[name]) for name in FEATURE_NAMES] for row in rows], dtype=np.float64)
    table = StepTable(
        layout=layout,
        steps=layout.candidates,
        agents=tuple(run.steps[i].agent for i in layout.candidates),
        values=values.reshape(len(rows), len(FEATURE_NAMES)),
    )
    _TABLE_CACHE[key] = table
    while len(_TABLE_CACHE) > _MAX_CACHED_TABLES:
        _TABLE_CACHE.popitem(last=False)
    return table


_TABLE_CACHE: OrderedDict[int, StepTable] = OrderedDict()


def clear_cache() -> None:
    """Clear the table cache, to measure the cost of a run."""
    _TABLE_CACHE.clear()


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
