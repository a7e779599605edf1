"""What the gold answer adds, in the setting called ``with_answer`` alone: three columns after all others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentguard.judge.features.spec import Feature

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentguard.judge.features.table import StepTable

_APART = re.compile(r"\W+")

ANSWER_FEATURES = (
    Feature(name="answer.holds", meaning="has the gold answer"),
    Feature(name="answer.share", meaning="share of the gold answer's words that it has"),
    Feature(name="answer.lost", meaning="lacks it though an earlier candidate had it"),
)


def answer_columns(table: StepTable, answer: str | None) -> NDArray[np.float64]:
    """The columns of `ANSWER_FEATURES`, shape ``(rows, 3)``; zeros where no answer is known."""
    import numpy as np

    columns = np.zeros((len(table.steps), len(ANSWER_FEATURES)))
    wanted = _flat(answer or "")
    if not wanted:
        return columns
    words, had = wanted.split(), False
    for row, index in enumerate(table.steps):
        text = f" {_flat(table.layout.said[index].low)} "
        holds = f" {wanted} " in text
        share = sum(f" {word} " in text for word in words) / len(words)
        columns[row] = holds, share, had and not holds
        had = had or holds
    return columns


def _flat(text: str) -> str:
    return _APART.sub(" ", text.lower()).strip()
