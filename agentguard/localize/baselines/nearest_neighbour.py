"""Baseline ``label_copy``: the labels of the most similar annotated runs, without judging the run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError
from agentguard.localize.base import BaseLocalizer, Diagnosis, Localizer
from agentguard.localize.diagnosis_builder import build_diagnosis, estimate_failure_rate
from agentguard.options import reject_unknown_options
from agentguard.trajectory.model import Record, RootCause, Trajectory

_MAX_CHARS = 20_000
"""Maximum of compared characters of a run, which bounds the cost of long logs."""


class NearestNeighbourTrainer:
    """Trainer of a nearest-neighbour vote by TF-IDF cosine similarity of the runs' texts.

    Args:
        k: number of neighbours that vote.

    Raises:
        ConfigError: an option is unknown, or ``k`` is below 1.
    """

    name = "label_copy"

    def __init__(self, *, k: int = 10, **unknown: object) -> None:
        reject_unknown_options("localizer", self.name, unknown)
        if k < 1:
            raise ConfigError(f"localizer {self.name!r}: k must be at least 1")
        self.k = k

    def fit(self, records: Sequence[Record]) -> Localizer:
        """Index the runs of ``records`` that have a root cause."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        labelled = [(r, c) for r in records if (c := r.annotation.root_cause) is not None]
        share = estimate_failure_rate(r.annotation.failed for r in records)
        if not labelled:
            return NearestNeighbourLocalizer(k=self.k, causes=(), index=None, vectors=None, probability=share)
        index = TfidfVectorizer(sublinear_tf=True)
        vectors = index.fit_transform([_collect_run_text(r.trajectory) for r, _ in labelled])
        causes = tuple(cause for _, cause in labelled)
        return NearestNeighbourLocalizer(
            k=self.k, causes=causes, index=index, vectors=vectors, probability=share
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestNeighbourLocalizer(BaseLocalizer):
    """Annotated runs as rows of ``vectors`` (runs × terms, L2-normalised), with their labels."""

    k: int
    causes: tuple[RootCause, ...]
    index: Any
    vectors: Any
    probability: float
    name: str = "label_copy"

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:  # noqa: ARG002
        """Rank the neighbours' steps by votes, and the agents separately; the nearer neighbour wins a tie."""
        steps: dict[int, float] = defaultdict(float)
        agents: dict[str, float] = defaultdict(float)
        for index, cause in enumerate(self._find_nearest_causes(trajectory)):
            vote = 1.0 - index / 1000  # neighbours have equal votes; the nearer one wins a tie
            if cause.step is not None:
                steps[cause.step] += vote
            if cause.agent:
                agents[cause.agent] += vote
        return build_diagnosis(
            trajectory,
            steps.items(),
            method=self.name,
            reason=f"the annotated step of the {self.k} most similar training runs",
            probability=self.probability,
            agents=tuple(sorted(agents, key=lambda name: -agents[name])[:1]),
        )

    def _find_nearest_causes(self, trajectory: Trajectory) -> list[RootCause]:
        if self.index is None:
            return []
        row = self.index.transform([_collect_run_text(trajectory)])
        similarity = (self.vectors @ row.T).toarray().ravel()
        order = sorted(range(len(self.causes)), key=lambda i: (-similarity[i], i))
        return [self.causes[i] for i in order[: self.k]]


def _collect_run_text(trajectory: Trajectory) -> str:
    parts, length = [trajectory.task], len(trajectory.task)
    for step in trajectory.steps:
        if length > _MAX_CHARS:
            break
        parts.append(f"{step.agent} " + " ".join(text for _, text in step.texts()))
        length += len(parts[-1])
    return " ".join(parts)[:_MAX_CHARS]
