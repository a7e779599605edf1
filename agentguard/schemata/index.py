"""Index of schemata: incremental, exact search for the nearest neighbours of steps, runs and texts."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from agentguard.errors import ConfigError, InputError
from agentguard.schemata.model import ErrorSchema, Match, Profile, SchemaOrigin, SchemaStatus
from agentguard.schemata.vectors.base import DEFAULT_VECTORISER, Vectoriser, vectorisers
from agentguard.schemata.vectors.combined import TRAIT_DIMENSIONS, SchemaQuery, encode_combined, extract_text
from agentguard.schemata.vectors.vector_matrix import VectorMatrix, select_diverse
from agentguard.trajectory.grouping import normalize_group_key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentguard.schemata.vectors.base import Vectors

_ORIGIN_FLAGS: Final = {SchemaOrigin.NATURAL: 0, SchemaOrigin.INJECTED: 1, SchemaOrigin.RECOVERED: 2}
_DIMENSIONS: Final = 256
_MAX_BATCH_CELLS: Final = 4_000_000
"""Maximum number of similarities in one matrix product (16 MB)."""
_MIN_POOL_SIZE: Final = 32


class SchemaIndex:
    """Index of schemata by the similarity of their content; thread-safe.

    The search is exact: it compares every schema. Results depend only on the schemata and the query, not on
    the order of insertion; equal similarities are ordered by id.

    Args:
        vectoriser: vectoriser of the texts; None selects ``hashing``, which needs no training. It has 256
            dimensions including the traits, because reading the vectors dominates the time of a query.
        trait_weight: share of the traits in the similarity, in [0, 1]; see
            `agentguard.schemata.vectors.combined`.
        diversity: required difference between the results, in [0, 1]. 0 gives the nearest schemata; above 0,
            maximal marginal relevance selects them (Carbonell and Goldstein, 1998).

    Raises:
        ConfigError: a share is out of its range.
    """

    def __init__(
        self, vectoriser: Vectoriser | None = None, *, trait_weight: float = 0.0, diversity: float = 0.0
    ) -> None:
        for name, share in (("trait_weight", trait_weight), ("diversity", diversity)):
            if not 0 <= share <= 1:
                raise ConfigError(f"schema index: {name} is {share!r}, expected a number in [0, 1]")
        if vectoriser is None:
            vectoriser = vectorisers().get(DEFAULT_VECTORISER)(
                dims=_DIMENSIONS - TRAIT_DIMENSIONS if trait_weight else _DIMENSIONS
            )
        self.vectoriser = vectoriser
        self._trait_weight, self._diversity = float(trait_weight), float(diversity)
        self._schemata: dict[str, ErrorSchema] = {}
        self._groups: dict[str, set[str]] = {}
        self._matrix: VectorMatrix | None = None
        # Encoding may be slow (a model, a server): it blocks other writers, but no search.
        self._write_lock, self._lock = threading.Lock(), threading.Lock()

    @classmethod
    def fit(
        cls, schemata: Sequence[ErrorSchema], vectoriser: Vectoriser, *, trait_weight: float = 0.0
    ) -> SchemaIndex:
        """Return an index of ``schemata`` with a vectoriser that is fitted to their texts."""
        index = cls(vectoriser.fit([schema.to_text() for schema in schemata]), trait_weight=trait_weight)
        index.add(schemata)
        return index

    def __len__(self) -> int:
        return len(self._schemata)

    def __contains__(self, schema_id: object) -> bool:
        return schema_id in self._schemata

    def __iter__(self) -> Iterator[ErrorSchema]:
        """Iterate over the current schemata by id."""
        with self._lock:
            return iter([self._schemata[name] for name in sorted(self._schemata)])

    def get(self, schema_id: str) -> ErrorSchema | None:
        """Return the schema with an id; None if the index does not contain it."""
        return self._schemata.get(schema_id)

    def add(self, schemata: Iterable[ErrorSchema]) -> None:
        """Add schemata; on an error, the index does not change.

        Raises:
            InputError: an id exists, or occurs twice in ``schemata``.
        """
        new = list(schemata)
        with self._write_lock:
            self._check_ids(new, must_exist=False)
            vectors = self.encode(new)
            with self._lock:
                rows = self._reserve_rows(len(new), vectors.shape[1] if new else None)
                for schema, vector in zip(new, vectors, strict=True):
                    self._put_row(rows, schema, vector)

    def replace(self, schemata: Iterable[ErrorSchema]) -> None:
        """Replace schemata by new versions with the same ids; on an error, the index does not change.

        Only schemata with a changed text or changed traits are encoded again.

        Raises:
            InputError: an id does not exist, or occurs twice in ``schemata``.
        """
        new = list(schemata)
        with self._write_lock:
            self._check_ids(new, must_exist=True)
            changed = [schema for schema in new if not _are_equal(schema, self._schemata[schema.id])]
            encoded = self.encode(changed)
            vectors = {schema.id: vector for schema, vector in zip(changed, encoded, strict=True)}
            with self._lock:
                rows = self._reserve_rows(0, encoded.shape[1] if changed else None)
                for schema in new:
                    self._remove_groups(schema.id)
                    self._put_row(rows, schema, vectors.get(schema.id))

    def remove(self, ids: Iterable[str]) -> None:
        """Remove schemata. Raises InputError, and removes no schema, if an id does not exist."""
        names = list(dict.fromkeys(ids))
        with self._write_lock, self._lock:
            for position, name in enumerate(names):
                if name not in self._schemata:
                    raise InputError(f"no schema has the id {name!r}", record=position)
            for name in names:
                self._remove_groups(name)
                del self._schemata[name]
                self._reserve_rows(0, None).remove(name)

    def encode(self, items: Sequence[SchemaQuery]) -> Vectors:
        """Return the vectors for comparison, of shape (n, d); see `encode_combined`."""
        return encode_combined(items, self.vectoriser, trait_weight=self._trait_weight)

    def vectors(self) -> tuple[tuple[str, ...], Vectors]:
        """Return ``(ids, vectors)`` of all schemata by id; the vectors are a copy of shape (n, d)."""
        with self._lock:
            ids = tuple(sorted(self._schemata))
            rows = self._reserve_rows(0, None)
            return ids, rows.vectors[[rows.row_by_id[name] for name in ids]]

    def search(
        self,
        items: Sequence[SchemaQuery],
        k: int,
        *,
        excluded_groups: Iterable[str] = (),
        origin: SchemaOrigin | None = None,
        only_active: bool = True,
    ) -> tuple[tuple[Match, ...], ...]:
        """Return the ``k`` nearest schemata for each query, the nearest first.

        Args:
            items: profiles of the steps of a run, texts, or schemata.
            k: maximum number of results for each query, at least 1.
            excluded_groups: questions whose schemata are skipped, compared by `normalize_group_key`. An
                evaluation excludes the question of the run itself. A group without a letter or digit is
                ignored.
            origin: return only schemata of this origin; None for all origins.
            only_active: skip retired schemata.

        Raises:
            ConfigError: ``k`` is below 1.
            InputError: ``items`` is a single item instead of several, or contains an invalid query.
        """
        if k < 1:
            raise ConfigError(f"schema index: k is {k!r}, expected at least 1")
        if isinstance(items, str | Profile | ErrorSchema):
            raise InputError("expected a list of items, found one item", hint="pass a list")
        if not items or not self._schemata:
            return ((),) * len(items)
        queries = self.encode(items)
        with self._lock:
            rows = self._reserve_rows(0, queries.shape[1])
            allowed = self._build_mask(rows, excluded_groups, origin, only_active)
            return self._search_rows(rows, queries, allowed, k)

    def _search_rows(
        self, rows: VectorMatrix, queries: Vectors, allowed: NDArray[np.bool_], k: int
    ) -> tuple[tuple[Match, ...], ...]:
        import numpy as np

        count = int(allowed.sum())
        if not count:
            return ((),) * len(queries)
        pool = min(count, max(4 * k, _MIN_POOL_SIZE) if self._diversity else k)
        exclusions = None if count == len(rows) else np.where(allowed, np.float32(0), np.float32(-np.inf))
        results: list[tuple[Match, ...]] = []
        batch_size = max(1, _MAX_BATCH_CELLS // len(rows))
        for start in range(0, len(queries), batch_size):
            batch_queries = queries[start : start + batch_size]
            similarities = _compute_cosines(rows.vectors, batch_queries)
            if exclusions is not None:
                similarities += exclusions
            for query, similarity in zip(batch_queries, similarities, strict=True):
                nearest = rows.nearest(query, similarity, pool)
                if self._diversity:
                    nearest = select_diverse(
                        nearest, rows.vectors[[row for _, row in nearest]], k, self._diversity
                    )
                results.append(tuple(self._build_match(rows.ids[row], exact) for exact, row in nearest))
        return tuple(results)

    def _build_match(self, name: str, similarity: float) -> Match:
        return Match(schema=self._schemata[name], similarity=max(-1.0, min(1.0, similarity)))

    def _build_mask(
        self,
        rows: VectorMatrix,
        excluded_groups: Iterable[str],
        origin: SchemaOrigin | None,
        only_active: bool,
    ) -> NDArray[np.bool_]:
        import numpy as np

        allowed = np.ones(len(rows), dtype=np.bool_)
        if only_active:
            allowed &= rows.flags[:, 0] == 1
        if origin is not None:
            allowed &= rows.flags[:, 1] == _ORIGIN_FLAGS[origin]
        for group in (excluded_groups,) if isinstance(excluded_groups, str) else excluded_groups:
            for name in self._groups.get(normalize_group_key(group), ()):
                allowed[rows.row_by_id[name]] = False
        return allowed

    def _reserve_rows(self, additional: int, dims: int | None) -> VectorMatrix:
        """Return the matrix with capacity for more rows; None for ``dims`` accepts any vector length."""
        if self._matrix is None or (dims not in (None, self._matrix.dimensions) and not len(self._matrix)):
            self._matrix = VectorMatrix(1 if dims is None else dims)
        if dims not in (None, self._matrix.dimensions):
            raise ConfigError(f"vectoriser {self.vectoriser.name!r} changed the length of its vectors")
        self._matrix.reserve(additional)
        return self._matrix

    def _check_ids(self, new: Sequence[ErrorSchema], *, must_exist: bool) -> None:
        ids: set[str] = set()
        for position, schema in enumerate(new):
            if schema.id in ids:
                raise InputError(f"the id {schema.id!r} occurs twice", record=position)
            if (schema.id in self._schemata) is not must_exist:
                problem = "no schema has" if must_exist else "there is already a schema with"
                raise InputError(f"{problem} the id {schema.id!r}", record=position)
            ids.add(schema.id)

    def _put_row(self, rows: VectorMatrix, schema: ErrorSchema, vector: NDArray[np.float32] | None) -> None:
        self._schemata[schema.id] = schema
        rows.put(
            schema.id, vector, (schema.status is SchemaStatus.ACTIVE, _ORIGIN_FLAGS[schema.provenance.origin])
        )
        for key in _list_group_keys(schema):
            self._groups.setdefault(key, set()).add(schema.id)

    def _remove_groups(self, name: str) -> None:
        for key in _list_group_keys(self._schemata[name]):
            self._groups[key].discard(name)
            if not self._groups[key]:
                del self._groups[key]


def _compute_cosines(vectors: Vectors, queries: Vectors) -> Vectors:
    """Return the cosines, of shape (queries, vectors)."""
    # A product of two matrices is slower for one query: it first copies the vectors into another order.
    return (vectors @ queries[0])[None] if len(queries) == 1 else queries @ vectors.T


def _list_group_keys(schema: ErrorSchema) -> set[str]:
    """Return the nonempty keys of a schema's questions, as in `agentguard.evals.splits`."""
    return {key for group in schema.provenance.groups if (key := normalize_group_key(group))}


def _are_equal(one: ErrorSchema, other: ErrorSchema) -> bool:
    return extract_text(one) == extract_text(other) and dict(one.traits) == dict(other.traits)
