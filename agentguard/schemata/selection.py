"""Selection of the schemata to keep under a size budget: diverse, difficult and dependable ones.

The three criteria are those of D3, a data selection method by diversity, difficulty and dependability; their
combination is our own. A kept schema covers the others in proportion to similarity and dependability, and
covering a difficult one has a higher value::

    worth(kept) = sum over i of (1 + difficulty(i)) / 2
                  * max over j in kept of (1 + dependability(j)) / 2 * similarity(i, j)

Both factors are at least one half. Difficulty is only an estimate, so an easy failure still has a value. An
unproven schema covers its own kind better than a proven schema of another kind.

This is weighted facility location, which is monotone and submodular. Greedy selection therefore reaches at
least 63 % of the optimum (Nemhauser, Wolsey and Fisher, 1978). Gains are evaluated lazily (Minoux, 1978).
Only the nearest schemata can cover a schema, so that ten thousand schemata need seconds and little memory.
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
"""Weight of a repeated failure: half a confirmation, because it recurs but its schema was not tried."""
_MAX_SUPPORT: Final = 4
_MIN_NEAREST, _MAX_NEAREST = 32, 256
_BLOCK_ROWS: Final = 128


def estimate_dependability(schema: ErrorSchema) -> float:
    """Return the reliability of a schema: the mean of a Beta posterior over confirmations, in (0, 1).

    The prior is even; confirmations and refutations count one each, and further failures behind the schema
    half a confirmation each, four at most.
    """
    seen_again = _SUPPORT_WEIGHT * min(max(schema.support - 1, 0), _MAX_SUPPORT)
    borne_out = 1 + max(schema.confirmed, 0) + seen_again
    return borne_out / (borne_out + 1 + max(schema.refuted, 0))


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
        difficulty: by id, in [0, 1]: 1 for a failure that only schemata find, 0 for a failure that other
            methods find. For example, 1 minus the probability that the ranker alone gives to the root cause.
            The default of an id is 1.
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
    """Coverage of schemata by each other as columns of a sparse matrix, and the current coverage of each."""

    def __init__(
        self, vectors: NDArray[np.float32], difficulty: Floats, dependability: Floats, nearest: int
    ) -> None:
        import numpy as np

        self.difficulty, self.coverage = difficulty, np.zeros(len(difficulty))
        covered, covering, similarity = _find_nearest(vectors, dependability, nearest)
        self.first: list[float] = np.bincount(
            covering, weights=difficulty[covered] * similarity, minlength=len(difficulty)
        ).tolist()
        """Marginal gain of each schema while nothing is covered."""
        order = np.argsort(covering, kind="stable")
        self.columns, self.weights = covered[order], similarity[order]
        self.offsets = np.searchsorted(covering[order], np.arange(len(difficulty) + 1))

    def marginal_gain(self, index: int) -> float:
        """Return the marginal gain of adding a schema."""
        import numpy as np

        row = slice(self.offsets[index], self.offsets[index + 1])
        covered = self.columns[row]
        return float(self.difficulty[covered] @ np.maximum(self.weights[row] - self.coverage[covered], 0))

    def add(self, index: int) -> None:
        """Add a schema: mark the schemata that it covers."""
        import numpy as np

        row = slice(self.offsets[index], self.offsets[index + 1])
        covered = self.columns[row]
        self.coverage[covered] = np.maximum(self.coverage[covered], self.weights[row])


def _find_nearest(
    vectors: NDArray[np.float32], dependability: Floats, count: int
) -> tuple[NDArray[Any], ...]:
    """Return ``(covered, covering, degree)`` of the ``count`` best covers of each.

    In blocks, to bound memory.
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
    """Return the schemata in the order of their marginal gain, until nothing adds a gain.

    Ties by position.
    """
    queue = [(-gain, index, 0) for index, gain in enumerate(covers.first)]
    heapify(queue)
    selection: list[int] = []
    while queue and len(selection) < budget:
        gain, index, age = heappop(queue)
        if age < len(selection):
            # Gains only shrink: a gain from before the last selection is an upper bound.
            heappush(queue, (-covers.marginal_gain(index), index, len(selection)))
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
        raise InputError("there is a number that is not finite", field="vectors")
    if len({schema.id for schema in schemata}) != len(schemata):
        raise InputError("two schemata have the same id", field="schemata")


def _to_array(field: str, ids: Sequence[str], values: Mapping[str, float]) -> Floats:
    import numpy as np

    array = np.array([values.get(name, 1.0) for name in ids], dtype=np.float64)
    for name, number in zip(ids, array.tolist(), strict=True):
        if not isfinite(number) or not 0 <= number <= 1:
            raise InputError(f"{number!r} is not in [0, 1]", field=f"{field}.{name}")
    return array
