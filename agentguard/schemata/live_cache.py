"""Live cache of schemata: insertion, merge, confirmation, refutation and eviction.

A failure that is not similar to a known one becomes a new schema; any other is merged into the nearest
schema. The cache counts the verdicts of recoveries (and of people). `SchemaCache.maintain` distils frequently
used schemata again from their latest failures, and retires refuted and unused ones. The cache is
deterministic: time is a parameter.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import TracebackType
from typing import Literal

from agentguard.errors import InputError
from agentguard.schemata.cache_policy import CachePolicy, are_compatible
from agentguard.schemata.index import SchemaIndex
from agentguard.schemata.merge import merge_schemata
from agentguard.schemata.model import ErrorSchema, Match, SchemaOrigin, SchemaStatus
from agentguard.schemata.persistence import SchemaStore
from agentguard.schemata.vectors.combined import SchemaQuery

Redistill = Callable[[ErrorSchema, Sequence[ErrorSchema]], ErrorSchema | None]
"""Function from a schema and the schemata of its latest failures, oldest first, to a new version.

None leaves the schema unchanged.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertResult:
    """Result of an insertion.

    Attributes:
        schema_id: id of the new schema, of the schema that it was merged into, or of the known schema.
        outcome: ``"added"``, ``"merged"`` or ``"known"``.
    """

    schema_id: str
    outcome: Literal["added", "merged", "known"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceResult:
    """Ids of the schemata that were distilled again, and of those that were retired, by reason."""

    redistilled_ids: tuple[str, ...] = ()
    refuted_ids: tuple[str, ...] = ()
    stale_ids: tuple[str, ...] = ()


def redistill_from_members(_: ErrorSchema, members: Sequence[ErrorSchema]) -> ErrorSchema | None:
    """Merge the schemata of the latest failures, oldest first; return None for fewer than two."""
    if len(members) < 2:
        return None
    return reduce(merge_schemata, members)


class SchemaCache:
    """Cache of the schemata in use; thread-safe.

    Args:
        store: persistent store of the schemata; None for a cache in memory only.
        policy: settings of the cache.
        index: an empty index for searches; None selects hashed words and traits, with equal weights.
        redistill: function that distils frequently used schemata again.

    Raises:
        FormatError, StoreUnavailable: see `SchemaStore.load`.
    """

    def __init__(
        self,
        store: SchemaStore | None = None,
        *,
        policy: CachePolicy | None = None,
        index: SchemaIndex | None = None,
        redistill: Redistill = redistill_from_members,
    ) -> None:
        self.policy = policy or CachePolicy()
        self._store, self._redistill = store, redistill
        self._index = SchemaIndex(trait_weight=0.5) if index is None else index
        self._members: dict[str, deque[ErrorSchema]] = {}
        self._use_counts: dict[str, int] = {}
        self._changed_ids: set[str] = set()
        self._removed_ids: set[str] = set()
        self._lock = threading.RLock()
        if store is not None:
            self._index.add(store.load())

    def __enter__(self) -> SchemaCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.save()

    def __len__(self) -> int:
        """Return the number of active schemata."""
        return sum(schema.status is SchemaStatus.ACTIVE for schema in self)

    def __iter__(self) -> Iterator[ErrorSchema]:
        """Iterate over all current schemata by id, including retired ones."""
        return iter(self._index)

    def get(self, schema_id: str) -> ErrorSchema:
        """Return the schema with an id. Raises InputError if it does not exist."""
        schema = self._index.get(schema_id)
        if schema is None:
            raise InputError(f"no schema has the id {schema_id!r}")
        return schema

    @property
    def index(self) -> SchemaIndex:
        """Index of the schemata, read-only for callers; a search in it does not count as a use."""
        return self._index

    def insert(self, schema: ErrorSchema, now: float, *, recovered: bool = False) -> InsertResult:
        """Insert the schema of a failure.

        Args:
            schema: schema of one failure.
            now: epoch seconds.
            recovered: True for a schema of a recovery without a label of a person. A new schema is then
                quarantined until `CachePolicy.min_confirmations` runs have confirmed it.

        Returns:
            Id and outcome; an already inserted failure changes nothing and is ``"known"``.

        Raises:
            InputError: a schema with the same id is from failures of another origin.
        """
        with self._lock:
            stored = self._index.get(schema.id)
            if stored is not None and set(schema.provenance.runs) <= set(stored.provenance.runs):
                return InsertResult(schema_id=stored.id, outcome="known")
            target = stored or self._find_merge_target(schema)
            if target is not None and set(schema.provenance.runs) <= set(target.provenance.runs):
                return InsertResult(schema_id=target.id, outcome="known")
            if target is not None:
                return self._merge_into(target, schema, now)
            status = (
                SchemaStatus.QUARANTINED
                if recovered and not self.policy.is_proven(schema)
                else SchemaStatus.ACTIVE
            )
            new = replace(schema, status=status, created_at=now, updated_at=now)
            self._index.add([new])
            self._track(new, uses=0)
            self._evict(now, except_id=new.id)
            return InsertResult(schema_id=new.id, outcome="added")

    def search(
        self,
        items: Sequence[SchemaQuery],
        k: int,
        now: float,
        *,
        excluded_groups: Iterable[str] = (),
        origin: SchemaOrigin | None = None,
    ) -> tuple[tuple[Match, ...], ...]:
        """Search as `SchemaIndex.search` does, and count one use of each result."""
        with self._lock:
            results = self._index.search(items, k, excluded_groups=excluded_groups, origin=origin)
            for name in sorted({match.schema.id for matches in results for match in matches}):
                self.record_use(name, now)
            return results

    def record_use(self, schema_id: str, now: float) -> ErrorSchema:
        """Count a use of a schema; ``now`` in epoch seconds."""
        with self._lock:
            schema = self.get(schema_id)
            used = replace(schema, used=schema.used + 1, used_at=_select_later(schema.used_at, now))
            return self._put(used, uses=1)

    def record_confirmation(self, schema_id: str, now: float) -> ErrorSchema:
        """Count a confirmation by a recovery (or a person); a stale schema becomes active again."""
        with self._lock:
            schema = self.get(schema_id)
            confirmed_schema = replace(
                schema, confirmed=schema.confirmed + 1, updated_at=_advance_time(schema.updated_at, now)
            )
            confirmed_schema = self._put(self._reactivate(confirmed_schema))
            self._evict(now, except_id=schema_id)
            return confirmed_schema

    def record_refutation(self, schema_id: str, now: float) -> ErrorSchema:
        """Count a refutation; retire the schema if its refutations suffice."""
        with self._lock:
            schema = self.get(schema_id)
            refuted_schema = replace(
                schema, refuted=schema.refuted + 1, updated_at=_advance_time(schema.updated_at, now)
            )
            refuted_schema = self._put(
                self._retire(refuted_schema) if self.policy.is_refuted(refuted_schema) else refuted_schema
            )
            self._evict(now, except_id=schema_id)
            return refuted_schema

    def maintain(self, now: float) -> MaintenanceResult:
        """Retire refuted and stale schemata, and distil frequently used ones again.

        Raises:
            JudgeError: the distiller is unavailable. The schemata are retired nevertheless.
        """
        with self._lock:
            active = [schema for schema in self if schema.status is not SchemaStatus.RETIRED]
            refuted = [schema for schema in active if self.policy.is_refuted(schema)]
            stale = [
                schema
                for schema in active
                if self.policy.is_stale(schema, now) and not self.policy.is_refuted(schema)
            ]
            for schema in (*refuted, *stale):
                self._put(self._retire(schema))
            used_schemata = self._select_frequently_used()
        # A distiller may call a language model, so it runs outside the lock.
        redistilled_pairs = [(schema, self._redistill(schema, members)) for schema, members in used_schemata]
        with self._lock:
            redistilled_ids = [
                schema.id
                for schema, redistilled in redistilled_pairs
                if self._replace_redistilled(schema, redistilled, now)
            ]
            return MaintenanceResult(
                redistilled_ids=tuple(redistilled_ids),
                refuted_ids=_list_ids(refuted),
                stale_ids=_list_ids(stale),
            )

    def synchronize(self, work: Callable[[], None]) -> None:
        """Run ``work`` on the content of the store and write the changes, in one transaction.

        Args:
            work: function that changes this cache. It is called again if the store retries the transaction.

        Raises:
            FormatError, StoreUnavailable: the store is unavailable. The changes of ``work`` may remain in
                this cache, and the next call writes them.
        """
        if self._store is None:
            work()
            return

        def change(stored: tuple[ErrorSchema, ...]) -> list[ErrorSchema]:
            with self._lock:
                self._apply_stored(stored)
                work()
                return [self.get(name) for name in sorted(self._changed_ids)]

        self._store.update(change)
        with self._lock:
            self._changed_ids.clear()
            removed_ids, self._removed_ids = sorted(self._removed_ids), set()
        self._store.delete(removed_ids)

    def _apply_stored(self, stored: Sequence[ErrorSchema]) -> None:
        """Apply the changes of other processes, without loss of the uses that this cache counted."""
        for schema in stored:
            current = self._index.get(schema.id)
            if current is None:
                self._index.add([schema])
            elif current.updated_at < schema.updated_at:
                self._index.replace([replace(schema, used=max(current.used, schema.used))])

    def save(self) -> None:
        """Write the changes since the last save to the store; after an error, the next save retries them."""
        if self._store is None:
            return
        with self._lock:
            self._store.upsert([self.get(name) for name in sorted(self._changed_ids)])
            self._changed_ids.clear()
            self._store.delete(sorted(self._removed_ids))
            self._removed_ids.clear()

    def _find_merge_target(self, schema: ErrorSchema) -> ErrorSchema | None:
        """Return the nearest compatible schema within the threshold, also a retired one, or None."""
        matches = self._index.search(
            [schema], self.policy.max_merge_candidates, origin=schema.provenance.origin, only_active=False
        )[0]
        close_matches = (match for match in matches if 1 - match.similarity <= self.policy.novelty_threshold)
        return next((match.schema for match in close_matches if are_compatible(match.schema, schema)), None)

    def _merge_into(self, target: ErrorSchema, schema: ErrorSchema, now: float) -> InsertResult:
        members = self._members.setdefault(target.id, deque(maxlen=self.policy.max_members))
        if not members:
            members.append(target)
        members.append(schema)
        merged = merge_schemata(target, replace(schema, status=target.status, created_at=target.created_at))
        self._put(self._reactivate(replace(merged, updated_at=_advance_time(target.updated_at, now))), uses=1)
        self._evict(now, except_id=target.id)
        return InsertResult(schema_id=target.id, outcome="merged")

    def _reactivate(self, schema: ErrorSchema) -> ErrorSchema:
        """Return the schema as active, unless it is refuted or quarantined without enough confirmations."""
        unproven = schema.status is SchemaStatus.QUARANTINED and not self.policy.is_proven(schema)
        return (
            schema
            if unproven or self.policy.is_refuted(schema)
            else replace(schema, status=SchemaStatus.ACTIVE)
        )

    def _retire(self, schema: ErrorSchema) -> ErrorSchema:
        return replace(schema, status=SchemaStatus.RETIRED)

    def _select_frequently_used(self) -> list[tuple[ErrorSchema, tuple[ErrorSchema, ...]]]:
        """Return active schemata with many uses or merges, each with its latest failures."""
        ids = [
            name for name, uses in sorted(self._use_counts.items()) if uses >= self.policy.redistill_threshold
        ]
        candidates = [(self.get(name), tuple(self._members.get(name, ()))) for name in ids]
        return [(schema, members) for schema, members in candidates if schema.status is SchemaStatus.ACTIVE]

    def _replace_redistilled(self, schema: ErrorSchema, redistilled: ErrorSchema | None, now: float) -> bool:
        """Replace a schema by its new version, unless it changed in the meantime; return whether it did."""
        current = self._index.get(schema.id)
        if current is None or current.version != schema.version:
            return False
        self._use_counts[schema.id] = 0
        if redistilled is None:
            return False
        self._put(
            replace(
                current,
                signature=redistilled.signature,
                context=redistilled.context,
                heuristics=redistilled.heuristics,
                traits=redistilled.traits,
                correction=redistilled.correction or current.correction,
                version=current.version + 1,
                updated_at=_advance_time(current.updated_at, now),
            )
        )
        return True

    def _evict(self, now: float, *, except_id: str = "") -> None:
        """Retire schemata by selection if too many are active; delete the oldest retired ones.

        The schema ``except_id`` is not evicted, since it was just used.
        """
        active = [schema for schema in self if schema.status is SchemaStatus.ACTIVE]
        if len(active) > self.policy.max_schemata:
            from agentguard.schemata.selection import select_schemata

            others = [schema for schema in active if schema.id != except_id]
            budget = max(1, int(self.policy.max_schemata * self.policy.retention_ratio)) - (
                len(others) < len(active)
            )
            selected_ids = set(select_schemata(others, self._index.encode(others), budget))
            for schema in others:
                if schema.id not in selected_ids:
                    self._put(self._retire(replace(schema, updated_at=_advance_time(schema.updated_at, now))))
        retired = [
            schema for schema in self if schema.status is not SchemaStatus.ACTIVE and schema.id != except_id
        ]
        surplus = len(retired) - self.policy.max_schemata
        if surplus > 0:
            oldest = sorted(retired, key=lambda schema: (schema.updated_at, schema.id))[:surplus]
            self._remove(_list_ids(oldest))

    def _remove(self, ids: Sequence[str]) -> None:
        self._index.remove(ids)
        for name in ids:
            self._use_counts.pop(name, None)
            self._members.pop(name, None)
            self._changed_ids.discard(name)
            self._removed_ids.add(name)

    def _put(self, schema: ErrorSchema, *, uses: int = 0) -> ErrorSchema:
        self._index.replace([schema])
        self._track(schema, uses=uses)
        return schema

    def _track(self, schema: ErrorSchema, *, uses: int) -> None:
        self._use_counts[schema.id] = self._use_counts.get(schema.id, 0) + uses
        self._changed_ids.add(schema.id)
        self._removed_ids.discard(schema.id)


def _select_later(before: float | None, now: float) -> float:
    """Return the later of two times, since a clock may be set back."""
    return now if before is None else max(before, now)


def _advance_time(before: float, now: float) -> float:
    """Return ``now``, or a time after ``before``, since other processes detect a change by its time."""
    return now if now > before else math.nextafter(before, math.inf)


def _list_ids(schemata: Iterable[ErrorSchema]) -> tuple[str, ...]:
    return tuple(sorted(schema.id for schema in schemata))
