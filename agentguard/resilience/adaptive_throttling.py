"""A client that is refused much asks less: adaptive throttling after Google's SRE book, chapter 21.

A request is held back with probability ``(requests - K * accepts) / (requests + 1)``, at least 0 and at
most ``most``: nothing at all while the endpoint accepts one in K, most of it once it accepts none. The
book's rule alone holds back half of all after the first failure, and its recovery takes many windows,
because one in thousands passes; hence a minimum of requests, and the upper bound (Envoy's admission control
filter has both).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from agentguard.errors import Overloaded
from agentguard.resilience._sliding_window import SlidingWindow
from agentguard.resilience.base import CallOutcome, Response, Runtime, Send, classify_outcome, is_overload
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind
from agentguard.resilience.options import RATIO, SECONDS, StrategyOptions, check_ranges
from agentguard.resilience.stream_timeout import MonitoredStream


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveThrottling(StrategyOptions):
    """Options of the throttle.

    Attributes:
        k: how many requests are sent for one that is accepted before any is held back.
        window_s: how far back it looks.
        min_requests: requests there must be in the window before any is held back.
        max_rejection_probability: largest share that is held back.
    """

    name: ClassVar[str] = "adaptive_throttling"

    k: float = 2.0
    window_s: float = 30.0
    min_requests: int = 20
    max_rejection_probability: float = 0.9

    def __post_init__(self) -> None:
        check_ranges(
            self, k=(1.0, 100.0), window_s=SECONDS, min_requests=(1, 100_000), max_rejection_probability=RATIO
        )

    def build(self, inner: Send, runtime: Runtime) -> AdaptiveThrottler:
        """Make the working part."""
        return AdaptiveThrottler(self, inner, runtime)


class AdaptiveThrottler:
    """Holds back a share of the requests, by what became of the last ones."""

    def __init__(self, options: AdaptiveThrottling, inner: Send, runtime: Runtime) -> None:
        self._options, self._inner, self._runtime = options, inner, runtime
        self._window = SlidingWindow(options.window_s, runtime.clock)

    def compute_rejection_probability(self) -> float:
        """The probability with which a request is held back now."""
        accepted, requests = self._window.get_counts()
        options = self._options
        if requests < options.min_requests:
            return 0.0
        return min(
            options.max_rejection_probability, max(0.0, (requests - options.k * accepted) / (requests + 1))
        )

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Send on, or raise Overloaded."""
        window = self._window
        share = (
            0.0 if window.successes == window.total else self.compute_rejection_probability()
        )  # nothing was refused lately
        if share and self._runtime.rng.random() < share:
            self._window.add(False)
            self._runtime.emit_event(EventKind.THROTTLE, self._options.name, reason=f"{share:.0%} held back")
            raise Overloaded("the endpoint refuses too much; this call was held back")
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
        refused = is_overload(error, deadline)
        if refused or classify_outcome(error, deadline) is not CallOutcome.IGNORED:
            self._window.add(not refused)
