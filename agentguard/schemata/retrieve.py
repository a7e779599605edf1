"""The nearest schemata to what a step or a run looks like: exact, incremental, in one matrix product."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from agentguard.errors import ConfigError, InputError
from agentguard.schemata.blend import TRAIT_DIMS, Asked, blended, text_of
from agentguard.schemata.model import Match, Origin, Portrait, Schema, Status
from agentguard.schemata.rows import Rows, varied
from agentguard.schemata.vectorise import DEFAULT, Vectoriser, vectorisers
from agentguard.trajectory.groups import group_key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentguard.schemata.vectorise import Vectors

_ORIGINS: Final = {Origin.NATURAL: 0, Origin.INJECTED: 1, Origin.RECOVERED: 2}
_DIMS: Final = 256
_AT_ONCE: Final = 4_000_000
"""Most likenesses computed in one product (16 MB); more queries take several products."""
_SMALLEST_POOL: Final = 32


class SchemaIndex:
    """Schemata, found by the likeness of what they say; safe to use from several threads.

    The search is exact: every schema is compared. Results depend only on what is held and what is asked,
    never on the order in which schemata came, and equal likenesses are ordered by id.

    Args:
        vectoriser: encodes the texts; None is ``hashing``, which needs no training, to 256 dimensions
            together with the traits: the time of a query is mostly that of reading the vectors.
        traits: share of the traits in the likeness, in [0, 1]; see `agentguard.schemata.blend`.
        diversity: how much the results shall differ from each other, in [0, 1]: 0 gives the nearest, and
            above it they are picked by maximal marginal relevance (Carbonell and Goldstein, 1998).

    Raises:
        ConfigError: a share is out of its range.
    """

    def __init__(
        self, vectoriser: Vectoriser | None = None, *, traits: float = 0.0, diversity: float = 0.0
    ) -> None:
        for name, share in (("traits", traits), ("diversity", diversity)):
            if not 0 <= share <= 1:
                raise ConfigError(f"schema index: {name} is {share!r}, expected a number in [0, 1]")
        if vectoriser is None:
            vectoriser = vectorisers().get(DEFAULT)(dims=_DIMS - TRAIT_DIMS if traits else _DIMS)
        self.vectoriser = vectoriser
        self._share, self._diversity = float(traits), float(diversity)
        self._held: dict[str, Schema] = {}
        self._groups: dict[str, set[str]] = {}
        self._rows: Rows | None = None
        # Encoding may take long (a model, a server): it holds up other writers, but no search.
        self._writing, self._lock = threading.Lock(), threading.Lock()

    @classmethod
    def fitted(
        cls, schemata: Sequence[Schema], vectoriser: Vectoriser, *, traits: float = 0.0
    ) -> SchemaIndex:
        """An index of ``schemata`` whose vectoriser first learns from their texts."""
        made = cls(vectoriser.fit([schema.text() for schema in schemata]), traits=traits)
        made.add(schemata)
        return made

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, schema_id: object) -> bool:
        return schema_id in self._held

    def __iter__(self) -> Iterator[Schema]:
        """The schemata by id, as they are now."""
        with self._lock:
            return iter([self._held[name] for name in sorted(self._held)])

    def get(self, schema_id: str) -> Schema | None:
        """The schema with that id, if it is held."""
        return self._held.get(schema_id)

    def add(self, schemata: Iterable[Schema]) -> None:
        """Add schemata; on an error none is added.

        Raises:
            InputError: an id is already held, or given twice.
        """
        new = list(schemata)
        with self._writing:
            self._refuse(new, held=False)
            vectors = self.encode(new)
            with self._lock:
                rows = self._room(len(new), vectors.shape[1] if new else None)
                for schema, vector in zip(new, vectors, strict=True):
                    self._put(rows, schema, vector)

    def replace(self, schemata: Iterable[Schema]) -> None:
        """Put new versions in place of those held under the same ids; on an error none is replaced.

        Only those whose text or traits changed are encoded again.

        Raises:
            InputError: an id is not held, or given twice.
        """
        new = list(schemata)
        with self._writing:
            self._refuse(new, held=True)
            changed = [schema for schema in new if not _same(schema, self._held[schema.id])]
            encoded = self.encode(changed)
            vectors = {schema.id: vector for schema, vector in zip(changed, encoded, strict=True)}
            with self._lock:
                rows = self._room(0, encoded.shape[1] if changed else None)
                for schema in new:
                    self._forget_groups(schema.id)
                    self._put(rows, schema, vectors.get(schema.id))

    def remove(self, ids: Iterable[str]) -> None:
        """Forget schemata. Raises InputError if an id is not held; then none is forgotten."""
        gone = list(dict.fromkeys(ids))
        with self._writing, self._lock:
            for place, name in enumerate(gone):
                if name not in self._held:
                    raise InputError(f"no schema has the id {name!r}", record=place)
            for name in gone:
                self._forget_groups(name)
                del self._held[name]
                self._room(0, None).drop(name)

    def encode(self, items: Sequence[Asked]) -> Vectors:
        """Vectors as they are compared, of shape (n, d); see `agentguard.schemata.blend.blended`."""
        return blended(items, self.vectoriser, traits=self._share)

    def vectors(self) -> tuple[tuple[str, ...], Vectors]:
        """``(ids, vectors)`` of all that is held, by id; a copy of shape (n, d)."""
        with self._lock:
            ids = tuple(sorted(self._held))
            rows = self._room(0, None)
            return ids, rows.vectors[[rows.row[name] for name in ids]]

    def search(
        self,
        asked: Sequence[Asked],
        k: int,
        *,
        leave_out_groups: Iterable[str] = (),
        origin: Origin | None = None,
        only_active: bool = True,
    ) -> tuple[tuple[Match, ...], ...]:
        """The ``k`` nearest schemata for each of ``asked``, the nearest first; fewer only if fewer are held.

        Args:
            asked: portraits of the steps of a run, texts, or schemata.
            k: how many to return for each, at least 1.
            leave_out_groups: questions whose schemata are passed over, compared by `group_key`; at evaluation
                the question of the run itself. One without a letter or digit names no question.
            origin: only schemata of natural or of injected failures.
            only_active: pass retired schemata over.

        Raises:
            ConfigError: ``k`` is below 1.
            InputError: ``asked`` is one item instead of several, or holds what cannot be looked up.
        """
        if k < 1:
            raise ConfigError(f"schema index: k is {k!r}, expected at least 1")
        if isinstance(asked, str | Portrait | Schema):
            raise InputError("one item was asked for where several are expected", hint="put it into a list")
        if not asked or not self._held:
            return ((),) * len(asked)
        queries = self.encode(asked)
        with self._lock:
            rows = self._room(0, queries.shape[1])
            allowed = self._allowed(rows, leave_out_groups, origin, only_active)
            return self._found(rows, queries, allowed, k)

    def _found(
        self, rows: Rows, queries: Vectors, allowed: NDArray[np.bool_], k: int
    ) -> tuple[tuple[Match, ...], ...]:
        import numpy as np

        count = int(allowed.sum())
        if not count:
            return ((),) * len(queries)
        pool = min(count, max(4 * k, _SMALLEST_POOL) if self._diversity else k)
        passed_over = None if count == len(rows) else np.where(allowed, np.float32(0), np.float32(-np.inf))
        found: list[tuple[Match, ...]] = []
        batch = max(1, _AT_ONCE // len(rows))
        for start in range(0, len(queries), batch):
            part = queries[start : start + batch]
            likenesses = _likeness(rows.vectors, part)
            if passed_over is not None:
                likenesses += passed_over
            for query, likeness in zip(part, likenesses, strict=True):
                ranked = rows.nearest(query, likeness, pool)
                if self._diversity:
                    ranked = varied(ranked, rows.vectors[[row for _, row in ranked]], k, self._diversity)
                found.append(tuple(self._match(rows.ids[row], exact) for exact, row in ranked))
        return tuple(found)

    def _match(self, name: str, likeness: float) -> Match:
        return Match(schema=self._held[name], likeness=max(-1.0, min(1.0, likeness)))

    def _allowed(
        self, rows: Rows, leave_out: Iterable[str], origin: Origin | None, only_active: bool
    ) -> NDArray[np.bool_]:
        import numpy as np

        allowed = np.ones(len(rows), dtype=np.bool_)
        if only_active:
            allowed &= rows.flags[:, 0] == 1
        if origin is not None:
            allowed &= rows.flags[:, 1] == _ORIGINS[origin]
        for group in (leave_out,) if isinstance(leave_out, str) else leave_out:
            for name in self._groups.get(group_key(group), ()):
                allowed[rows.row[name]] = False
        return allowed

    def _room(self, more: int, dims: int | None) -> Rows:
        """The rows, with room for more; None: of whatever length they are."""
        if self._rows is None or (dims not in (None, self._rows.dims) and not len(self._rows)):
            self._rows = Rows(1 if dims is None else dims)
        if dims not in (None, self._rows.dims):
            raise ConfigError(f"vectoriser {self.vectoriser.name!r} changed the length of its vectors")
        self._rows.reserve(more)
        return self._rows

    def _refuse(self, new: Sequence[Schema], *, held: bool) -> None:
        seen: set[str] = set()
        for place, schema in enumerate(new):
            if schema.id in seen:
                raise InputError(f"the id {schema.id!r} is given twice", record=place)
            if (schema.id in self._held) is not held:
                problem = "no schema has" if held else "there is already a schema with"
                raise InputError(f"{problem} the id {schema.id!r}", record=place)
            seen.add(schema.id)

    def _put(self, rows: Rows, schema: Schema, vector: NDArray[np.float32] | None) -> None:
        self._held[schema.id] = schema
        rows.put(schema.id, vector, (schema.status is Status.ACTIVE, _ORIGINS[schema.provenance.origin]))
        for key in _groups_of(schema):
            self._groups.setdefault(key, set()).add(schema.id)

    def _forget_groups(self, name: str) -> None:
        for key in _groups_of(self._held[name]):
            self._groups[key].discard(name)
            if not self._groups[key]:
                del self._groups[key]


def _likeness(vectors: Vectors, queries: Vectors) -> Vectors:
    """Cosines, of shape (queries, vectors)."""
    # As a product of matrices, one query takes longer: the vectors are copied into another order first.
    return (vectors @ queries[0])[None] if len(queries) == 1 else queries @ vectors.T


def _groups_of(schema: Schema) -> set[str]:
    """Keys of its questions; one without a letter or digit names none, as in `agentguard.evals.splits`."""
    return {key for group in schema.provenance.groups if (key := group_key(group))}


def _same(one: Schema, other: Schema) -> bool:
    return text_of(one) == text_of(other) and dict(one.traits) == dict(other.traits)
