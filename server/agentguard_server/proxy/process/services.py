"""Background services of one worker: telemetry, shared state and the admin application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from agentguard.resilience.events import Observer
from agentguard_server.proxy.admin.desired_state import DesiredReplicaState
from agentguard_server.proxy.admin.status import ManagedPool, ProxyStatus, StatusSource
from agentguard_server.proxy.hooks import RequestObserver
from agentguard_server.proxy.state import AppState, Receive, Scope, Send
from agentguard_server.proxy.telemetry.metrics import MetricSample
from agentguard_server.proxy.telemetry.worker_snapshots import SnapshotDirectory

if TYPE_CHECKING:
    from agentguard.backends.health.peer_hints import HintChannel
    from agentguard_server.proxy.admin.app import AdminApp
    from agentguard_server.proxy.cluster.services import ClusterServices
    from agentguard_server.proxy.config.schema import ProxySettings
    from agentguard_server.proxy.telemetry.access_log import StructuredLogger
    from agentguard_server.proxy.telemetry.metrics import Metrics
    from agentguard_server.proxy.telemetry.span_exporter import SpanExporter

logger = logging.getLogger("agentguard.proxy")

SYNC_INTERVAL_S: Final = 1.0
_ADMIN_LOAD_DELAY_S: Final = 1.0
MIN_CAPTURED_BYTES: Final = 65_536
"""Lower bound on the captured part of a response if the worker counts tokens."""
_BYTES_PER_CHARACTER: Final = 4


class CaptureStatusSource(Protocol):
    """Status of the capture recorder: `agentguard_server.proxy.capture.recorder.CaptureRecorder`."""

    def status(self) -> dict[str, Any]:
        """Return counters, among them accepted and lost messages."""
        ...


class WorkerServices:
    """Telemetry, cluster services and admin application of one worker.

    Create it before the pool, which reports events to it; call `attach` when the `AppState` exists.

    Args:
        settings: the configuration.
        worker: number of this process.
        snapshot_folder: folder in which the workers of this machine exchange snapshots; None for a
            single worker.

    Attributes:
        logger: writer of the structured log.
        metrics: metrics of this worker; None if metrics are disabled.
        span_exporter: exporter of spans; None if tracing is disabled.
        cluster: state shared with other proxies; None if no cluster is configured.

    Raises:
        ConfigError: a service cannot be created from its configuration.
        MissingExtra: a required package is not installed.
    """

    def __init__(
        self, settings: ProxySettings, *, worker: int = 0, snapshot_folder: Path | None = None
    ) -> None:
        from agentguard_server.proxy.telemetry.access_log import StructuredLogger

        self._settings, self._snapshot_folder = settings, snapshot_folder
        self.logger: StructuredLogger = StructuredLogger(settings.logs, worker=worker)
        self.metrics = _build_metrics(settings)
        self.span_exporter = _build_span_exporter(settings)
        self.cluster = _build_cluster_services(settings)
        self._snapshots = SnapshotDirectory(snapshot_folder, worker)
        self._proxy_status: ProxyStatus | None = None
        self._admin_app: AdminApp | None = None
        self._tasks: list[asyncio.Task[None]] = []
        if self.metrics is not None:
            self.metrics.add_source(lambda: [("log_lines_dropped", (), self.logger.writer.dropped)])
            for source in (self.span_exporter, self.cluster):
                if source is not None:
                    self.metrics.add_source(source.collect_metrics)

    @property
    def request_observers(self) -> tuple[RequestObserver, ...]:
        """Return the observers of completed requests."""
        logs = self.logger if self._settings.logs.access_log else None
        return tuple(one for one in (self.metrics, self.span_exporter, logs) if one is not None)

    @property
    def event_observers(self) -> tuple[Observer, ...]:
        """Return the observers of resilience events."""
        return (self.logger,) if self.metrics is None else (self.metrics, self.logger)

    @property
    def health_hints(self) -> HintChannel | None:
        """Return the channel for health hints of other proxies; None without a cluster."""
        return None if self.cluster is None else self.cluster.health_hints

    @property
    def max_captured_bytes(self) -> int:
        """Return the number of bytes of each response that the observers need."""
        metrics, spans, logs = self._settings.metrics, self._settings.tracing, self._settings.logs
        sizes = [0]
        if self.span_exporter is not None or (self.metrics and metrics.tokens):
            sizes.append(MIN_CAPTURED_BYTES)
        if self.span_exporter is not None and spans.capture_content:
            sizes.append(_BYTES_PER_CHARACTER * spans.max_chars)
        if logs.access_log and logs.include_bodies:
            sizes.append(_BYTES_PER_CHARACTER * logs.max_chars)
        return max(sizes)

    def attach(
        self, app_state: AppState, pool: ManagedPool, *, capture: CaptureStatusSource | None = None
    ) -> None:
        """Register the observers and the admin application with the worker's state.

        Args:
            app_state: state of the worker.
            pool: replicas of the worker.
            capture: recorder of requests; None without capture.
        """
        state = ProxyStatus(
            app_state,
            pool,
            metrics=self.metrics,
            snapshots=self._snapshots,
            desired_replicas=DesiredReplicaState(self._snapshot_folder),
        )
        if capture is not None:
            state.status_sources["capture"] = capture.status
            if self.metrics is not None:
                self.metrics.add_source(partial(_iter_capture_metrics, capture))
        if self.cluster is not None:
            state.status_sources["cluster"] = self.cluster.status
        if self.span_exporter is not None:
            state.status_sources["tracing"] = self._get_span_status
        app_state.request_observers = (*app_state.request_observers, *self.request_observers)
        app_state.max_captured_bytes = max(app_state.max_captured_bytes, self.max_captured_bytes)
        app_state.admin_app = self
        app_state.build_trace_headers = (
            None if self.span_exporter is None else self.span_exporter.build_trace_headers
        )
        self._proxy_status = state

    def add_status_source(self, name: str, source: StatusSource) -> None:
        """Add a part of ``/status``; call it after `attach`."""
        assert self._proxy_status is not None  # for mypy: `attach` sets it
        self._proxy_status.status_sources[name] = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that is not for a model API."""
        await (self._admin_app or self._build_admin())(scope, receive, send)

    async def start(self) -> None:
        """Start the background tasks."""
        self.logger.install()
        if self.cluster is not None:
            self.cluster.start()
        self._tasks = [asyncio.create_task(self._load_admin()), asyncio.create_task(self._sync_workers())]

    def on_reload(self) -> None:
        """Discard the desired replica states after a reload of the configuration."""
        if self._proxy_status is not None:
            self._proxy_status.desired_replicas.clear()

    async def aclose(self) -> None:
        """Stop the background tasks, publish the last snapshot and close all services."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._proxy_status is not None:
            with contextlib.suppress(OSError):
                self._snapshots.publish(*self._proxy_status.snapshot())
        self._snapshots.withdraw()
        for part in (self._admin_app, self.span_exporter, self.cluster, self.logger):
            if part is not None:
                await asyncio.to_thread(part.close)

    async def _load_admin(self) -> None:
        """Import the admin application in a thread, since the import takes long.

        The import begins after a delay, because it would hold the interpreter lock during the first requests.
        """
        await asyncio.sleep(_ADMIN_LOAD_DELAY_S)
        await asyncio.to_thread(_import_admin)
        if self._admin_app is None:
            self._build_admin()

    def _build_admin(self) -> AdminApp:
        from agentguard_server.proxy.admin.app import AdminApp

        assert self._proxy_status is not None  # for mypy: `attach` sets it
        self._admin_app = AdminApp(self._proxy_status)
        return self._admin_app

    async def _sync_workers(self) -> None:
        """Publish a snapshot and apply the desired replica states, once a second."""
        state = self._proxy_status
        while state is not None and self._snapshot_folder is not None:
            await asyncio.sleep(SYNC_INTERVAL_S)
            try:
                # State of the event loop may only be read here; the thread writes the files.
                await asyncio.to_thread(self._snapshots.publish, *state.snapshot())
                await state.desired_replicas.reconcile(state.pool)
            except OSError as error:
                logger.warning("the workers cannot exchange snapshots: %s", error.strerror)

    def _get_span_status(self) -> Mapping[str, Any]:
        return (
            {}
            if self.span_exporter is None
            else {"sent": self.span_exporter.sent, "lost": self.span_exporter.dropped}
        )


def _iter_capture_metrics(capture: CaptureStatusSource) -> Iterator[MetricSample]:
    status = capture.status()
    yield "capture_dropped", (), int(status["lost"]) + int(status["lost_rows"])
    yield "capture_accepted", (), max(0, int(status["taken"]) - int(status["lost"]) - int(status["pending"]))


def _import_admin() -> None:
    import agentguard_server.proxy.admin.app  # noqa: F401


def _build_metrics(settings: ProxySettings) -> Metrics | None:
    if not settings.metrics.enabled:
        return None
    from agentguard_server.proxy.telemetry.metrics import Metrics

    return Metrics(settings.metrics)


def _build_span_exporter(settings: ProxySettings) -> SpanExporter | None:
    if settings.tracing.endpoint is None:
        return None
    from agentguard_server.proxy.telemetry.span_exporter import SpanExporter

    return SpanExporter(settings.tracing)


def _build_cluster_services(settings: ProxySettings) -> ClusterServices | None:
    if settings.cluster is None:
        return None
    from agentguard_server.proxy.cluster.services import ClusterServices

    captured = None if settings.capture is None else settings.capture.store
    return ClusterServices(settings.cluster, fallback_url=captured)
