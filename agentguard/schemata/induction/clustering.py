"""Clustering of failures without a code, and proposals of new codes from the clusters.

A schema is uncovered if it has no code, or if it has one and no similar schema with a code. Average linkage
on cosine (Sokal and Michener, 1958) clusters the uncovered schemata. A cluster whose members are as similar
to the schemata of a code as to each other is a case of that code. A proposal has no effect until a person
accepts it (`agentguard.schemata.induction.taxonomy_writer`).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agentguard.errors import InputError
from agentguard.schemata.model import ErrorSchema
from agentguard.schemata.profiles.step_profile import get_sentence, sort_traits
from agentguard.schemata.profiles.traits import is_positional

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]


_MAX_TITLE_TRAITS: Final = 2
_MAX_DEFINITION_TRAITS: Final = 8
_SEPARATOR_PATTERN = re.compile(r"[^a-z0-9]+")
_MAX_TITLE_CHARS: Final = 120
_MAX_CODE_CHARS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeName:
    """Id, title and definition of a code for a taxonomy file."""

    code: str
    title: str
    definition: str


def build_code_name(traits: Sequence[str], sentences: Sequence[str], names: Counter[str]) -> CodeName:
    """Build a name from the most characteristic traits.

    Args:
        traits: names of the traits, the most characteristic first; may be empty.
        sentences: sentences of the traits; without traits, sentences of the most typical schema.
        names: counter of used ids; the function updates it.
    """
    descriptions = [sentence.strip() for sentence in sentences if sentence.strip()] or [
        "Failures that resemble each other."
    ]
    base = "_".join(part for name in traits[:_MAX_TITLE_TRAITS] if (part := slugify(name)))
    if not base:
        base = f"kind_{hashlib.sha256(descriptions[0].encode(errors='replace')).hexdigest()[:8]}"
    names[base] += 1
    code = base[:_MAX_CODE_CHARS] + (f"_{names[base]}" if names[base] > 1 else "")
    return CodeName(
        code=code,
        title=_format_title(descriptions[:_MAX_TITLE_TRAITS]),
        definition="In these failures the step at fault has this in common. "
        + " ".join(descriptions[:_MAX_DEFINITION_TRAITS]),
    )


def slugify(text: str) -> str:
    """Return a text as part of an id: lower-case letters and digits, starting with a letter; may be empty."""
    return _SEPARATOR_PATTERN.sub("_", text.lower()).strip("_").lstrip("0123456789_")


def _format_title(sentences: Sequence[str]) -> str:
    parts = [re.sub(r"^(?:It|Its|A|The) ", "", one.rstrip(".")) for one in sentences]
    title = "; ".join(parts)
    return (title[:1].upper() + title[1:])[:_MAX_TITLE_CHARS].rstrip("; ")


DEFAULT_MIN_SUPPORT: Final = 4
"""Minimum number of failures of a proposal, of at least two questions: fewer may share just their topic."""

MAX_SCHEMATA: Final = 4_000
"""Maximum number of clustered schemata (128 MB of similarities); those with the most failures come first."""

_MAX_EXEMPLARS: Final = 5
_MIN_SHARED_WEIGHT: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeProposal:
    """Proposal of a code for a kind of failure that no code covers.

    Attributes:
        code: id of the code in a taxonomy.
        title: short title.
        definition: common properties of its failures.
        exemplars: ids of schemata, the most typical first.
        size: number of its schemata.
        support: number of failures of these schemata.
        cohesion: mean cosine of its members, in [-1, 1].
        nearest: the existing code with the most similar schemata; None if no code has schemata.
        nearest_similarity: mean cosine to those schemata, in [-1, 1]; 0 without such a code.
        module: module of most of its schemata, if they have one.
        correction: most frequent correction of its schemata; may be empty.
    """

    code: str
    title: str
    definition: str
    exemplars: tuple[str, ...]
    size: int
    support: int
    cohesion: float
    nearest: str | None = None
    nearest_similarity: float = 0.0
    module: str | None = None
    correction: str = ""


def propose_codes(
    schemata: Sequence[ErrorSchema],
    vectors: Vectors,
    *,
    min_support: int = DEFAULT_MIN_SUPPORT,
    min_similarity: float | None = None,
) -> tuple[CodeProposal, ...]:
    """Propose codes, those with the most failures first; the order of ``schemata`` makes no difference.

    Args:
        schemata: schemata with and without codes.
        vectors: their vectors by one vectoriser, shape (n, d), rows of length 1 or 0.
        min_support: minimum number of failures of a proposal.
        min_similarity: minimum mean cosine of two clusters for their merge. None selects the mean of two
            values, the mean of all pairs and the mean of nearest neighbours, which suits any vectoriser.

    Raises:
        InputError: rows and schemata do not match, or there are too few failures for a proposal.
    """
    if len(vectors) != len(schemata):
        raise InputError(f"found {len(schemata)} schemata and {len(vectors)} vectors, expected equal numbers")
    graph = _SimilarityGraph(schemata, vectors)
    level = graph.estimate_merge_threshold() if min_similarity is None else min_similarity
    uncovered = graph.find_uncovered(level)
    failures = sum(graph.schemata[i].support for i in uncovered)
    if failures < min_support or len(uncovered) < 2:
        raise InputError(
            f"too few failures: {len(uncovered)} schemata of {failures} failures have no code that "
            f"covers them, {min_support} failures are needed",
            hint="distil more failures first",
        )
    clusters = [
        cluster
        for cluster in graph.find_clusters(uncovered, level)
        if _has_enough_support(graph.schemata, cluster, min_support)
    ]
    names: Counter[str] = Counter()
    proposals = [
        proposal for cluster in clusters if (proposal := graph.build_proposal(cluster, names)) is not None
    ]
    if not proposals:
        raise InputError(
            f"no code covers {failures} failures, but there is no cluster of {min_support} of them, from at "
            "least two questions, that differs from the existing codes",
            hint="distil more failures, or reduce min_similarity",
        )
    return tuple(sorted(proposals, key=lambda proposal: (-proposal.support, proposal.code)))


class _SimilarityGraph:
    """Schemata in a fixed order, without those that have no vector, and their similarities."""

    def __init__(self, schemata: Sequence[ErrorSchema], vectors: Vectors) -> None:
        import numpy as np

        rows = np.asarray(vectors, dtype=np.float32)
        indices = [i for i in range(len(schemata)) if rows[i].any()]
        indices.sort(key=lambda i: (-schemata[i].support, schemata[i].id))
        indices = sorted(indices[:MAX_SCHEMATA], key=lambda i: schemata[i].id)
        self.schemata = [schemata[i] for i in indices]
        self.vectors = rows[indices] if indices else rows[:0]
        self.similarities = self.vectors @ self.vectors.T
        self.coded = [i for i, schema in enumerate(self.schemata) if schema.codes]

    def estimate_merge_threshold(self) -> float:
        """Estimate the similarity from which two schemata are of one kind, from all pairs."""
        import numpy as np

        n = len(self.schemata)
        if n < 2:
            return 1.0
        other_similarities = self.similarities[~np.eye(n, dtype=bool)].reshape(n, n - 1)
        return float((other_similarities.mean() + other_similarities.max(axis=1).mean()) / 2)

    def find_uncovered(self, level: float) -> list[int]:
        """Return the positions of schemata without a code, or without a similar schema with a code."""
        uncovered = []
        for i, one in enumerate(self.schemata):
            others = [j for j in self.coded if j != i]
            is_isolated = not others or float(self.similarities[i, others].max()) < level
            if not one.codes or is_isolated:
                uncovered.append(i)
        return uncovered

    def find_clusters(self, places: Sequence[int], level: float) -> list[list[int]]:
        """Return the positions in clusters, in the order of their first members."""
        import numpy as np
        from sklearn.cluster import AgglomerativeClustering

        distances = np.clip(1.0 - self.similarities[np.ix_(places, places)].astype(np.float64), 0.0, 2.0)
        np.fill_diagonal(distances, 0.0)
        model = AgglomerativeClustering(
            n_clusters=None, metric="precomputed", linkage="average", distance_threshold=max(0.0, 1.0 - level)
        )
        clusters: dict[int, list[int]] = {}
        for index, label in zip(places, model.fit_predict(distances).tolist(), strict=True):
            clusters.setdefault(label, []).append(index)
        return list(clusters.values())

    def build_proposal(self, places: Sequence[int], names: Counter[str]) -> CodeProposal | None:
        """Build the proposal of a cluster; return None if an existing code covers it."""
        import numpy as np

        inside = self.similarities[np.ix_(places, places)]
        n = len(places)
        cohesion = float((inside.sum() - np.trace(inside)) / (n * (n - 1))) if n > 1 else 1.0
        nearest, similarity = self._find_nearest_code(places)
        if nearest is not None and similarity >= cohesion:
            return None
        typical = [places[i] for i in np.argsort(-inside.sum(axis=1), kind="stable").tolist()]
        members = [self.schemata[i] for i in typical]
        name = self._build_name(members, names)
        return CodeProposal(
            code=name.code,
            title=name.title,
            definition=name.definition,
            exemplars=tuple(one.id for one in members[:_MAX_EXEMPLARS]),
            size=n,
            support=sum(one.support for one in members),
            cohesion=round(cohesion, 4),
            nearest=nearest,
            nearest_similarity=round(similarity, 4),
            module=_select_majority([one.module for one in members if one.module], n),
            correction=_select_majority([one.correction for one in members if one.correction], 0) or "",
        )

    def _find_nearest_code(self, places: Sequence[int]) -> tuple[str | None, float]:
        """Return the code whose other schemata are the most similar, and the similarity."""
        import numpy as np

        by_code: dict[str, list[int]] = {}
        for i in self.coded:
            if i not in places:
                for code in self.schemata[i].codes:
                    by_code.setdefault(code, []).append(i)
        scores = {
            code: float(self.similarities[np.ix_(places, rows)].mean()) for code, rows in by_code.items()
        }
        if not scores:
            return None, 0.0
        best = min(scores, key=lambda code: (-round(scores[code], 6), code))
        return best, scores[best]

    def _build_name(self, members: Sequence[ErrorSchema], names: Counter[str]) -> CodeName:
        """Build a name from the traits that distinguish the members, behaviour before position."""
        shared = _average_traits(members)
        mean_traits = _average_traits(self.schemata)
        excess = {
            name: weight - mean_traits.get(name, 0.0)
            for name, weight in shared.items()
            if weight >= _MIN_SHARED_WEIGHT and get_sentence(name) is not None
        }
        best = sorted(sort_traits(excess), key=lambda name: (is_positional(name), -round(excess[name], 6)))
        first = members[0].signature
        return build_code_name(
            best, [sentence for one in best if (sentence := get_sentence(one))] or first, names
        )


def _average_traits(schemata: Sequence[ErrorSchema]) -> dict[str, float]:
    """Return the mean weight of each trait, weighted by support."""
    total: dict[str, float] = {}
    for one in schemata:
        for name, weight in one.traits.items():
            total[name] = total.get(name, 0.0) + weight * one.support
    support = sum(one.support for one in schemata)
    return {name: weight / support for name, weight in total.items()}


def _has_enough_support(schemata: Sequence[ErrorSchema], places: Sequence[int], min_support: int) -> bool:
    members = [schemata[i] for i in places]
    questions = {group for one in members for group in (one.provenance.groups or one.provenance.runs)}
    return len(members) > 1 and sum(one.support for one in members) >= min_support and len(questions) > 1


def _select_majority(values: Sequence[Any], population: int) -> Any:
    """Return the most frequent value; None if at most half of the population has it."""
    counts = Counter(values)
    best = min(counts, key=lambda value: (-counts[value], value), default=None)
    return best if best is not None and counts[best] * 2 > population else None
