"""Adaptive throttling after Google's SRE book, chapter 21: a client that is often rejected sends less.

A request is rejected locally with probability ``(requests - K * accepts) / (requests + 1)``, clamped to [0,
``max_rejection_probability``]: never while the endpoint accepts one in K, mostly if it accepts none. The
book's rule alone rejects half of all requests after the first failure. Its recovery takes many windows,
because only one request in thousands passes. The minimum number of requests and the
upper bound avoid this (Envoy's admission control filter has both).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from agentguard.errors import Overloaded
from agentguard.options import RATIO, SECONDS, Options, option
from agentguard.resilience.base import CallOutcome, Response, Runtime, Send, classify_outcome, is_overload
from agentguard.resilience.circuit_breaker import SlidingWindow
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind
from agentguard.resilience.stream_timeout import MonitoredStream


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveThrottlingOptions(Options):
    """Options of adaptive throttling.

    Attributes:
        k: requests that are sent per accepted request before any is rejected.
        window_s: length of the window.
        min_requests: number of requests in the window required to reject any.
        max_rejection_probability: upper bound on the rejection probability.
    """

    name: ClassVar[str] = "adaptive_throttling"

    k: float = option(2.0, bounds=(1.0, 100.0))
    window_s: float = option(30.0, bounds=SECONDS)
    min_requests: int = option(20, bounds=(1, 100_000))
    max_rejection_probability: float = option(0.9, bounds=RATIO)

    def build(self, inner: Send, runtime: Runtime) -> AdaptiveThrottling:
        """Bind the strategy to the ``send`` of the next one."""
        return AdaptiveThrottling(self, inner, runtime)


class AdaptiveThrottling:
    """Rejects a share of the requests, depending on recent outcomes."""

    def __init__(self, options: AdaptiveThrottlingOptions, inner: Send, runtime: Runtime) -> None:
        self._options, self._inner, self._runtime = options, inner, runtime
        self._window = SlidingWindow(options.window_s, runtime.clock)

    def compute_rejection_probability(self) -> float:
        """Return the probability with which a request is rejected now."""
        accepted_count, request_count = self._window.get_counts()
        options = self._options
        if request_count < options.min_requests:
            return 0.0
        return min(
            options.max_rejection_probability,
            max(0.0, (request_count - options.k * accepted_count) / (request_count + 1)),
        )

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Send the request on, or raise Overloaded."""
        window = self._window
        share = (
            0.0 if window.successes == window.total else self.compute_rejection_probability()
        )  # the endpoint has rejected nothing recently
        if share and self._runtime.rng.random() < share:
            self._window.add(False)
            self._runtime.emit_event(EventKind.THROTTLE, self._options.name, reason=f"{share:.0%} held back")
            raise Overloaded("adaptive throttling rejected the call, because the endpoint rejects too many")
        try:
            response = await self._inner(request, deadline)
        except BaseException as error:
            self._record_result(error, deadline)
            raise
        if isinstance(response, MonitoredStream):
            response.add_end_callback(lambda error: self._record_result(error, deadline))
        else:
            self._window.add(True)
        return response

    def _record_result(self, error: BaseException | None, deadline: Deadline) -> None:
        is_refusal = is_overload(error, deadline)
        if is_refusal or classify_outcome(error, deadline) is not CallOutcome.IGNORED:
            self._window.add(not is_refusal)
