"""Keeps what passes: a recorder that hands requests on to the keeper, and the keeper's life.

Whatever becomes of the keeper or of its store, no request waits: what has no room is lost and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agentguard.intercept.registry import GUARDED_APIS
from agentguard_server.proxy.capture.client import CollectorClient
from agentguard_server.proxy.capture.collector_supervisor import CollectorSupervisor, build_socket_path
from agentguard_server.proxy.capture.protocol import CapturedExchange
from agentguard_server.proxy.guard.eligibility import parse_run_id
from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions

if TYPE_CHECKING:
    from agentguard_server.proxy.hooks import CompletedRequest, ProxyRequest

_RETRY_COUNT_HEADER: Final = b"x-stainless-retry-count"


class CaptureRecorder:
    """As `agentguard_server.proxy.hooks.RequestObserver`; lives in one event loop.

    Args:
        options: what is kept, and where.
        policy: which detectors look at it, and which localizer.
        runs: how requests are joined to runs, and when those have ended.
        worker: number of this process; the first one starts the keeper and tends it.
        path: of the keeper's socket; one of the workers' parent if absent.
        parent: process id of the workers' parent, by which they agree on a path.

    Attributes:
        link: to the keeper.
        too_long: requests whose body was too long to be kept.
        cut: answers that were too long; their requests are kept.

    Raises:
        ConfigError: this system has no local sockets.
    """

    def __init__(
        self,
        options: CaptureOptions,
        guard: GuardOptions,
        *,
        worker: int = 0,
        socket_path_override: str | None = None,
        parent: int | None = None,
    ) -> None:
        self.options = options
        where = socket_path_override or build_socket_path(parent)
        self.client = CollectorClient(where, max_queue_bytes=options.max_queue_bytes)
        self._supervisor = CollectorSupervisor(where, options, guard) if worker == 0 else None
        self.skipped_requests = self.truncated_responses = 0

    @property
    def max_captured_bytes(self) -> int:
        """Bytes of an answer that are to be kept for `record`; one that has as many is too long."""
        return self.options.max_body_bytes + 1

    def start(self) -> None:
        """Start the keeper, if it is this worker's to do. Raises ConfigError if it cannot be started."""
        if self._supervisor is not None:
            self._supervisor.start()

    async def aclose(self) -> None:
        """Hand on what waits, and let the keeper write it."""
        await self.client.aclose()
        if self._supervisor is not None:
            await self._supervisor.aclose()

    def record(self, completed: CompletedRequest) -> None:
        """As `Recorder.record`."""
        asked = completed.request
        if completed.guard_outcome is not None or asked.api not in GUARDED_APIS:
            return  # a guarded run tells of itself
        most, answer = self.options.max_body_bytes, completed.response_body
        if len(asked.body) > most:
            self.skipped_requests += 1
            return
        if len(answer) > most:
            self.truncated_responses += 1
            answer = b""
        elif completed.status != 200 or not completed.is_complete:
            answer = b""
        made = CapturedExchange(
            asked.tenant, parse_run_id(asked.run_id), asked.api, _is_retry(asked), asked.body, answer
        )
        self.client.enqueue(made, len(asked.body) + len(answer))

    def status(self) -> dict[str, Any]:
        """How it does: what was taken, waits and was lost, here and in the keeper."""
        link = self.client
        report = link.collector_status
        return {
            "taken": link.accepted,
            "pending": link.pending,
            "lost": link.dropped,
            "lost_rows": link.dropped_rows + report.lost,
            "too_long": self.skipped_requests,
            "cut": self.truncated_responses,
            "restarts": 0 if self._supervisor is None else self._supervisor.restarts,
            "keeper": {name: getattr(report, name) for name in report.__struct_fields__},
        }


def _is_retry(request: ProxyRequest) -> bool:
    return any(name == _RETRY_COUNT_HEADER and text != b"0" for name, text in request.headers)
