"""Clusters of faults by their consequences, and the similarity of a fault's consequences over workloads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from sklearn.feature_extraction.text import TfidfVectorizer

from agentguard.chaos.causality.edges import CausalEdge, EffectKind
from agentguard.chaos.causality.fault_probe import SiteFault

UNKNOWN_SCORE = 0.5
_EXECUTION_WEIGHT = 0.75
_SIZE_WEIGHT = 0.25


def cluster_faults(faults: Sequence[SiteFault], edges: Iterable[CausalEdge]) -> list[tuple[SiteFault, ...]]:
    """Return groups of faults with similar consequences, by the method of CSnake.

    The method is TF-IDF, cosine distance and weighted linkage.
    """
    documents: dict[SiteFault, list[str]] = {fault: [] for fault in faults}
    for edge in edges:
        documents[edge.cause].append(edge.consequence)
    with_effect = [fault for fault in faults if documents[fault]]
    if len(with_effect) < 2:
        return [(fault,) for fault in faults]
    matrix = _vectorize([documents[fault] for fault in with_effect]).toarray()
    distances = np.clip(np.nan_to_num(pdist(matrix, "cosine"), nan=1.0), 0.0, None)
    labels = fcluster(linkage(distances, "weighted"), t=1, criterion="inconsistent")
    clusters: dict[int, list[SiteFault]] = defaultdict(list)
    for fault, label in zip(with_effect, labels, strict=True):
        clusters[int(label)].append(fault)
    without = [(fault,) for fault in faults if not documents[fault]]
    return [tuple(clusters[label]) for label in sorted(clusters)] + without


def score_faults(edges: Iterable[CausalEdge]) -> dict[SiteFault, float]:
    """Return the similarity of the consequences of each fault: 1 if they are equal in all workloads.

    A fault that has consequences in fewer than two workloads has the score 0.5.
    """
    consequences: dict[SiteFault, dict[EffectKind, dict[str, list[str]]]] = defaultdict(
        lambda: {kind: defaultdict(list) for kind in EffectKind}
    )
    for edge in edges:
        consequences[edge.cause][edge.effect][edge.workload].append(edge.consequence)
    return {
        fault: _EXECUTION_WEIGHT * _compute_similarity(effects[EffectKind.EXECUTION])
        + _SIZE_WEIGHT * _compute_similarity(effects[EffectKind.SIZE])
        for fault, effects in consequences.items()
    }


def _compute_similarity(by_workload: Mapping[str, list[str]]) -> float:
    if len(by_workload) < 2:
        return UNKNOWN_SCORE
    matrix = _vectorize(list(by_workload.values())).toarray()
    pairs = [float(np.dot(left, right)) for left, right in combinations(matrix, 2)]
    return sum(pairs) / len(pairs)


def _vectorize(documents: Sequence[Sequence[str]]) -> Any:
    return TfidfVectorizer(analyzer=lambda document: document).fit_transform(documents)
