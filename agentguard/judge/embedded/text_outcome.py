"""Outcome of a known agent's run from its words: the closing message and the sequence of actions.

Words and pairs of consecutive actions are hashed into buckets and weighted by TF-IDF, so that a model file
contains no text.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agentguard.judge.embedded.conditional_logit import Array
from agentguard.judge.embedded.features.roles import RunLayout, render_arguments
from agentguard.trajectory.model import Source, ToolCall

_BUCKETS: Final = 2_048  # for the closing message, and as many for the actions
_MAX_CLOSING_CHARS: Final = 4_000
_MAX_ARGUMENT_WORDS: Final = 3
_MAX_ARGUMENT_CHARS: Final = 200
_INVERSE_RIDGE: Final = 3.0
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class TextOutcomeModel:
    """Ridge logit over hashed TF-IDF; shapes ``(2 * buckets,)``."""

    idf: Array
    weights: Array
    bias: float

    def predict_log_odds(self, counts: Array) -> Array:
        """Return the log-odds of failure for rows of `count_run_text`."""
        return np.asarray(_scale_counts(counts, self.idf) @ self.weights + self.bias)


def count_run_text(layout: RunLayout) -> Array:
    """Count the hashed words of the closing message and the hashed actions, shape ``(1, 2 * buckets)``."""
    counts = np.zeros((1, 2 * _BUCKETS))
    steps = layout.run.steps
    closing = next((s.content for s in reversed(steps) if s.source is Source.AGENT and s.content), "")
    _add_counts(counts[0, :_BUCKETS], _WORD.findall(closing[-_MAX_CLOSING_CHARS:].lower()))
    actions = [_describe_action(call) for step in steps for call in step.tool_calls]
    names = [call.name for step in steps for call in step.tool_calls]
    _add_counts(counts[0, _BUCKETS:], actions)
    _add_counts(counts[0, _BUCKETS:], (f"{first} > {second}" for first, second in pairwise(names)))
    return counts


def _describe_action(call: ToolCall) -> str:
    """Return the tool with the first words of its arguments, since a shell is one tool with many commands."""
    arguments = render_arguments(call)
    words = _WORD.findall(arguments[:_MAX_ARGUMENT_CHARS].lower())
    return " ".join((call.name, *words[:_MAX_ARGUMENT_WORDS]))


def _add_counts(row: Array, tokens: Iterable[str]) -> None:
    for token in tokens:
        row[zlib.crc32(token.encode("utf-8", "surrogatepass")) % _BUCKETS] += 1


def fit_text_outcome(counts: Array, failed: NDArray[np.bool_]) -> TextOutcomeModel:
    """Fit the logit; classes are balanced."""
    from sklearn.linear_model import LogisticRegression

    idf = np.log((1 + len(counts)) / (1 + (counts > 0).sum(axis=0))) + 1
    logit = LogisticRegression(C=_INVERSE_RIDGE, max_iter=1_000, class_weight="balanced")
    logit.fit(_scale_counts(counts, idf), failed)
    # Weights are stored in single precision; round them here, so that fit and file agree.
    rounded = logit.coef_[0].astype(np.float32).astype(np.float64)
    return TextOutcomeModel(idf.astype(np.float32).astype(np.float64), rounded, float(logit.intercept_[0]))


def _scale_counts(counts: Array, idf: Array) -> Array:
    """Return TF-IDF with a logarithm of the counts; each of the two halves has length 1."""
    weighted = np.log1p(counts) * idf
    halves = (weighted[:, :_BUCKETS], weighted[:, _BUCKETS:])
    return np.hstack([half / (np.linalg.norm(half, axis=1, keepdims=True) + 1e-9) for half in halves])
