"""Capture of unguarded requests: sends them to the collector and manages the collector's process.

No request waits for the collector or its store. Messages beyond the queue limit are dropped and counted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from agentguard.intercept.registry import GUARDED_APIS
from agentguard_server.proxy.capture.client import CollectorClient
from agentguard_server.proxy.capture.collector_supervisor import CollectorSupervisor, build_socket_path
from agentguard_server.proxy.capture.protocol import CapturedExchange
from agentguard_server.proxy.guard.guarded_request import parse_run_id
from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions

if TYPE_CHECKING:
    from agentguard_server.proxy.hooks import CompletedRequest, ProxyRequest

_RETRY_COUNT_HEADER: Final = b"x-stainless-retry-count"


class CaptureRecorder:
    """Request observer for one event loop that captures requests; see `hooks.RequestObserver`.

    Args:
        options: section ``capture`` of the configuration.
        guard: section ``guard``: policy, run correlation and idle timeout.
        worker: number of this process; worker 0 starts and restarts the collector.
        socket_path_override: path of the collector's socket; by default it is derived from ``parent``.
        parent: process ID of the workers' parent, from which all workers derive the same path.
        run_name_suffix: suffix of the IDs of named runs that no guard records.

    Attributes:
        client: client of the collector.
        skipped_requests: number of requests with a body above the limit; they are not captured.
        truncated_responses: number of responses above the limit; only their requests are captured.

    Raises:
        ConfigError: this system does not support Unix domain sockets.
    """

    def __init__(
        self,
        options: CaptureOptions,
        guard: GuardOptions,
        *,
        worker: int = 0,
        socket_path_override: str | None = None,
        parent: int | None = None,
        run_name_suffix: str = "",
    ) -> None:
        self.options = options
        where = socket_path_override or build_socket_path(parent)
        self.client = CollectorClient(where, max_queue_bytes=options.max_queue_bytes)
        self._supervisor = (
            CollectorSupervisor(where, options, guard, run_name_suffix=run_name_suffix)
            if worker == 0
            else None
        )
        self.skipped_requests = self.truncated_responses = 0

    @property
    def max_captured_bytes(self) -> int:
        """Return the number of response bytes that `record` needs: one more than the limit."""
        return self.options.max_body_bytes + 1

    def start(self) -> None:
        """Start the collector in worker 0. Raises ConfigError if it cannot be started."""
        if self._supervisor is not None:
            self._supervisor.start()

    async def aclose(self) -> None:
        """Send the queued messages and wait until the collector has written them."""
        await self.client.aclose()
        if self._supervisor is not None:
            await self._supervisor.aclose()

    def record(self, completed: CompletedRequest) -> None:
        """Capture an unguarded request of a supported API; see `RequestObserver.record`."""
        asked = completed.request
        if completed.guard_outcome is not None or asked.api not in GUARDED_APIS:
            return  # the inline guard records its own runs
        most, answer = self.options.max_body_bytes, completed.response_body
        if len(asked.body) > most:
            self.skipped_requests += 1
            return
        if len(answer) > most:
            self.truncated_responses += 1
            answer = b""
        elif completed.status != 200 or not completed.is_complete:
            answer = b""
        ended_at = time.time()
        made = CapturedExchange(
            tenant=asked.tenant,
            run_id=parse_run_id(asked.run_id) if asked.run_id else "",
            api=asked.api,
            is_retry=_is_retry(asked),
            request_body=asked.body,
            response=answer,
            started_at=ended_at - completed.duration_s,
            ended_at=ended_at,
        )
        self.client.enqueue(made, len(asked.body) + len(answer))

    def status(self) -> dict[str, Any]:
        """Return counters of accepted, pending and lost messages, and the status of the collector.

        All workers share one collector. Only the worker that starts it counts the lost rows.
        """
        link = self.client
        report = link.collector_status
        return {
            "taken": link.accepted,
            "pending": link.pending,
            "lost": link.dropped,
            "lost_rows": 0 if self._supervisor is None else link.dropped_rows + report.lost,
            "too_long": self.skipped_requests,
            "cut": self.truncated_responses,
            "restarts": 0 if self._supervisor is None else self._supervisor.restarts,
            "collector": {name: getattr(report, name) for name in report.__struct_fields__},
        }


def _is_retry(request: ProxyRequest) -> bool:
    return any(name == _RETRY_COUNT_HEADER and text != b"0" for name, text in request.headers)
