"""Selection of the schemata to keep under a size budget: diverse, difficult and dependable ones.

The three criteria are those of D3, a data selection method by diversity, difficulty and dependability; their
combination is our own. A selected schema covers the others in proportion to similarity and dependability, and
the coverage of a difficult one has a higher value::

    value(selected) = sum over i of (1 + difficulty(i)) / 2
                      * max over j in selected of (1 + dependability(j)) / 2 * similarity(i, j)

Both factors are at least one half. Difficulty is only an estimate, so an easy failure still has a value. An
unproven schema covers its own kind better than a proven schema of another kind.

This is weighted facility location, which is monotone and submodular. Greedy selection therefore reaches at
least 63 % of the optimum (Nemhauser, Wolsey and Fisher, 1978). Gains are evaluated lazily (Minoux, 1978).
Only the nearest schemata can cover a schema, so that a selection from ten thousand schemata takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any, Final

from agentguard.errors import InputError
from agentguard.schemata.model import ErrorSchema

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_SUPPORT_WEIGHT: Final = 0.5
"""Weight of a repeated failure: half a confirmation, since no recovery used its schema."""
_MAX_SUPPORT: Final = 4
_MIN_NEAREST, _MAX_NEAREST = 32, 256
_BLOCK_ROWS: Final = 128


def estimate_dependability(schema: ErrorSchema) -> float:
    """Return the reliability of a schema: the mean of a Beta posterior over confirmations, in (0, 1).

    The prior is even. Each of up to four further failures of the schema counts as half a confirmation.
    """
    repetitions = _SUPPORT_WEIGHT * min(max(schema.support - 1, 0), _MAX_SUPPORT)
    successes = 1 + max(schema.confirmed, 0) + repetitions
    return successes / (successes + 1 + max(schema.refuted, 0))


def select_schemata(
    schemata: Sequence[ErrorSchema],
    vectors: NDArray[Any],
    budget: int,
    *,
    difficulty: Mapping[str, float] | None = None,
    dependability: Mapping[str, float] | None = None,
) -> tuple[str, ...]:
    """Select the schemata to keep; deterministic and independent of the input order.

    Args:
        schemata: schemata to choose from.
        vectors: their vectors in the same order, of shape (n, d) with rows of length 1 (or 0): from
            `agentguard.schemata.index.SchemaIndex.vectors`, whose order is that of ``tuple(index)``.
        budget: maximum number of schemata to keep.
        difficulty: by id, in [0, 1]: 1 for a failure that only schemata detect, 0 for a failure that other
            methods detect. An example is 1 minus the probability of the root cause by the ranker alone. The
            default of an id is 1.
        dependability: by id, in [0, 1]; the default of an id is `estimate_dependability`.

    Returns:
        Ids in the order of selection, most valuable first.

    Raises:
        InputError: vectors and schemata do not match, an id occurs twice, or a number is out of range.
    """
    import numpy as np

    _check_arguments(schemata, vectors, budget)
    order = sorted(range(len(schemata)), key=lambda place: schemata[place].id)
    ids = [schemata[place].id for place in order]
    dependability_of_id = {schema.id: estimate_dependability(schema) for schema in schemata} | dict(
        dependability or {}
    )
    difficulty_weights = (1 + _to_array("difficulty", ids, difficulty or {})) / 2
    dependability_weights = (1 + _to_array("dependability", ids, dependability_of_id)) / 2
    if budget >= len(ids):
        selection: list[int] = []
    else:
        nearest = min(max(4 * ceil(len(ids) / max(budget, 1)), _MIN_NEAREST), _MAX_NEAREST, len(ids))
        coverage_matrix = _CoverageMatrix(
            np.asarray(vectors, dtype=np.float32)[order], difficulty_weights, dependability_weights, nearest
        )
        selection = _select_greedily(coverage_matrix, budget)
    weights, selected = difficulty_weights * dependability_weights, set(selection)
    rest = sorted(
        (place for place in range(len(ids)) if place not in selected), key=lambda p: (-weights[p], p)
    )
    return tuple(ids[place] for place in [*selection, *rest][:budget])


class _CoverageMatrix:
    """Sparse matrix of the coverage of schemata by each other, and the current coverage of each schema."""

    def __init__(
        self, vectors: NDArray[np.float32], difficulty: Floats, dependability: Floats, nearest: int
    ) -> None:
        import numpy as np

        self.difficulty, self.coverage = difficulty, np.zeros(len(difficulty))
        covered, covering, similarity = _find_nearest(vectors, dependability, nearest)
        self.initial_gains: list[float] = np.bincount(
            covering, weights=difficulty[covered] * similarity, minlength=len(difficulty)
        ).tolist()
        """Marginal gain of each schema as the first one."""
        order = np.argsort(covering, kind="stable")
        self.columns, self.weights = covered[order], similarity[order]
        self.offsets = np.searchsorted(covering[order], np.arange(len(difficulty) + 1))

    def compute_gain(self, index: int) -> float:
        """Return the marginal gain of a schema."""
        import numpy as np

        row = slice(self.offsets[index], self.offsets[index + 1])
        covered = self.columns[row]
        return float(self.difficulty[covered] @ np.maximum(self.weights[row] - self.coverage[covered], 0))

    def add(self, index: int) -> None:
        """Add a schema to the selection, and update the coverage of the others."""
        import numpy as np

        row = slice(self.offsets[index], self.offsets[index + 1])
        covered = self.columns[row]
        self.coverage[covered] = np.maximum(self.coverage[covered], self.weights[row])


def _find_nearest(
    vectors: NDArray[np.float32], dependability: Floats, count: int
) -> tuple[NDArray[Any], ...]:
    """Return ``(covered, covering, similarity)`` of the ``count`` schemata that cover each schema best.

    The product is computed in blocks, which bounds the memory.
    """
    import numpy as np

    blocks: list[tuple[NDArray[Any], ...]] = []
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = vectors[start : start + _BLOCK_ROWS] @ vectors.T * dependability.astype(np.float32)
        covering = np.argpartition(block, len(vectors) - count, axis=1)[:, -count:]
        similarity = np.take_along_axis(block, covering, axis=1)
        covered = np.repeat(np.arange(start, start + len(block)), count)
        is_positive = similarity.ravel() > 0
        parts = (covered.astype(np.int32), covering.ravel().astype(np.int32), similarity.ravel())
        blocks.append(tuple(part[is_positive] for part in parts))
    return tuple(np.concatenate(parts) for parts in zip(*blocks, strict=True))


def _select_greedily(covers: _CoverageMatrix, budget: int) -> list[int]:
    """Return the schemata in the order of their marginal gain, until no schema has one; ties by position."""
    queue = [(-gain, index, 0) for index, gain in enumerate(covers.initial_gains)]
    heapify(queue)
    selection: list[int] = []
    while queue and len(selection) < budget:
        gain, index, age = heappop(queue)
        if age < len(selection):
            # Gains only decrease: a gain from before the last selection is an upper bound.
            heappush(queue, (-covers.compute_gain(index), index, len(selection)))
        elif gain > -1e-9:
            break
        else:
            covers.add(index)
            selection.append(index)
    return selection


def _check_arguments(schemata: Sequence[ErrorSchema], vectors: NDArray[Any], budget: int) -> None:
    import numpy as np

    if budget < 0:
        raise InputError(f"the budget is {budget}, expected at least 0", field="budget")
    if getattr(vectors, "ndim", 0) != 2 or len(vectors) != len(schemata):
        raise InputError(f"expected a row for each of {len(schemata)} schemata", field="vectors")
    if not np.isfinite(vectors).all():
        raise InputError("a number is not finite", field="vectors")
    if len({schema.id for schema in schemata}) != len(schemata):
        raise InputError("two schemata have the same id", field="schemata")


def _to_array(field: str, ids: Sequence[str], values: Mapping[str, float]) -> Floats:
    import numpy as np

    array = np.array([values.get(name, 1.0) for name in ids], dtype=np.float64)
    for name, number in zip(ids, array.tolist(), strict=True):
        if not isfinite(number) or not 0 <= number <= 1:
            raise InputError(f"{number!r} is not in [0, 1]", field=f"{field}.{name}")
    return array
