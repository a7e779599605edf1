"""Status and metrics of the proxy: live for this worker, from snapshots for the other workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final, Protocol

from agentguard.version import __version__
from agentguard_server.proxy.admin.desired_state import DesiredReplicaState, ReplicaControl
from agentguard_server.proxy.state import AppState
from agentguard_server.proxy.telemetry.metrics import Metrics, MetricSample, MetricSet
from agentguard_server.proxy.telemetry.worker_snapshots import SnapshotDirectory, WorkerSnapshot

REPLICA_STATES: Final = (
    "up",
    "draining",
    "leaving",
    "corrupt",
    "down",
    "ejected",
    "open",
    "hinted",
    "resting",
)
_SESSIONS_KEY: Final = "sessions"
_MAX_SNAPSHOT_SESSIONS: Final = 400
_MAX_TENANT_SESSIONS: Final = 100
StatusSource = Callable[[], Mapping[str, Any]]


class ManagedPool(ReplicaControl, Protocol):
    """Pool with a status and operations on replicas: `agentguard.backends.pool.Pool`."""

    def status(self) -> dict[str, Any]:
        """Return the state of the pool and its replicas."""
        ...


class ProxyStatus:
    """Status of the proxy, as one worker sees it.

    Args:
        app_state: state of this worker.
        pool: replicas of this worker.
        metrics: metrics of this worker; None if metrics are disabled.
        snapshots: snapshots of all workers of this machine.
        desired_replicas: desired replica states, shared by all workers.
    """

    def __init__(
        self,
        app_state: AppState,
        pool: ManagedPool,
        *,
        metrics: Metrics | None = None,
        snapshots: SnapshotDirectory | None = None,
        desired_replicas: DesiredReplicaState | None = None,
    ) -> None:
        self.app_state, self.pool, self.metrics = app_state, pool, metrics
        self.snapshots = snapshots or SnapshotDirectory(None)
        self.desired_replicas = desired_replicas or DesiredReplicaState(None)
        self.status_sources: dict[str, StatusSource] = {}
        self._started_at = time.time()
        if metrics is not None:
            metrics.add_source(self.collect_metrics)

    def list_unready_reasons(self) -> list[str]:
        """Return the reasons why this worker is not ready; empty if it is ready."""
        why = ["it is shutting down"] if self.app_state.is_draining else []
        if self.pool.status()["usable"] < 1:
            why.append("no replica is usable")
        return why

    def local(self) -> dict[str, Any]:
        """Return the status of this worker as plain data without keys, database URLs or contents."""
        found: dict[str, Any] = {
            "worker": self.app_state.worker,
            "pid": os.getpid(),
            "uptime_s": round(time.time() - self._started_at, 1),
            "inflight": self.app_state.in_flight_count,
            "draining": self.app_state.is_draining,
            "pool": self.pool.status(),
        }
        for name, part in self.status_sources.items():
            found[name] = dict(part())
        if (interceptor := self.app_state.interceptor) is not None:
            found["guard"] = {"runs": len(interceptor.sessions), **asdict(interceptor.counts)}
        return found

    def aggregate(self) -> dict[str, Any]:
        """Return the status of all workers, with the age of each snapshot."""
        others = map(_to_worker_status, self.snapshots.list_live_snapshots())
        workers = [self.local() | {"age_s": 0.0}, *others]
        workers.sort(key=lambda one: int(one.get("worker", 0)))
        return {
            "version": __version__,
            "ready": not self.list_unready_reasons(),
            "why": self.list_unready_reasons(),
            "answered_by": self.app_state.worker,
            "inflight": sum(int(one.get("inflight", 0)) for one in workers),
            "workers": workers,
        }

    def aggregate_metrics(self) -> MetricSet | None:
        """Return the metrics of all workers, ended ones included; None if metrics are disabled."""
        if self.metrics is None:
            return None
        total = self.metrics.collect()
        others, ended = self.snapshots.read_metrics()
        for snapshot in others:
            total.merge(snapshot.metrics, include_gauges=snapshot.is_fresh)
        if ended is not None:
            total.merge(ended, include_gauges=False)
        return total

    def snapshot(self) -> tuple[MetricSet, dict[str, Any]]:
        """Return metrics and status for `SnapshotDirectory.publish`."""
        status = self.local()
        if (interceptor := self.app_state.interceptor) is not None:
            status[_SESSIONS_KEY] = interceptor.sessions.list_recent(
                tenant_limit=_MAX_TENANT_SESSIONS, limit=_MAX_SNAPSHOT_SESSIONS
            )
        return (MetricSet() if self.metrics is None else self.metrics.collect()), status

    def list_sessions(self, tenant: str, *, limit: int) -> list[dict[str, Any]] | None:
        """Return a tenant's guarded runs in all workers, most recently used first; None without a guard.

        The snapshot of each other worker has at most the 100 most recently used runs of a tenant.
        """
        interceptor = self.app_state.interceptor
        if interceptor is None:
            return None
        found = interceptor.sessions.list_summaries(tenant, limit=limit)
        own = [one | {"worker": self.app_state.worker} for one in found]
        sessions = [*own, *self._iter_remote_sessions(tenant)]
        return sorted(sessions, key=lambda one: float(one.get("used_at") or 0), reverse=True)[:limit]

    def find_session(self, id: str, tenant: str) -> dict[str, Any] | None:
        """Return a guarded run in full if this worker has it, its summary if another worker has it."""
        interceptor = self.app_state.interceptor
        own = None if interceptor is None else interceptor.sessions.describe(id, tenant)
        if own is not None:
            return own
        return next((one for one in self._iter_remote_sessions(tenant) if one.get("id") == id), None)

    def _iter_remote_sessions(self, tenant: str) -> Iterator[dict[str, Any]]:
        for snapshot in self.snapshots.list_live_snapshots():
            sessions = snapshot.status.get(_SESSIONS_KEY)
            for one in sessions if isinstance(sessions, list) else ():
                if isinstance(one, dict) and one.get("tenant") == tenant:
                    yield one | {"worker": snapshot.worker}

    def collect_metrics(self) -> Iterable[MetricSample]:
        """Yield the gauges of this worker, and counters of the pool and the guard."""
        app_state, status = self.app_state, self.pool.status()
        yield "requests_in_flight", (), app_state.in_flight_count
        yield "draining", (), float(app_state.is_draining)
        yield "workers", (), 1
        yield "build_info", (__version__,), 1
        yield "backend_panic_mode", (), float(bool(status["panic"]))
        for replica in status["replicas"]:
            name = str(replica["name"])
            yield "replica_in_flight", (name,), replica["inflight"]
            yield "upstream_requests", (name,), replica["good"] + sum(replica["failed"].values())
            for state in REPLICA_STATES:
                yield "replica_state", (name, state), float(replica["state"] == state)
        if app_state.interceptor is not None:
            yield "guard_active_sessions", (), len(app_state.interceptor.sessions)
            counts = app_state.interceptor.counts
            yield "guard_skipped", ("body_too_large",), counts.too_long
            yield "guard_skipped", ("not_supported",), counts.unsupported


def _to_worker_status(snapshot: WorkerSnapshot) -> dict[str, Any]:
    # Runs are visible to their tenant only; any key with the scope ``read`` may see the status.
    status = {name: value for name, value in snapshot.status.items() if name != _SESSIONS_KEY}
    age_s = round(time.time() - snapshot.published_at, 1)
    return status | {"worker": snapshot.worker, "pid": snapshot.pid, "age_s": age_s}
