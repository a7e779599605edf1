"""The store as others use it: write rows, ask for them, claim effects, delete."""

from __future__ import annotations

import atexit
import os
import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Literal

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from agentguard.errors import StoreError, StoreTimeout
from agentguard.store import rows as r
from agentguard.store.effects import Claim, Ledger
from agentguard.store.engine import make_engine, unavailable
from agentguard.store.migrate import migrate
from agentguard.store.options import Options
from agentguard.store.page import Page, RunFilter, Slice
from agentguard.store.place import Place
from agentguard.store.read import Reader
from agentguard.store.receipt import Receipt
from agentguard.store.retention import Deleted, Limits, Retention
from agentguard.store.runs import run_rows
from agentguard.store.stats import Stats
from agentguard.store.url import Address, resolve
from agentguard.store.writer import Health, Writer
from agentguard.trajectory.model import Record, Trajectory

_CLOSE_S = 5.0
_FLUSH_S = 30.0

_OPEN: weakref.WeakSet[Store] = weakref.WeakSet()
_INHERITED: list[object] = []


class Store:
    """Rows on disk; safe to use from many threads, and from several processes at once.

    `write` never waits for the database and never raises. Everything else answers from the database, waits
    for it, and raises StoreUnavailable where it cannot be used now; in asyncio code call it through
    ``asyncio.to_thread``. Questions are answered from what is durable: `flush` first to see one's own rows.
    """

    def __init__(self, address: Address, options: Options) -> None:
        """Use `open`. Nothing is connected here."""
        self.address, self.options = address, options
        self._build()
        atexit.register(self.close)
        _OPEN.add(self)

    def _build(self) -> None:
        o = self.options
        self._place = Place(self.address, synchronous=o.synchronous, busy_s=o.busy_s)
        self._writer = Writer(self._place, max_rows=o.max_rows, max_bytes=o.max_bytes)
        self._reader = Reader(self._place)
        self._retention = Retention(self._place)
        # A claim that a power cut forgets would let an effect happen twice: it always waits for the disk.
        self._claims = Place(self.address, synchronous="full", busy_s=o.busy_s)
        self._ledger = Ledger(self._claims)

    @classmethod
    def open(
        cls, url: str | Path | None = None, *, connect: bool = True, options: Options | None = None
    ) -> Store:
        """Open a store, and make its tables if the database has none.

        Args:
            url: a path, ``sqlite:///path`` or ``postgresql://user:password@host/name``; None: what the
                environment variable ``AGENTGUARD_STORE`` says, else ``.agentguard/store.db``.
            connect: try the database now; if False, a database that cannot be reached is waited for.
            options: limits and durability.

        Raises:
            ConfigError: no address of a database that can be used.
            MissingExtra: its driver is not installed.
            StoreVersion: its tables are of another version of agentguard.
            StoreUnavailable: it cannot be used now (only with ``connect``).
        """
        store = cls(resolve(url), options or Options())
        if connect:
            try:
                store._place.engine()
            except (SQLAlchemyError, OSError) as error:
                store.close()
                raise unavailable(error, store.address) from None
            except BaseException:
                store.close()
                raise
        return store

    @staticmethod
    def migrate(url: str | Path | None = None) -> tuple[Address, str, str]:
        """Bring the tables of a store to this version: its address, the versions before and after.

        Raises StoreVersion where they are newer, StoreError where there is no file, StoreUnavailable.
        """
        address = resolve(url)
        if address.path is not None and not address.path.exists():
            raise StoreError(f"there is no store {address}")
        engine = make_engine(address)
        try:
            return address, *migrate(engine, address)
        except (SQLAlchemyError, OSError) as error:
            raise unavailable(error, address) from None
        finally:
            engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- writing

    def write(self, *rows: r.Row) -> Receipt:
        """Queue rows; they become durable together, soon. Never raises and never touches the disk."""
        return self._writer.write(rows)

    def write_run(self, record: Record | Trajectory, *, tenant: str = "") -> Receipt:
        """Queue a whole run; it replaces what is stored under its id."""
        whole = record if isinstance(record, Record) else Record(trajectory=record)
        return self.write(*run_rows(whole, tenant=tenant))

    def health(self) -> Health:
        """How many rows were written, wait, were refused or lost, and what is wrong with the database."""
        return self._writer.health()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait for the rows written before. Raises StoreTimeout after ``timeout_s`` seconds."""
        if not self._writer.flush(timeout_s):
            raise StoreTimeout(
                f"rows still wait to be written after {timeout_s} s: {self.health().last_error}"
            )

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Write what waits, for at most ``timeout_s`` seconds; what is left then is lost and counted."""
        atexit.unregister(self.close)
        self._writer.close(timeout_s)
        self._place.forget()
        self._claims.forget()

    # -- effects

    def claim(self, effect: r.EffectRow) -> Claim:
        """Claim an effect before it is carried out; only a claim that is ``"new"`` allows that.

        Raises:
            StoreUnavailable: the claim could not be made durable: do not carry the effect out.
            StoreError: the row cannot be stored.
        """
        return self._ledger.claim(effect)

    def settle(
        self, effect: r.EffectRow, state: Literal["done", "compensated"], *, result: r.Data | None = None
    ) -> bool:
        """Note that a claimed effect is done or compensated; ``result`` becomes its data.

        Returns False if it was never claimed, or had got that far before.
        """
        return self._ledger.settle(effect, state, result)

    # -- questions

    def reading(self) -> AbstractContextManager[Connection]:
        """A transaction for questions that have a module of their own, as `agentguard.store.aggregate`."""
        return self._reader.connect()

    def runs(
        self, filter: RunFilter | None = None, page: Page | None = None, *, tenant: str = ""
    ) -> Slice[r.RunRow]:
        """A page of runs, the newest first."""
        return self._reader.runs(filter or RunFilter(), page or Page(), tenant)

    def run(self, run_id: str, *, tenant: str = "") -> r.RunRow | None:
        """A run without its steps; None if it is not there."""
        return self._reader.by_key(r.RunRow, run_id, tenant)

    def trajectory(self, run_id: str, *, tenant: str = "") -> Trajectory | None:
        """A run as it was written, with its branches; None if it is not there."""
        found = self._reader.record(run_id, tenant, annotated=False)
        return None if found is None else found.trajectory

    def record(self, run_id: str, *, tenant: str = "") -> Record | None:
        """A run, and how its data set judged it; None if it is not there."""
        return self._reader.record(run_id, tenant, annotated=True)

    def run_rows(
        self, run_id: str, *, tenant: str = ""
    ) -> tuple[r.RunRow, list[r.StepRow], list[r.BranchRow]] | None:
        """The rows a run is made of, also where they make no run; None if it is not there.

        A row whose data cannot be read has the reason under ``"damaged"`` (`agentguard.store.fit.DAMAGED`).
        """
        return self._reader.rows(run_id, tenant, damaged=True)

    def findings(self, run_id: str, *, tenant: str = "") -> tuple[r.FindingRow, ...]:
        """What detectors saw in a run."""
        return self._reader.of_run(r.FindingRow, run_id, tenant)

    def diagnoses(self, run_id: str, *, tenant: str = "") -> tuple[r.DiagnosisRow, ...]:
        """What localizers said of a run, the latest last."""
        return self._reader.of_run(r.DiagnosisRow, run_id, tenant)

    def schema(self, schema_id: str, *, tenant: str = "") -> r.SchemaRow | None:
        """A schema; None if it is not there."""
        return self._reader.by_key(r.SchemaRow, schema_id, tenant)

    def schemata(
        self, *, status: str | None = None, origin: str | None = None, tenant: str = ""
    ) -> tuple[r.SchemaRow, ...]:
        """All schemata, or those of a status and an origin, in the order they were made."""
        return self._reader.where(r.SchemaRow, {"status": status, "origin": origin}, tenant)

    def verdict(self, key: str, *, tenant: str = "") -> r.VerdictRow | None:
        """The answer of a judge stored under a key (`agentguard.store.rows.verdict_key`); None if none is."""
        return self._reader.by_key(r.VerdictRow, key, tenant)

    def recoveries(self, run_id: str, *, tenant: str = "") -> tuple[r.RecoveryRow, ...]:
        """Attempts to recover a run, and how they ended."""
        return self._reader.of_run(r.RecoveryRow, run_id, tenant)

    def effects(self, run_id: str, *, tenant: str = "") -> tuple[r.EffectRow, ...]:
        """Effects that were claimed in a run."""
        return self._reader.of_run(r.EffectRow, run_id, tenant)

    def snapshots(self, run_id: str, *, tenant: str = "") -> tuple[r.SnapshotRow, ...]:
        """Saved states of what a run acts on, the earliest step first."""
        return self._reader.snapshots(run_id, tenant)

    def backend_events(
        self, backend: str | None = None, page: Page | None = None, *, tenant: str = ""
    ) -> Slice[r.BackendEventRow]:
        """A page of what happened to backends, or to one, the newest first."""
        return self._reader.events(backend, page or Page(), tenant)

    def judgements(self, run_id: str, *, tenant: str = "") -> tuple[r.JudgementRow, ...]:
        """What people said of what was said of a run."""
        return self._reader.of_run(r.JudgementRow, run_id, tenant)

    def stats(self, *, tenant: str | None = None) -> Stats:
        """How many rows there are, of which age and size; of all tenants for None."""
        return self._reader.stats(tenant)

    # -- forgetting

    def delete_run(self, run_id: str, *, tenant: str = "") -> Deleted:
        """Remove a run and everything that belongs to it, its claims of effects among it."""
        self.flush(_FLUSH_S)
        return self._retention.delete_run(run_id, tenant)

    def delete_tenant(self, tenant: str) -> Deleted:
        """Remove everything of a tenant, its schemata among it."""
        self.flush(_FLUSH_S)
        return self._retention.delete_tenant(tenant)

    def prune(
        self,
        *,
        older_than_s: float | None = None,
        max_bytes: int | None = None,
        keep_failed: bool = False,
        tenant: str | None = None,
    ) -> Deleted:
        """Remove what is older, and what is too much (`agentguard.store.retention.Limits`)."""
        limits = Limits(
            older_than_s=older_than_s, max_bytes=max_bytes, keep_failed=keep_failed, tenant=tenant
        )
        self.flush(_FLUSH_S)
        return self._retention.prune(limits)


def _after_fork() -> None:
    """A forked process has neither the writer's thread nor any right to its parent's connections.

    It gets new ones. The old are kept, unused, as closing them would speak to the database in the parent's
    name. Rows that waited are the parent's to write.
    """
    for store in list(_OPEN):
        _INHERITED.append((store._place, store._claims, store._writer))
        store._build()


os.register_at_fork(after_in_child=_after_fork)
