"""The live cache: schemata that come, grow together, prove themselves or not, and go.

A failure that looks like none before becomes a schema of its own; one that does is merged into the nearest.
What recovery (or a person) showed is counted. `tend` distils the much used ones anew from the latest failures
behind them, and retires those that were refuted or that nobody needed. Time is a parameter: nothing here
reads a clock, and nothing is random, so that the same calls always leave the same cache.
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
"""Distils a schema anew from those of single failures behind it, the oldest first; None if it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertResult:
    """What became of a failure: a new schema, or the one it was merged into; ``id`` is that schema's."""

    schema_id: str
    outcome: Literal["added", "merged", "known"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceResult:
    """Ids of the schemata that were distilled anew, and of those that were retired, by reason."""

    redistilled_ids: tuple[str, ...] = ()
    refuted_ids: tuple[str, ...] = ()
    stale_ids: tuple[str, ...] = ()


def redistill_from_members(_: ErrorSchema, members: Sequence[ErrorSchema]) -> ErrorSchema | None:
    """Distil anew without a language model: what most of the latest failures behind a schema share."""
    if len(members) < 2:
        return None
    made = members[0]
    for member in members[1:]:
        made = merge_schemata(made, member)
    return made


class SchemaCache:
    """Schemata in use; safe to share between threads.

    Args:
        keep: where they outlive the process, and come from; None: nowhere.
        rules: see `CachePolicy`.
        index: an empty index to find them by; None: hashed words and traits, half each.
        renew: distils hot schemata anew.

    Raises:
        FormatError, StoreUnavailable: as `SchemaStore.load`.
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
        """Active schemata."""
        return sum(schema.status is SchemaStatus.ACTIVE for schema in self)

    def __iter__(self) -> Iterator[ErrorSchema]:
        """All schemata, retired ones too, by id, as they are now."""
        return iter(self._index)

    def get(self, schema_id: str) -> ErrorSchema:
        """A schema. Raises InputError if there is none of that id."""
        found = self._index.get(schema_id)
        if found is None:
            raise InputError(f"no schema has the id {schema_id!r}")
        return found

    @property
    def index(self) -> SchemaIndex:
        """What the schemata are found by, to be asked and not to be changed; asking it counts as no use."""
        return self._index

    def insert(self, schema: ErrorSchema, now: float, *, recovered: bool = False) -> InsertResult:
        """Take in what a failure was distilled to.

        Args:
            schema: of one failure.
            now: epoch seconds.
            recovered: nobody labelled it, a recovery bore it out: a new schema is quarantined, and active
                only once as many runs taught it as `CachePolicy.proven_at` asks for.

        Returns:
            Whether it is new. A failure that was taken in before changes nothing and is ``"known"``.

        Raises:
            InputError: a schema of the same id comes from failures of another origin.
        """
        with self._lock:
            held = self._index.get(schema.id)
            if held is not None and set(schema.provenance.runs) <= set(held.provenance.runs):
                return InsertResult(schema_id=held.id, outcome="known")
            near = held or self._find_merge_target(schema)
            if near is not None and set(schema.provenance.runs) <= set(near.provenance.runs):
                return InsertResult(schema_id=near.id, outcome="known")
            if near is not None:
                return self._merge_into(near, schema, now)
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
        """As `SchemaIndex.search`; each schema that is found counts as used once."""
        with self._lock:
            found = self._index.search(items, k, excluded_groups=excluded_groups, origin=origin)
            for name in sorted({match.schema.id for matches in found for match in matches}):
                self.record_use(name, now)
            return found

    def record_use(self, schema_id: str, now: float) -> ErrorSchema:
        """Count that a schema spoke."""
        with self._lock:
            schema = self.get(schema_id)
            used = replace(schema, used=schema.used + 1, used_at=_latest(schema.used_at, now))
            return self._put(used, heat=1)

    def record_confirmation(self, schema_id: str, now: float) -> ErrorSchema:
        """Count that recovery (or a person) bore a schema out; a stale one is active again."""
        with self._lock:
            schema = self.get(schema_id)
            made = replace(
                schema, confirmed=schema.confirmed + 1, updated_at=_strictly_after(schema.updated_at, now)
            )
            made = self._put(self._reactivate(made))
            self._evict(now, except_id=schema_id)
            return made

    def record_refutation(self, schema_id: str, now: float) -> ErrorSchema:
        """Count that a schema was wrong; it is retired at once if that is too often."""
        with self._lock:
            schema = self.get(schema_id)
            made = replace(
                schema, refuted=schema.refuted + 1, updated_at=_strictly_after(schema.updated_at, now)
            )
            made = self._put(self._retire(made) if self.policy.is_refuted(made) else made)
            self._evict(now, except_id=schema_id)
            return made

    def maintain(self, now: float) -> MaintenanceResult:
        """Retire what was refuted or is stale, and distil the hot ones anew; cheap if there is nothing to do.

        Raises:
            JudgeError: the distiller could not be asked; what was retired stays so.
        """
        with self._lock:
            active = [schema for schema in self if schema.status is not SchemaStatus.RETIRED]
            refuted = [one for one in active if self.policy.is_refuted(one)]
            stale = [
                one for one in active if self.policy.is_stale(one, now) and not self.policy.is_refuted(one)
            ]
            for schema in (*refuted, *stale):
                self._put(self._retire(schema))
            hot = self._select_hot()
        # A distiller may ask a language model: nobody waits for it.
        made = [(schema, self._redistill(schema, members)) for schema, members in hot]
        with self._lock:
            renewed = [schema.id for schema, fresh in made if self._replace_redistilled(schema, fresh, now)]
            return MaintenanceResult(
                redistilled_ids=tuple(renewed), refuted_ids=_schema_ids(refuted), stale_ids=_schema_ids(stale)
            )

    def synchronize(self, work: Callable[[], None]) -> None:
        """Work on what all processes have put into the keep, and put what changed, with nobody in between.

        Args:
            work: changes this cache; called once, or again where the keep has to be tried again.

        Raises:
            FormatError, StoreUnavailable: the keep cannot be used now; ``work`` may have been done here, and
                is put next time.
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
            gone, self._removed_ids = sorted(self._removed_ids), set()
        self._store.delete(gone)

    def _apply_stored(self, stored: Sequence[ErrorSchema]) -> None:
        """Take over what others put; of what was only used here, the uses."""
        for schema in stored:
            held = self._index.get(schema.id)
            if held is None:
                self._index.add([schema])
            elif held.updated_at < schema.updated_at:
                self._index.replace([replace(schema, used=max(held.used, schema.used))])

    def save(self) -> None:
        """Put what changed since the last time into the keep; if that raises, it is tried again next time."""
        if self._store is None:
            return
        with self._lock:
            self._store.upsert([self.get(name) for name in sorted(self._changed_ids)])
            self._changed_ids.clear()
            self._store.delete(sorted(self._removed_ids))
            self._removed_ids.clear()

    def _find_merge_target(self, schema: ErrorSchema) -> ErrorSchema | None:
        """The nearest schema that is near enough and may be of the same kind; retired ones count too."""
        found = self._index.search(
            [schema], self.policy.max_merge_candidates, origin=schema.provenance.origin, only_active=False
        )[0]
        near = (match for match in found if 1 - match.similarity <= self.policy.novelty_threshold)
        return next((match.schema for match in near if are_compatible(match.schema, schema)), None)

    def _merge_into(self, target: ErrorSchema, schema: ErrorSchema, now: float) -> InsertResult:
        members = self._members.setdefault(target.id, deque(maxlen=self.policy.max_members))
        if not members:
            members.append(target)
        members.append(schema)
        made = merge_schemata(target, replace(schema, status=target.status, created_at=target.created_at))
        self._put(self._reactivate(replace(made, updated_at=_strictly_after(target.updated_at, now))), heat=1)
        self._evict(now, except_id=target.id)
        return InsertResult(schema_id=target.id, outcome="merged")

    def _reactivate(self, schema: ErrorSchema) -> ErrorSchema:
        """Active, as it is needed again; unless it was refuted, or is not proven yet."""
        unproven = schema.status is SchemaStatus.QUARANTINED and not self.policy.is_proven(schema)
        return (
            schema
            if unproven or self.policy.is_refuted(schema)
            else replace(schema, status=SchemaStatus.ACTIVE)
        )

    def _retire(self, schema: ErrorSchema) -> ErrorSchema:
        return replace(schema, status=SchemaStatus.RETIRED)

    def _select_hot(self) -> list[tuple[ErrorSchema, tuple[ErrorSchema, ...]]]:
        """Active schemata that were used or merged often, with the failures to distil them from."""
        hot = [
            name for name, heat in sorted(self._use_counts.items()) if heat >= self.policy.redistill_threshold
        ]
        held = [(self.get(name), tuple(self._members.get(name, ()))) for name in hot]
        return [(schema, members) for schema, members in held if schema.status is SchemaStatus.ACTIVE]

    def _replace_redistilled(self, schema: ErrorSchema, redistilled: ErrorSchema | None, now: float) -> bool:
        """Put what was distilled anew in place of what it was made from, unless that changed meanwhile."""
        held = self._index.get(schema.id)
        if held is None or held.version != schema.version:
            return False
        self._use_counts[schema.id] = 0
        if redistilled is None:
            return False
        self._put(
            replace(
                held,
                signature=redistilled.signature,
                context=redistilled.context,
                heuristics=redistilled.heuristics,
                traits=redistilled.traits,
                correction=redistilled.correction or held.correction,
                version=held.version + 1,
                updated_at=_strictly_after(held.updated_at, now),
            )
        )
        return True

    def _evict(self, now: float, *, except_id: str = "") -> None:
        """Retire what selection leaves out where too many are active; forget the oldest retired ones.

        The schema ``but`` was just touched: it stays, whatever selection thinks of it.
        """
        active = [schema for schema in self if schema.status is SchemaStatus.ACTIVE]
        if len(active) > self.policy.max_schemata:
            from agentguard.schemata.selection import select_schemata

            others = [schema for schema in active if schema.id != except_id]
            budget = max(1, int(self.policy.max_schemata * self.policy.retention_ratio)) - (
                len(others) < len(active)
            )
            kept = set(select_schemata(others, self._index.encode(others), budget))
            for schema in others:
                if schema.id not in kept:
                    self._put(
                        self._retire(replace(schema, updated_at=_strictly_after(schema.updated_at, now)))
                    )
        retired = [
            schema for schema in self if schema.status is not SchemaStatus.ACTIVE and schema.id != except_id
        ]
        spare = len(retired) - self.policy.max_schemata
        if spare > 0:
            oldest = sorted(retired, key=lambda schema: (schema.updated_at, schema.id))[:spare]
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
    """Times only go forward, even where clocks do not."""
    return now if before is None else max(before, now)


def _strictly_after(before: float, now: float) -> float:
    """As `_later`, and never the same: that something changed is how others notice it."""
    return now if now > before else math.nextafter(before, math.inf)


def _schema_ids(schemata: Iterable[ErrorSchema]) -> tuple[str, ...]:
    return tuple(sorted(schema.id for schema in schemata))
