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
from agentguard.schemata.blend import Asked
from agentguard.schemata.keep import Keep
from agentguard.schemata.merge import merge
from agentguard.schemata.model import Match, Origin, Schema, Status
from agentguard.schemata.retrieve import SchemaIndex
from agentguard.schemata.rules import CacheRules, compatible

Renew = Callable[[Schema, Sequence[Schema]], Schema | None]
"""Distils a schema anew from those of single failures behind it, the oldest first; None if it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What became of a failure: a new schema, or the one it was merged into; ``id`` is that schema's."""

    id: str
    how: Literal["added", "merged", "known"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tended:
    """Ids of the schemata that were distilled anew, and of those that were retired, by reason."""

    renewed: tuple[str, ...] = ()
    refuted: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()


def from_members(_: Schema, members: Sequence[Schema]) -> Schema | None:
    """Distil anew without a language model: what most of the latest failures behind a schema share."""
    if len(members) < 2:
        return None
    made = members[0]
    for member in members[1:]:
        made = merge(made, member)
    return made


class SchemaCache:
    """Schemata in use; safe to share between threads.

    Args:
        keep: where they outlive the process, and come from; None: nowhere.
        rules: see `CacheRules`.
        index: an empty index to find them by; None: hashed words and traits, half each.
        renew: distils hot schemata anew.

    Raises:
        FormatError, StoreUnavailable: as `Keep.load`.
    """

    def __init__(
        self,
        keep: Keep | None = None,
        *,
        rules: CacheRules | None = None,
        index: SchemaIndex | None = None,
        renew: Renew = from_members,
    ) -> None:
        self.rules = rules or CacheRules()
        self._keep, self._renew = keep, renew
        self._index = SchemaIndex(traits=0.5) if index is None else index
        self._members: dict[str, deque[Schema]] = {}
        self._heat: dict[str, int] = {}
        self._changed: set[str] = set()
        self._gone: set[str] = set()
        self._lock = threading.RLock()
        if keep is not None:
            self._index.add(keep.load())

    def __enter__(self) -> SchemaCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.save()

    def __len__(self) -> int:
        """Active schemata."""
        return sum(schema.status is Status.ACTIVE for schema in self)

    def __iter__(self) -> Iterator[Schema]:
        """All schemata, retired ones too, by id, as they are now."""
        return iter(self._index)

    def get(self, schema_id: str) -> Schema:
        """A schema. Raises InputError if there is none of that id."""
        found = self._index.get(schema_id)
        if found is None:
            raise InputError(f"no schema has the id {schema_id!r}")
        return found

    @property
    def index(self) -> SchemaIndex:
        """What the schemata are found by, to be asked and not to be changed; asking it counts as no use."""
        return self._index

    def observe(self, schema: Schema, now: float, *, recovered: bool = False) -> Taken:
        """Take in what a failure was distilled to.

        Args:
            schema: of one failure.
            now: epoch seconds.
            recovered: nobody labelled it, a recovery bore it out: a new schema is quarantined, and active
                only once as many runs taught it as `CacheRules.proven_at` asks for.

        Returns:
            Whether it is new. A failure that was taken in before changes nothing and is ``"known"``.

        Raises:
            InputError: a schema of the same id comes from failures of another origin.
        """
        with self._lock:
            held = self._index.get(schema.id)
            if held is not None and set(schema.provenance.runs) <= set(held.provenance.runs):
                return Taken(id=held.id, how="known")
            near = held or self._nearest(schema)
            if near is not None and set(schema.provenance.runs) <= set(near.provenance.runs):
                return Taken(id=near.id, how="known")
            if near is not None:
                return self._merge(near, schema, now)
            status = Status.QUARANTINED if recovered and not self.rules.proven(schema) else Status.ACTIVE
            new = replace(schema, status=status, created_at=now, updated_at=now)
            self._index.add([new])
            self._note(new, heat=0)
            self._bound(now, but=new.id)
            return Taken(id=new.id, how="added")

    def search(
        self,
        asked: Sequence[Asked],
        k: int,
        now: float,
        *,
        leave_out_groups: Iterable[str] = (),
        origin: Origin | None = None,
    ) -> tuple[tuple[Match, ...], ...]:
        """As `SchemaIndex.search`; each schema that is found counts as used once."""
        with self._lock:
            found = self._index.search(asked, k, leave_out_groups=leave_out_groups, origin=origin)
            for name in sorted({match.schema.id for matches in found for match in matches}):
                self.use(name, now)
            return found

    def use(self, schema_id: str, now: float) -> Schema:
        """Count that a schema spoke."""
        with self._lock:
            schema = self.get(schema_id)
            used = replace(schema, used=schema.used + 1, used_at=_later(schema.used_at, now))
            return self._put(used, heat=1)

    def confirm(self, schema_id: str, now: float) -> Schema:
        """Count that recovery (or a person) bore a schema out; a stale one is active again."""
        with self._lock:
            schema = self.get(schema_id)
            made = replace(schema, confirmed=schema.confirmed + 1, updated_at=_after(schema.updated_at, now))
            made = self._put(self._revived(made))
            self._bound(now, but=schema_id)
            return made

    def refute(self, schema_id: str, now: float) -> Schema:
        """Count that a schema was wrong; it is retired at once if that is too often."""
        with self._lock:
            schema = self.get(schema_id)
            made = replace(schema, refuted=schema.refuted + 1, updated_at=_after(schema.updated_at, now))
            made = self._put(self._retired(made) if self.rules.refuted(made) else made)
            self._bound(now, but=schema_id)
            return made

    def tend(self, now: float) -> Tended:
        """Retire what was refuted or is stale, and distil the hot ones anew; cheap if there is nothing to do.

        Raises:
            JudgeError: the distiller could not be asked; what was retired stays so.
        """
        with self._lock:
            active = [schema for schema in self if schema.status is not Status.RETIRED]
            refuted = [one for one in active if self.rules.refuted(one)]
            stale = [one for one in active if self.rules.stale(one, now) and not self.rules.refuted(one)]
            for schema in (*refuted, *stale):
                self._put(self._retired(schema))
            hot = self._hot()
        # A distiller may ask a language model: nobody waits for it.
        made = [(schema, self._renew(schema, members)) for schema, members in hot]
        with self._lock:
            renewed = [schema.id for schema, fresh in made if self._renewed(schema, fresh, now)]
            return Tended(renewed=tuple(renewed), refuted=_ids(refuted), stale=_ids(stale))

    def exchange(self, work: Callable[[], None]) -> None:
        """Work on what all processes have put into the keep, and put what changed, with nobody in between.

        Args:
            work: changes this cache; called once, or again where the keep has to be tried again.

        Raises:
            FormatError, StoreUnavailable: the keep cannot be used now; ``work`` may have been done here, and
                is put next time.
        """
        if self._keep is None:
            work()
            return

        def change(kept: tuple[Schema, ...]) -> list[Schema]:
            with self._lock:
                self._absorb(kept)
                work()
                return [self.get(name) for name in sorted(self._changed)]

        self._keep.exchange(change)
        with self._lock:
            self._changed.clear()
            gone, self._gone = sorted(self._gone), set()
        self._keep.forget(gone)

    def _absorb(self, kept: Sequence[Schema]) -> None:
        """Take over what others put; of what was only used here, the uses."""
        for schema in kept:
            held = self._index.get(schema.id)
            if held is None:
                self._index.add([schema])
            elif held.updated_at < schema.updated_at:
                self._index.replace([replace(schema, used=max(held.used, schema.used))])

    def save(self) -> None:
        """Put what changed since the last time into the keep; if that raises, it is tried again next time."""
        if self._keep is None:
            return
        with self._lock:
            self._keep.put([self.get(name) for name in sorted(self._changed)])
            self._changed.clear()
            self._keep.forget(sorted(self._gone))
            self._gone.clear()

    def _nearest(self, schema: Schema) -> Schema | None:
        """The nearest schema that is near enough and may be of the same kind; retired ones count too."""
        found = self._index.search(
            [schema], self.rules.looked_at, origin=schema.provenance.origin, only_active=False
        )[0]
        near = (match for match in found if 1 - match.likeness <= self.rules.new_over)
        return next((match.schema for match in near if compatible(match.schema, schema)), None)

    def _merge(self, near: Schema, schema: Schema, now: float) -> Taken:
        members = self._members.setdefault(near.id, deque(maxlen=self.rules.members))
        if not members:
            members.append(near)
        members.append(schema)
        made = merge(near, replace(schema, status=near.status, created_at=near.created_at))
        self._put(self._revived(replace(made, updated_at=_after(near.updated_at, now))), heat=1)
        self._bound(now, but=near.id)
        return Taken(id=near.id, how="merged")

    def _revived(self, schema: Schema) -> Schema:
        """Active, as it is needed again; unless it was refuted, or is not proven yet."""
        unproven = schema.status is Status.QUARANTINED and not self.rules.proven(schema)
        return schema if unproven or self.rules.refuted(schema) else replace(schema, status=Status.ACTIVE)

    def _retired(self, schema: Schema) -> Schema:
        return replace(schema, status=Status.RETIRED)

    def _hot(self) -> list[tuple[Schema, tuple[Schema, ...]]]:
        """Active schemata that were used or merged often, with the failures to distil them from."""
        hot = [name for name, heat in sorted(self._heat.items()) if heat >= self.rules.hot_after]
        held = [(self.get(name), tuple(self._members.get(name, ()))) for name in hot]
        return [(schema, members) for schema, members in held if schema.status is Status.ACTIVE]

    def _renewed(self, schema: Schema, made: Schema | None, now: float) -> bool:
        """Put what was distilled anew in place of what it was made from, unless that changed meanwhile."""
        held = self._index.get(schema.id)
        if held is None or held.version != schema.version:
            return False
        self._heat[schema.id] = 0
        if made is None:
            return False
        self._put(
            replace(
                held,
                signature=made.signature,
                context=made.context,
                heuristics=made.heuristics,
                traits=made.traits,
                correction=made.correction or held.correction,
                version=held.version + 1,
                updated_at=_after(held.updated_at, now),
            )
        )
        return True

    def _bound(self, now: float, *, but: str = "") -> None:
        """Retire what selection leaves out where too many are active; forget the oldest retired ones.

        The schema ``but`` was just touched: it stays, whatever selection thinks of it.
        """
        active = [schema for schema in self if schema.status is Status.ACTIVE]
        if len(active) > self.rules.most:
            from agentguard.schemata.select import select

            others = [schema for schema in active if schema.id != but]
            budget = max(1, int(self.rules.most * self.rules.kept_at_limit)) - (len(others) < len(active))
            kept = set(select(others, self._index.encode(others), budget))
            for schema in others:
                if schema.id not in kept:
                    self._put(self._retired(replace(schema, updated_at=_after(schema.updated_at, now))))
        retired = [schema for schema in self if schema.status is not Status.ACTIVE and schema.id != but]
        spare = len(retired) - self.rules.most
        if spare > 0:
            oldest = sorted(retired, key=lambda schema: (schema.updated_at, schema.id))[:spare]
            self._forget(_ids(oldest))

    def _forget(self, ids: Sequence[str]) -> None:
        self._index.remove(ids)
        for name in ids:
            self._heat.pop(name, None)
            self._members.pop(name, None)
            self._changed.discard(name)
            self._gone.add(name)

    def _put(self, schema: Schema, *, heat: int = 0) -> Schema:
        self._index.replace([schema])
        self._note(schema, heat=heat)
        return schema

    def _note(self, schema: Schema, *, heat: int) -> None:
        self._heat[schema.id] = self._heat.get(schema.id, 0) + heat
        self._changed.add(schema.id)
        self._gone.discard(schema.id)


def _later(before: float | None, now: float) -> float:
    """Times only go forward, even where clocks do not."""
    return now if before is None else max(before, now)


def _after(before: float, now: float) -> float:
    """As `_later`, and never the same: that something changed is how others notice it."""
    return now if now > before else math.nextafter(before, math.inf)


def _ids(schemata: Iterable[Schema]) -> tuple[str, ...]:
    return tuple(sorted(schema.id for schema in schemata))
