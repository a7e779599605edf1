"""What there is to tell of the proxy: of this worker as it stands, and of the others as they told last."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Final, Protocol

from agentguard.version import __version__
from agentguard_server.proxy.admin.desired_state import DesiredReplicaState
from agentguard_server.proxy.state import AppState
from agentguard_server.proxy.telemetry.counters import Figure, MetricSet
from agentguard_server.proxy.telemetry.metrics import Metrics
from agentguard_server.proxy.telemetry.worker_snapshots import SnapshotDirectory, WorkerSnapshot

_STATES: Final = ("up", "draining", "leaving", "corrupt", "down", "ejected", "open", "hinted", "resting")
_SESSIONS: Final = "sessions"
_MOST_TOLD: Final = 400
_MOST_OF_A_TENANT: Final = 100
Part = Callable[[], Mapping[str, Any]]


class ManagedPool(Protocol):
    """A pool that can be looked at and changed: `agentguard.backends.pool.Pool`."""

    def status(self) -> dict[str, Any]:
        """Everything a status page wants."""
        ...

    async def drain(self, name: str, *, on: bool = True) -> None:
        """Give a replica no new requests, or some again. Raises ConfigError."""
        ...

    async def remove(self, name: str) -> None:
        """Take a replica out. Raises ConfigError."""
        ...


class ProxyStatus:
    """One worker's view of the proxy.

    Args:
        gateway: the worker's.
        pool: its replicas.
        metrics: its counts; None if nothing is counted.
        board: what the workers of this machine tell each other.
        wishes: what was asked of replicas, for all workers.
    """

    def __init__(
        self,
        gateway: AppState,
        pool: ManagedPool,
        *,
        metrics: Metrics | None = None,
        board: SnapshotDirectory | None = None,
        wishes: DesiredReplicaState | None = None,
    ) -> None:
        self.gateway, self.pool, self.metrics = gateway, pool, metrics
        self.board, self.wishes = board or SnapshotDirectory(None), wishes or DesiredReplicaState(None)
        self.parts: dict[str, Part] = {}
        self._began = time.time()
        if metrics is not None:
            metrics.ask(self.figures)

    def ready(self) -> list[str]:
        """Why no requests should be sent here; empty if they should."""
        why = ["it is about to end"] if self.gateway.draining else []
        if self.pool.status()["usable"] < 1:
            why.append("no replica can be used")
        return why

    def local(self) -> dict[str, Any]:
        """What this worker says of itself; plain data without keys, addresses of databases or contents."""
        found: dict[str, Any] = {
            "worker": self.gateway.worker,
            "pid": os.getpid(),
            "uptime_s": round(time.time() - self._began, 1),
            "inflight": self.gateway.inflight,
            "draining": self.gateway.draining,
            "pool": self.pool.status(),
        }
        for name, part in self.parts.items():
            found[name] = dict(part())
        counts = getattr(self.gateway.guarding, "counts", None)
        if (sessions := self._sessions()) is not None:
            told = asdict(counts) if is_dataclass(counts) and not isinstance(counts, type) else {}
            found["guard"] = {"runs": len(sessions), **told}
        return found

    def aggregate(self) -> dict[str, Any]:
        """All workers' state; what each of the others told last, and how long ago."""
        mine, others = self.local(), self.board.others()
        workers = [mine | {"told_s": 0.0}, *(_of(sheet) for sheet in others)]
        workers.sort(key=lambda one: int(one.get("worker", 0)))
        return {
            "version": __version__,
            "ready": not self.ready(),
            "why": self.ready(),
            "answered_by": self.gateway.worker,
            "inflight": sum(int(one.get("inflight", 0)) for one in workers),
            "workers": workers,
        }

    def tally(self) -> MetricSet | None:
        """The counts of all workers, those that have ended among them; None if nothing is counted."""
        if self.metrics is None:
            return None
        whole = self.metrics.tally()
        others, ended = self.board.counted()
        for sheet in others:
            whole.merge(sheet.tally, gauges=sheet.fresh)
        if ended is not None:
            whole.merge(ended, gauges=False)
        return whole

    def snapshot(self) -> tuple[MetricSet, dict[str, Any]]:
        """What the other workers are told: `SnapshotDirectory.publish` takes it, and may wait for the disk."""
        told = self.local()
        if (held := self._sessions()) is not None:
            told[_SESSIONS] = held.told(each=_MOST_OF_A_TENANT, most=_MOST_TOLD)
        return (MetricSet() if self.metrics is None else self.metrics.tally()), told

    def sessions(self, tenant: str, *, most: int) -> list[dict[str, Any]] | None:
        """A tenant's guarded runs in all workers, the latest used first; None if nothing is guarded.

        Those of other workers are as they told last: the latest hundred of a tenant, in each of them.
        """
        held = self._sessions()
        if held is None:
            return None
        found: list[dict[str, Any]] = held.listed(tenant, most=most)
        mine = [one | {"worker": self.gateway.worker} for one in found]
        whole = [*mine, *self._elsewhere(tenant)]
        return sorted(whole, key=lambda one: float(one.get("used_at") or 0), reverse=True)[:most]

    def session(self, id: str, tenant: str) -> dict[str, Any] | None:
        """One guarded run: whole if this worker has it, at a glance if another one has."""
        held = self._sessions()
        mine = None if held is None else held.one(id, tenant)
        if mine is not None:
            return dict(mine)
        return next((one for one in self._elsewhere(tenant) if one.get("id") == id), None)

    def _sessions(self) -> Any:
        return getattr(self.gateway.guarding, "sessions", None)

    def _elsewhere(self, tenant: str) -> Iterator[dict[str, Any]]:
        for sheet in self.board.others():
            told = sheet.state.get(_SESSIONS)
            for one in told if isinstance(told, list) else ():
                if isinstance(one, dict) and one.get("tenant") == tenant:
                    yield one | {"worker": sheet.worker}

    def figures(self) -> Iterable[Figure]:
        """The gauges, and the counts that others keep."""
        gateway, status = self.gateway, self.pool.status()
        yield "requests_in_flight", (), gateway.inflight
        yield "draining", (), float(gateway.draining)
        yield "workers", (), 1
        yield "build_info", (__version__,), 1
        yield "panic", (), float(bool(status["panic"]))
        for replica in status["replicas"]:
            name = str(replica["name"])
            yield "replica_in_flight", (name,), replica["inflight"]
            yield "replica_attempts", (name,), replica["good"] + sum(replica["failed"].values())
            for state in _STATES:
                yield "replica_state", (name, state), float(replica["state"] == state)
        guarding = gateway.guarding
        if (sessions := self._sessions()) is not None:
            yield "guard_runs", (), len(sessions)
        if (counts := getattr(guarding, "counts", None)) is not None:
            yield "guard_passed_too_long", (), counts.too_long


def _of(sheet: WorkerSnapshot) -> dict[str, Any]:
    told = {"worker": sheet.worker, "pid": sheet.pid, "told_s": round(time.time() - sheet.at, 1)}
    # Runs are their tenant's, the state is everybody's who may read it.
    return {name: value for name, value in sheet.state.items() if name != _SESSIONS} | told
