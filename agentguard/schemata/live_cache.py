"""Live cache of schemata: insertion, merge, confirmation, refutation and eviction.

A failure unlike all known ones becomes a new schema; any other is merged into the nearest schema. The cache
counts the verdicts of recoveries (and of people). `SchemaCache.maintain` distils frequently used schemata
again from their latest failures, and retires refuted and unused ones. Time is a parameter and nothing is
random, so the same calls always result in the same cache.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
"""Function that distils a schema again from the schemata of single failures, oldest first.

May return None.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertResult:
    """Result of an insertion: a new schema, or the schema of the merge; ``id`` is its id."""

    schema_id: str
    outcome: Literal["added", "merged", "known"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceResult:
    """Ids of the schemata that were distilled again, and of those that were retired, by reason."""

    redistilled_ids: tuple[str, ...] = ()
    refuted_ids: tuple[str, ...] = ()
    stale_ids: tuple[str, ...] = ()


def redistill_from_members(_: ErrorSchema, members: Sequence[ErrorSchema]) -> ErrorSchema | None:
    """Distil again without a language model: keep the content that most of the latest failures share."""
    if len(members) < 2:
        return None
    merged = members[0]
    for member in members[1:]:
        merged = merge_schemata(merged, member)
    return merged


class SchemaCache:
    """Schemata in use; thread-safe.

    Args:
        store: persistent store of the schemata; None for a cache in memory only.
        policy: see `CachePolicy`.
        index: an empty index for searches; None: hashed words and traits, half each.
        redistill: distils hot schemata again.

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
        """Return a schema. Raises InputError if the id does not exist."""
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
            recovered: True if a recovery confirmed it and no person labelled it. A new schema is quarantined
                until `CachePolicy.min_confirmations` runs have confirmed it.

        Returns:
            The result, with the status of the schema. An already inserted failure changes nothing and is
            ``"known"``.

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
            self._track(new, heat=0)
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
        """Count a use of a schema."""
        with self._lock:
            schema = self.get(schema_id)
            used = replace(schema, used=schema.used + 1, used_at=_latest(schema.used_at, now))
            return self._put(used, heat=1)

    def record_confirmation(self, schema_id: str, now: float) -> ErrorSchema:
        """Count a confirmation by a recovery (or a person); a stale schema becomes active again."""
        with self._lock:
            schema = self.get(schema_id)
            confirmed_schema = replace(
                schema, confirmed=schema.confirmed + 1, updated_at=_strictly_after(schema.updated_at, now)
            )
            confirmed_schema = self._put(self._reactivate(confirmed_schema))
            self._evict(now, except_id=schema_id)
            return confirmed_schema

    def record_refutation(self, schema_id: str, now: float) -> ErrorSchema:
        """Count a refutation; retire the schema at once if it is refuted too often."""
        with self._lock:
            schema = self.get(schema_id)
            refuted_schema = replace(
                schema, refuted=schema.refuted + 1, updated_at=_strictly_after(schema.updated_at, now)
            )
            refuted_schema = self._put(
                self._retire(refuted_schema) if self.policy.is_refuted(refuted_schema) else refuted_schema
            )
            self._evict(now, except_id=schema_id)
            return refuted_schema

    def maintain(self, now: float) -> MaintenanceResult:
        """Retire refuted and stale schemata, and distil the hot ones again; cheap if there is nothing to do.

        Raises:
            JudgeError: the distiller is unavailable; the retired schemata stay retired.
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
            hot = self._select_hot()
        # A distiller may call a language model, so it runs outside the lock.
        redistilled_pairs = [(schema, self._redistill(schema, members)) for schema, members in hot]
        with self._lock:
            redistilled_ids = [
                schema.id
                for schema, redistilled in redistilled_pairs
                if self._replace_redistilled(schema, redistilled, now)
            ]
            return MaintenanceResult(
                redistilled_ids=tuple(redistilled_ids),
                refuted_ids=_schema_ids(refuted),
                stale_ids=_schema_ids(stale),
            )

    def synchronize(self, work: Callable[[], None]) -> None:
        """Run ``work`` on the content of the store and write the changes, in one transaction.

        Args:
            work: changes this cache; called again if the store retries the transaction.

        Raises:
            FormatError, StoreUnavailable: the store is unavailable; changes by ``work`` may remain in this
                cache and are written next time.
        """
        if self._store is None:
            work()
            return

        def change(kept: tuple[ErrorSchema, ...]) -> list[ErrorSchema]:
            with self._lock:
                self._apply_stored(kept)
                work()
                return [self.get(name) for name in sorted(self._changed_ids)]

        self._store.update(change)
        with self._lock:
            self._changed_ids.clear()
            removed_ids, self._removed_ids = sorted(self._removed_ids), set()
        self._store.delete(removed_ids)

    def _apply_stored(self, stored: Sequence[ErrorSchema]) -> None:
        """Apply the changes of other processes; keep the uses that were counted here."""
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
        """Return the nearest compatible schema within the threshold, or None; retired ones count, too."""
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
        self._put(
            self._reactivate(replace(merged, updated_at=_strictly_after(target.updated_at, now))), heat=1
        )
        self._evict(now, except_id=target.id)
        return InsertResult(schema_id=target.id, outcome="merged")

    def _reactivate(self, schema: ErrorSchema) -> ErrorSchema:
        """Return the schema as active, unless it is refuted or not confirmed yet."""
        unproven = schema.status is SchemaStatus.QUARANTINED and not self.policy.is_proven(schema)
        return (
            schema
            if unproven or self.policy.is_refuted(schema)
            else replace(schema, status=SchemaStatus.ACTIVE)
        )

    def _retire(self, schema: ErrorSchema) -> ErrorSchema:
        return replace(schema, status=SchemaStatus.RETIRED)

    def _select_hot(self) -> list[tuple[ErrorSchema, tuple[ErrorSchema, ...]]]:
        """Return active schemata with many uses or merges, and the failures to distil them from."""
        hot_ids = [
            name for name, heat in sorted(self._use_counts.items()) if heat >= self.policy.redistill_threshold
        ]
        candidates = [(self.get(name), tuple(self._members.get(name, ()))) for name in hot_ids]
        return [(schema, members) for schema, members in candidates if schema.status is SchemaStatus.ACTIVE]

    def _replace_redistilled(self, schema: ErrorSchema, redistilled: ErrorSchema | None, now: float) -> bool:
        """Replace schemata by redistilled ones, unless they changed in the meantime."""
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
                updated_at=_strictly_after(current.updated_at, now),
            )
        )
        return True

    def _evict(self, now: float, *, except_id: str = "") -> None:
        """Retire schemata by selection if too many are active; delete the oldest retired ones.

        The schema ``except_id`` was just used and always stays.
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
                    self._put(
                        self._retire(replace(schema, updated_at=_strictly_after(schema.updated_at, now)))
                    )
        retired = [
            schema for schema in self if schema.status is not SchemaStatus.ACTIVE and schema.id != except_id
        ]
        surplus = len(retired) - self.policy.max_schemata
        if surplus > 0:
            oldest = sorted(retired, key=lambda schema: (schema.updated_at, schema.id))[:surplus]
            self._remove(_schema_ids(oldest))

    def _remove(self, ids: Sequence[str]) -> None:
        self._index.remove(ids)
        for name in ids:
            self._use_counts.pop(name, None)
            self._members.pop(name, None)
            self._changed_ids.discard(name)
            self._removed_ids.add(name)

    def _put(self, schema: ErrorSchema, *, heat: int = 0) -> ErrorSchema:
        self._index.replace([schema])
        self._track(schema, heat=heat)
        return schema

    def _track(self, schema: ErrorSchema, *, heat: int) -> None:
        self._use_counts[schema.id] = self._use_counts.get(schema.id, 0) + heat
        self._changed_ids.add(schema.id)
        self._removed_ids.discard(schema.id)


def _latest(before: float | None, now: float) -> float:
    """Return the later of two times, because clocks may run backwards."""
    return now if before is None else max(before, now)


def _strictly_after(before: float, now: float) -> float:
    """Return a time after ``before``; other processes detect a change by its time."""
    return now if now > before else math.nextafter(before, math.inf)


def _schema_ids(schemata: Iterable[ErrorSchema]) -> tuple[str, ...]:
    return tuple(sorted(schema.id for schema in schemata))
