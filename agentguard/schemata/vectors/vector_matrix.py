"""Growable matrix of named vectors in one block of memory, without a rebuild on each change."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentguard.schemata.vectors.base import Vectors

_TOLERANCE: Final = 5e-5
"""Tolerance of similarities in single precision for any order of summation."""
_MIN_CAPACITY: Final = 16


class VectorMatrix:
    """Named vectors of length 1 (or 0) with two flags each; a removal may change the row of a name.

    Args:
        dimensions: length of a vector.
    """

    def __init__(self, dimensions: int) -> None:
        import numpy as np

        self.dimensions = dimensions
        self.ids: list[str] = []
        self.row_by_id: dict[str, int] = {}
        self._vectors: Vectors = np.zeros((_MIN_CAPACITY, dimensions), dtype=np.float32)
        self._flags: NDArray[np.int8] = np.zeros((_MIN_CAPACITY, 2), dtype=np.int8)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def vectors(self) -> Vectors:
        """Vectors of the rows: a view of shape (n, dims)."""
        return self._vectors[: len(self.ids)]

    @property
    def flags(self) -> NDArray[np.int8]:
        """Flags of the rows: a view of shape (n, 2)."""
        return self._flags[: len(self.ids)]

    def reserve(self, additional: int) -> None:
        """Reserve capacity for additional rows; it grows by at least half, so that reallocations are rare."""
        import numpy as np

        needed = len(self.ids) + additional
        if needed <= len(self._vectors):
            return
        room = max(needed, len(self._vectors) * 3 // 2)
        vectors, flags = (
            np.zeros((room, self.dimensions), dtype=np.float32),
            np.zeros((room, 2), dtype=np.int8),
        )
        vectors[: len(self.ids)], flags[: len(self.ids)] = self.vectors, self.flags
        self._vectors, self._flags = vectors, flags

    def put(self, name: str, vector: NDArray[np.float32] | None, flags: tuple[int, int]) -> None:
        """Add a row, or change one; None leaves its vector unchanged."""
        if name not in self.row_by_id:
            self.reserve(1)
            self.row_by_id[name] = len(self.ids)
            self.ids.append(name)
        row = self.row_by_id[name]
        self._flags[row] = flags
        if vector is not None:
            self._vectors[row] = vector

    def remove(self, name: str) -> None:
        """Remove a row; the last row moves to its position."""
        row, last = self.row_by_id.pop(name), self.ids.pop()
        if last != name:
            end = len(self.ids)
            self.ids[row], self.row_by_id[last] = last, row
            self._vectors[row], self._flags[row] = self._vectors[end], self._flags[end]

    def nearest(self, query: NDArray[np.float32], similarity: Vectors, k: int) -> list[tuple[float, int]]:
        """Return ``(similarity, row)`` of the ``k`` nearest rows; equal similarities are ordered by name.

        Args:
            query: shape (dims,).
            similarity: similarity of each row, shape (n,), in single precision; -inf for an excluded row.
            k: at most the number of rows that are not excluded.
        """
        import numpy as np

        if not query.any():
            rows: list[int] = np.flatnonzero(similarity > -np.inf).tolist()
            return [(0.0, row) for row in nsmallest(k, rows, key=self.ids.__getitem__)]
        last = np.partition(similarity, len(similarity) - k)[len(similarity) - k]
        candidates = np.flatnonzero(similarity >= last - _TOLERANCE)
        # The last bits of a matrix product depend on the position of a row; sums by row do not.
        exact = (self._vectors[candidates].astype(np.float64) * query.astype(np.float64)).sum(axis=1)
        order = sorted(
            (-score, self.ids[row], row)
            for score, row in zip(exact.tolist(), candidates.tolist(), strict=True)
        )
        return [(-score, row) for score, _, row in order[:k]]


def select_diverse(
    ranked: Sequence[tuple[float, int]], vectors: Vectors, k: int, diversity: float
) -> list[tuple[float, int]]:
    """Select rows one by one: similar to the query, and different from those already selected.

    Args:
        ranked: ``(similarity, row)``, the nearest first.
        vectors: vectors of the rows, in the same order.
        k: number of rows to select.
        diversity: weight of the difference from the others, in [0, 1].
    """
    import numpy as np

    relevance = np.array([exact for exact, _ in ranked])
    similarity = (vectors @ vectors.T).astype(np.float64).round(5)
    nearest = np.zeros(len(ranked))
    free = np.ones(len(ranked), dtype=np.bool_)
    selection: list[int] = []
    while len(selection) < min(k, len(ranked)):
        value = np.where(free, (1 - diversity) * relevance - diversity * nearest, -np.inf)
        best = int(value.argmax())
        nearest = np.maximum(nearest, similarity[best]) if selection else similarity[best]
        selection.append(best)
        free[best] = False
    return [ranked[index] for index in selection]
