"""Active health checks of replicas: heartbeat and known-answer probe, each in a loop per replica.

The heartbeat checks that the server responds. The probe asks the model a question with a known answer.
It also detects an engine that hangs behind a healthy server, and a replica with wrong answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

import orjson

from agentguard.backends.base import BackendRequest, Response, UpstreamError
from agentguard.backends.config import ANY_MODEL, HealthOptions, ProbeOptions
from agentguard.backends.replica import Replica
from agentguard.errors import ResilienceError
from agentguard.model_api import API_FORMATS
from agentguard.resilience import Deadline, EventKind, Runtime
from agentguard.resilience.stream_timeout import close_response

ProbeOutcome = Literal["right", "wrong", "silent", "unclear"]
_HEADERS = ((b"content-type", b"application/json"),)
_MAX_BODY_BYTES = 100_000


class KnownAnswerProbe:
    """Probe of one replica over the chat API, or over Anthropic's Messages API if it lacks the chat API.

    The question bypasses all strategies, so the outcome is that of the endpoint.
    """

    def __init__(self, options: ProbeOptions, replica: Replica) -> None:
        self._options, self._replica = options, replica
        apis = replica.options.apis
        self._api = "chat" if apis is None or "chat" in apis else "messages"

    @staticmethod
    def supports(replica: Replica) -> bool:
        """Return whether a replica supports an API that can be probed."""
        apis = replica.options.apis
        return apis is None or "chat" in apis or "messages" in apis

    async def run(self, runtime: Runtime) -> ProbeOutcome:
        """Probe once; return ``right``, ``wrong``, or ``silent`` if there is no answer in time.

        The outcome is ``unclear`` if the question was rejected: a wrong key or model, or too many requests.
        """
        deadline = Deadline.after(self._options.timeout_s, clock=runtime.clock)
        try:
            answer = await deadline.run(
                self._replica.backend.send(self.build_request(), deadline), "the known-answer probe"
            )
        except UpstreamError as error:
            return "unclear" if error.response.status < 500 else "silent"
        except (ResilienceError, OSError, EOFError):
            return "silent"
        if not isinstance(answer, Response):
            await close_response(answer)
            return "wrong"  # the request did not ask for a stream
        return "right" if self._is_expected(answer.body) else "wrong"

    def build_request(self) -> BackendRequest:
        """Build the request of the question."""
        options = self._options
        model = self._select_model()
        body = {
            "model": model,
            "messages": [{"role": "user", "content": options.prompt}],
            "max_tokens": options.max_tokens,
            "temperature": 0,
        }
        target = "/chat/completions" if self._api == "chat" else "/messages"
        headers = _HEADERS if self._api == "chat" else (*_HEADERS, (b"anthropic-version", b"2023-06-01"))
        return BackendRequest(
            target=target, headers=headers, body=orjson.dumps(body), api=API_FORMATS[self._api], model=model
        )

    def _select_model(self) -> str:
        """Return the model's name at this replica."""
        models = self._replica.options.models
        model = self._options.model or next((name for name in models if name != ANY_MODEL), "")
        served_model = models.get(model) or models.get(ANY_MODEL) or model
        return model if served_model == ANY_MODEL else served_model

    def _is_expected(self, body: bytes) -> bool:
        """Return whether the answer's text contains the expected text; IDs and names are ignored."""
        try:
            answer = orjson.loads(body[:_MAX_BODY_BYTES])
            if self._api == "chat":
                text = answer["choices"][0]["message"]["content"]
            else:
                text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
        except (ValueError, KeyError, IndexError, TypeError):
            return False
        return isinstance(text, str) and self._options.expected.casefold() in text.casefold()


_LOG = logging.getLogger(__name__)

HEARTBEAT, PROBE = "heartbeat", "probe"
UNSETTLED_SPEEDUP = 5
"""Divisor of the check interval while the last outcome differs from the recorded state."""


class OutcomeStreak:
    """Counter of consecutive equal outcomes."""

    __slots__ = ("_count", "_last")

    def __init__(self) -> None:
        self._count, self._last = 0, ""

    def add(self, outcome: str) -> int:
        """Add an outcome; return the number of consecutive equal outcomes."""
        self._count = self._count + 1 if outcome == self._last else 1
        self._last = outcome
        return self._count


class HealthChecker:
    """Health checker: a task per check of each replica.

    Args:
        heartbeat: options of the heartbeat; None disables it.
        probe: options of the known-answer probe; None disables it.
        runtime: clock, random generator and observers.
        on_change: called when the health of a replica changes.
    """

    def __init__(
        self,
        heartbeat: HealthOptions | None,
        probe: ProbeOptions | None,
        runtime: Runtime,
        on_change: Callable[[], None],
    ) -> None:
        self._heartbeat, self._probe = heartbeat, probe
        self._runtime, self._on_change = runtime, on_change
        self._tasks: dict[Replica, list[asyncio.Task[None]]] = {}

    def watch(self, replica: Replica) -> None:
        """Start the checks of a replica; needs a running event loop."""
        loops: list[Awaitable[None]] = []
        if self._heartbeat is not None:
            loops.append(
                self._run_check(
                    self._heartbeat.interval_s, HeartbeatCheck(self._heartbeat, replica, self.report)
                )
            )
        if self._probe is not None and replica.options.probe and KnownAnswerProbe.supports(replica):
            loops.append(
                self._run_check(self._probe.interval_s, KnownAnswerCheck(self._probe, replica, self.report))
            )
        self._tasks[replica] = [asyncio.ensure_future(loop) for loop in loops]

    async def unwatch(self, replica: Replica) -> None:
        """Stop the checks of a replica."""
        tasks = self._tasks.pop(replica, [])
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def aclose(self) -> None:
        """Stop all checks."""
        for replica in [*self._tasks]:
            await self.unwatch(replica)

    def report(self, replica: Replica, kind: EventKind, source: str) -> None:
        """Record the result of a check: `DOWN`, `UP` or `CORRUPT`; ``source`` is the name of the check."""
        before = (replica.is_corrupt, frozenset(replica.failed_checks))
        if kind is EventKind.CORRUPT:
            replica.is_corrupt = True
        elif kind is EventKind.DOWN:
            replica.failed_checks.add(source)
        else:
            replica.failed_checks.discard(source)
            replica.is_corrupt = replica.is_corrupt and source != PROBE
        if (replica.is_corrupt, frozenset(replica.failed_checks)) != before:
            self._on_change()
            self._runtime.emit_event(kind, source, target=replica.name)

    async def _run_check(self, interval_s: float, check: Callable[[Runtime], Awaitable[bool]]) -> None:
        # a random delay spreads the checks of the replicas over time
        await self._runtime.clock.sleep(self._runtime.rng.random() * min(interval_s, 1.0))
        while True:
            is_settled = True
            try:
                is_settled = await check(self._runtime)
            except Exception as error:  # not evidence about the replica; the loop must continue
                _LOG.warning("a health check failed: %s", type(error).__name__)
            await self._runtime.clock.sleep(interval_s if is_settled else interval_s / UNSETTLED_SPEEDUP)


ReportCallback = Callable[[Replica, EventKind, str], None]


class HeartbeatCheck:
    """Heartbeat of one replica."""

    def __init__(self, options: HealthOptions, replica: Replica, report: ReportCallback) -> None:
        self._options, self._replica, self._report = options, replica, report
        self._request = BackendRequest(target=options.path, method="GET")
        self._streak = OutcomeStreak()

    async def __call__(self, runtime: Runtime) -> bool:
        """Check once; return whether the outcome equals the recorded state."""
        is_alive = await self._is_alive(runtime)
        repetitions = self._streak.add("alive" if is_alive else "dead")
        if is_alive and repetitions >= self._options.healthy_threshold:
            self._report(self._replica, EventKind.UP, HEARTBEAT)
        elif not is_alive and repetitions >= self._options.unhealthy_threshold:
            self._report(self._replica, EventKind.DOWN, HEARTBEAT)
        return is_alive is (HEARTBEAT not in self._replica.failed_checks)

    async def _is_alive(self, runtime: Runtime) -> bool:
        deadline = Deadline.after(self._options.timeout_s, clock=runtime.clock)
        try:
            answer = await deadline.run(self._replica.backend.send(self._request, deadline), "the heartbeat")
        except UpstreamError as error:
            return error.response.status < 500
        except (ResilienceError, OSError, EOFError):
            return False
        await close_response(answer)
        return True


class KnownAnswerCheck:
    """Known-answer probe of one replica."""

    def __init__(self, options: ProbeOptions, replica: Replica, report: ReportCallback) -> None:
        self._options, self._replica, self._report = options, replica, report
        self._streak = OutcomeStreak()

    async def __call__(self, runtime: Runtime) -> bool:
        """Probe once; return whether the outcome equals the recorded state."""
        options = self._options
        outcome = self._replica.probe_outcome = await KnownAnswerProbe(options, self._replica).run(runtime)
        repetitions = self._streak.add(outcome)
        if outcome == "right" and repetitions >= options.success_threshold:
            self._report(self._replica, EventKind.UP, PROBE)
        elif outcome == "wrong" and repetitions >= options.failure_threshold:
            self._report(self._replica, EventKind.CORRUPT, PROBE)
        elif outcome == "silent" and repetitions >= options.unresponsive_threshold:
            self._report(self._replica, EventKind.DOWN, PROBE)
        replica = self._replica
        expected_outcome = (
            "wrong" if replica.is_corrupt else "silent" if PROBE in replica.failed_checks else "right"
        )
        return outcome in (expected_outcome, "unclear")
