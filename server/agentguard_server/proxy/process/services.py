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
from agentguard_server.proxy.telemetry.counters import Figure
from agentguard_server.proxy.telemetry.worker_snapshots import SnapshotDirectory

if TYPE_CHECKING:
    from agentguard.backends.health.hints import Hints
    from agentguard_server.proxy.admin.app import Admin
    from agentguard_server.proxy.cluster.services import ClusterServices
    from agentguard_server.proxy.config.schema import ProxySettings
    from agentguard_server.proxy.telemetry.access_log import Logs
    from agentguard_server.proxy.telemetry.metrics import Metrics
    from agentguard_server.proxy.telemetry.span_exporter import SpanExporter

logger = logging.getLogger("agentguard.proxy")

TICK_S: Final = 1.0
_LOAD_S: Final = 1.0
USAGE_BYTES: Final = 65_536
"""Of an answer, at least, where its tokens are counted."""
_A_CHARACTER: Final = 4


@runtime_checkable
class Keeps(Protocol):
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

    def __init__(self, settings: ProxySettings, *, worker: int = 0, board: Path | None = None) -> None:
        from agentguard_server.proxy.telemetry.access_log import Logs

        self._settings, self._folder = settings, board
        self.logs: Logs = Logs(settings.logs, worker=worker)
        self.metrics = _metrics(settings)
        self.spans = _spans(settings)
        self.shared = _shared(settings)
        self._board = SnapshotDirectory(board, worker)
        self._state: ProxyStatus | None = None
        self._admin: Admin | None = None
        self._tasks: list[asyncio.Task[None]] = []
        if self.metrics is not None:
            self.metrics.ask(lambda: [("log_lines_lost", (), self.logs.lines.lost)])
            for source in (self.spans, self.shared):
                if source is not None:
                    self.metrics.ask(source.figures)

    @property
    def recorders(self) -> tuple[RequestObserver, ...]:
        """Who is told of each request."""
        logs = self.logs if self._settings.logs.access else None
        return tuple(one for one in (self.metrics, self.spans, logs) if one is not None)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Who is told of the pipeline's events."""
        return (self.logs,) if self.metrics is None else (self.metrics, self.logs)

    @property
    def hints(self) -> Hints | None:
        """What carries hints about replicas to other proxies; None if nothing does."""
        return None if self.shared is None else self.shared.hints

    @property
    def wants_bytes(self) -> int:
        """How much of each answer is looked at."""
        metrics, spans, logs = self._settings.metrics, self._settings.spans, self._settings.logs
        wanted = [USAGE_BYTES] if self.spans is not None or (self.metrics and metrics.tokens) else [0]
        if self.spans is not None and spans.contents:
            wanted.append(_A_CHARACTER * spans.most_chars)
        if logs.access and logs.contents:
            wanted.append(_A_CHARACTER * logs.most_chars)
        return max(wanted)

    def join(self, gateway: AppState, pool: ManagedPool) -> None:
        """Make a gateway tell what happens, and answer for itself."""
        state = ProxyStatus(
            gateway, pool, metrics=self.metrics, board=self._board, wishes=DesiredReplicaState(self._folder)
        )
        for recorder in gateway.recorders:  # what keeps requests has something to tell, too
            if isinstance(recorder, Keeps):
                state.parts["capture"] = recorder.status
                if self.metrics is not None:
                    self.metrics.ask(partial(_captured, recorder))
        if self.shared is not None:
            state.parts["shared"] = self.shared.status
        if self.spans is not None:
            state.parts["spans"] = self._of_spans
        gateway.recorders = (*gateway.recorders, *self.recorders)
        gateway.capture_bytes = max(gateway.capture_bytes, self.wants_bytes)
        gateway.admin = self
        gateway.upstream = None if self.spans is None else self.spans.upstream
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is no model API."""
        await (self._admin or self._made())(scope, receive, send)

    async def start(self) -> None:
        """Begin with what runs beside the requests."""
        self.logs.install()
        if self.shared is not None:
            self.shared.start()
        self._tasks = [asyncio.create_task(self._load()), asyncio.create_task(self._ticking())]

    def reloaded(self) -> None:
        """The configuration was read anew: what was asked of replicas before holds no more."""
        if self._state is not None:
            self._state.wishes.clear()

    async def aclose(self) -> None:
        """Tell what is left to tell, for a moment at most."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._state is not None:
            with contextlib.suppress(OSError):
                self._board.publish(*self._state.snapshot())
        self._board.withdraw()
        for part in (self._admin, self.spans, self.shared, self.logs):
            if part is not None:
                await asyncio.to_thread(part.close)

    async def _load(self) -> None:
        """Once the proxy answers, and in a thread: what administers takes a while to import.

        Later than that, since threads take turns, and whoever waits for the first answer would wait for both.
        """
        await asyncio.sleep(_LOAD_S)
        await asyncio.to_thread(_import)
        if self._admin is None:
            self._made()

    def _made(self) -> Admin:
        from agentguard_server.proxy.admin.app import Admin

        assert self._state is not None  # for mypy: it was joined to a gateway
        self._admin = Admin(self._state)
        return self._admin

    async def _ticking(self) -> None:
        """Each second: tell the other workers, and do what one of them was asked for."""
        state = self._state
        while state is not None and self._folder is not None:
            await asyncio.sleep(TICK_S)
            try:
                # Only what is read of the loop's own is read here: files are written in a thread.
                await asyncio.to_thread(self._board.publish, *state.snapshot())
                await state.wishes.reconcile(state.pool)
            except OSError as error:
                logger.warning("the workers cannot tell each other: %s", error.strerror)

    def _of_spans(self) -> Mapping[str, Any]:
        return {} if self.spans is None else {"sent": self.spans.sent, "lost": self.spans.lost}


def _captured(capture: Keeps) -> Iterator[Figure]:
    told = capture.status()
    lost = int(told["lost"]) + int(told["lost_rows"])
    yield "capture_lost", (), lost
    yield "capture_kept", (), max(0, int(told["taken"]) - int(told["lost"]) - int(told["pending"]))


def _import() -> None:
    import agentguard_server.proxy.admin.app  # noqa: F401


def _metrics(settings: ProxySettings) -> Metrics | None:
    if not settings.metrics.enabled:
        return None
    from agentguard_server.proxy.telemetry.metrics import Metrics

    return Metrics(settings.metrics)


def _spans(settings: ProxySettings) -> SpanExporter | None:
    if settings.spans.endpoint is None:
        return None
    from agentguard_server.proxy.telemetry.span_exporter import SpanExporter

    return SpanExporter(settings.spans)


def _shared(settings: ProxySettings) -> ClusterServices | None:
    if settings.shared is None:
        return None
    from agentguard_server.proxy.cluster.services import ClusterServices

    captured = None if settings.capture is None else settings.capture.store
    return ClusterServices(settings.shared, url=captured)
