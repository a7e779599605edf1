"""What stands beside the requests of one worker: what it tells, what it shares, how it is administered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from agentguard.resilience.events import Observer
from agentguard_server.proxy.admin.desired_state import DesiredReplicaState
from agentguard_server.proxy.admin.status import ManagedPool, ProxyStatus
from agentguard_server.proxy.hooks import RequestObserver
from agentguard_server.proxy.state import AppState, Receive, Scope, Send
from agentguard_server.proxy.telemetry.counters import MetricSample
from agentguard_server.proxy.telemetry.worker_snapshots import SnapshotDirectory

if TYPE_CHECKING:
    from agentguard.backends.health.hints import HintChannel
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
"""Of an answer, at least, where its tokens are counted."""
_BYTES_PER_CHARACTER: Final = 4


@runtime_checkable
class CaptureStatusSource(Protocol):
    """The recorder that captures; looked at by what it can do, as its packages take long to load."""

    def status(self) -> dict[str, Any]:
        """How much was taken and lost, among the rest."""
        ...


class WorkerServices:
    """Made before the pool, which tells it of events; joined to the gateway afterwards.

    Args:
        settings: the configuration.
        worker: number of this process.
        board: folder in which the workers of this machine tell each other; None for one alone.

    Attributes:
        metrics, spans: what is told; None where that is off.
        logs: what is written.
        shared: what is shared with other proxies; None if nothing is.

    Raises:
        ConfigError: a part cannot be made as it is configured.
        MissingExtra: a package that it needs is not installed.
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
        """Who is told of each request."""
        logs = self.logger if self._settings.logs.access_log else None
        return tuple(one for one in (self.metrics, self.span_exporter, logs) if one is not None)

    @property
    def event_observers(self) -> tuple[Observer, ...]:
        """Who is told of the pipeline's events."""
        return (self.logger,) if self.metrics is None else (self.metrics, self.logger)

    @property
    def health_hints(self) -> HintChannel | None:
        """What carries hints about replicas to other proxies; None if nothing does."""
        return None if self.cluster is None else self.cluster.health_hints

    @property
    def max_captured_bytes(self) -> int:
        """How much of each answer is looked at."""
        metrics, spans, logs = self._settings.metrics, self._settings.tracing, self._settings.logs
        wanted = (
            [MIN_CAPTURED_BYTES]
            if self.span_exporter is not None or (self.metrics and metrics.tokens)
            else [0]
        )
        if self.span_exporter is not None and spans.capture_content:
            wanted.append(_BYTES_PER_CHARACTER * spans.max_chars)
        if logs.access_log and logs.include_bodies:
            wanted.append(_BYTES_PER_CHARACTER * logs.max_chars)
        return max(wanted)

    def attach(self, app_state: AppState, pool: ManagedPool) -> None:
        """Make a gateway tell what happens, and answer for itself."""
        state = ProxyStatus(
            app_state,
            pool,
            metrics=self.metrics,
            snapshots=self._snapshots,
            desired_replicas=DesiredReplicaState(self._snapshot_folder),
        )
        for recorder in app_state.request_observers:  # what keeps requests has something to tell, too
            if isinstance(recorder, CaptureStatusSource):
                state.status_sources["capture"] = recorder.status
                if self.metrics is not None:
                    self.metrics.add_source(partial(_capture_metrics, recorder))
        if self.cluster is not None:
            state.status_sources["shared"] = self.cluster.status
        if self.span_exporter is not None:
            state.status_sources["spans"] = self._span_status
        app_state.request_observers = (*app_state.request_observers, *self.request_observers)
        app_state.max_captured_bytes = max(app_state.max_captured_bytes, self.max_captured_bytes)
        app_state.admin_app = self
        app_state.build_trace_headers = (
            None if self.span_exporter is None else self.span_exporter.build_trace_headers
        )
        self._proxy_status = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is no model API."""
        await (self._admin_app or self._build_admin())(scope, receive, send)

    async def start(self) -> None:
        """Begin with what runs beside the requests."""
        self.logger.install()
        if self.cluster is not None:
            self.cluster.start()
        self._tasks = [asyncio.create_task(self._load_admin()), asyncio.create_task(self._sync_workers())]

    def on_reload(self) -> None:
        """The configuration was read anew: what was asked of replicas before holds no more."""
        if self._proxy_status is not None:
            self._proxy_status.desired_replicas.clear()

    async def aclose(self) -> None:
        """Tell what is left to tell, for a moment at most."""
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
        """Once the proxy answers, and in a thread: what administers takes a while to import.

        Later than that, since threads take turns, and whoever waits for the first answer would wait for both.
        """
        await asyncio.sleep(_ADMIN_LOAD_DELAY_S)
        await asyncio.to_thread(_import_admin)
        if self._admin_app is None:
            self._build_admin()

    def _build_admin(self) -> AdminApp:
        from agentguard_server.proxy.admin.app import AdminApp

        assert self._proxy_status is not None  # for mypy: it was joined to a gateway
        self._admin_app = AdminApp(self._proxy_status)
        return self._admin_app

    async def _sync_workers(self) -> None:
        """Each second: tell the other workers, and do what one of them was asked for."""
        state = self._proxy_status
        while state is not None and self._snapshot_folder is not None:
            await asyncio.sleep(SYNC_INTERVAL_S)
            try:
                # Only what is read of the loop's own is read here: files are written in a thread.
                await asyncio.to_thread(self._snapshots.publish, *state.snapshot())
                await state.desired_replicas.reconcile(state.pool)
            except OSError as error:
                logger.warning("the workers cannot tell each other: %s", error.strerror)

    def _span_status(self) -> Mapping[str, Any]:
        return (
            {}
            if self.span_exporter is None
            else {"sent": self.span_exporter.sent, "lost": self.span_exporter.dropped}
        )


def _capture_metrics(capture: CaptureStatusSource) -> Iterator[MetricSample]:
    told = capture.status()
    lost = int(told["lost"]) + int(told["lost_rows"])
    yield "capture_dropped", (), lost
    yield "capture_accepted", (), max(0, int(told["taken"]) - int(told["lost"]) - int(told["pending"]))


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
