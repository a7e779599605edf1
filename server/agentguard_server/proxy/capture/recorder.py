"""Keeps what passes: a recorder that hands requests on to the keeper, and the keeper's life.

Whatever becomes of the keeper or of its store, no request waits: what has no room is lost and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agentguard.intercept.registry import APIS
from agentguard_server.proxy.capture.client import CollectorClient
from agentguard_server.proxy.capture.collector_supervisor import CollectorSupervisor, socket_path
from agentguard_server.proxy.capture.protocol import CapturedExchange
from agentguard_server.proxy.guard.eligibility import run_name
from agentguard_server.proxy.guard.options import CaptureOptions, RunsOptions

if TYPE_CHECKING:
    from agentguard.config.policy import Policy
    from agentguard_server.proxy.hooks import CompletedRequest, ProxyRequest

_REPEATED: Final = b"x-stainless-retry-count"


class Capture:
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
        policy: Policy,
        *,
        runs: RunsOptions | None = None,
        worker: int = 0,
        path: str | None = None,
        parent: int | None = None,
    ) -> None:
        self.options = options
        where = path or socket_path(parent)
        self.link = CollectorClient(where, queue_bytes=options.queue_bytes)
        self._keeping = (
            CollectorSupervisor(where, options, policy, runs or RunsOptions()) if worker == 0 else None
        )
        self.too_long = self.cut = 0

    @property
    def most_bytes(self) -> int:
        """Bytes of an answer that are to be kept for `record`; one that has as many is too long."""
        return self.options.most_bytes + 1

    def start(self) -> None:
        """Start the keeper, if it is this worker's to do. Raises ConfigError if it cannot be started."""
        if self._keeping is not None:
            self._keeping.start()

    async def aclose(self) -> None:
        """Hand on what waits, and let the keeper write it."""
        await self.link.aclose()
        if self._keeping is not None:
            await self._keeping.aclose()

    def record(self, recorded: CompletedRequest) -> None:
        """As `Recorder.record`."""
        asked = recorded.asked
        if recorded.guarded or asked.api not in APIS:
            return  # a guarded run tells of itself
        most, answer = self.options.most_bytes, recorded.answer
        if len(asked.body) > most:
            self.too_long += 1
            return
        if len(answer) > most:
            self.cut += 1
            answer = b""
        elif recorded.status != 200 or not recorded.complete:
            answer = b""
        made = CapturedExchange(
            asked.tenant, run_name(asked.run), asked.api, _repeated(asked), asked.body, answer
        )
        self.link.put(made, len(asked.body) + len(answer))

    def status(self) -> dict[str, Any]:
        """How it does: what was taken, waits and was lost, here and in the keeper."""
        link = self.link
        report = link.report
        return {
            "taken": link.put_in,
            "pending": link.pending,
            "lost": link.lost,
            "lost_rows": link.lost_rows + report.lost,
            "too_long": self.too_long,
            "cut": self.cut,
            "restarts": 0 if self._keeping is None else self._keeping.restarts,
            "keeper": {name: getattr(report, name) for name in report.__struct_fields__},
        }


def _repeated(asked: ProxyRequest) -> bool:
    return any(name == _REPEATED and text != b"0" for name, text in asked.headers)
