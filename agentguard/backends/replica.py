"""One replica: its endpoint, the strategies that stand at it, and what is known of how it does."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from agentguard.backends.base import Backend, BackendRequest, Response
from agentguard.backends.config import ANY_MODEL, ReplicaOptions
from agentguard.errors import BackendError, ResilienceError
from agentguard.model_api.json_rewrite import replace_fields
from agentguard.resilience import (
    CircuitBreaker,
    CircuitBreakerOptions,
    CircuitState,
    Deadline,
    Pipeline,
    ResilienceStrategy,
    Runtime,
)

Connect = Callable[[ReplicaOptions], Backend]
"""Makes the backend of a replica; opens nothing yet."""

_MAX_LATENCIES = 256
_MAX_ERRORS = 8


class Replica:
    """A replica at work. The pool counts on it and marks it; policies see it as a `View`.

    Attributes:
        options: its own.
        name: of the options, and so is ``weight``.
        inflight: requests that run on it, streams until their end.
        latency_s: moving mean of the seconds to heads and first tokens.
        is_draining: gets no new requests.
        failed_checks: who found it down: ``heartbeat``, ``canary``.
        is_corrupt: whether the canary found that it answers wrongly.
        cooldown_until: clock time before which it asked not to be asked again (Retry-After).
        hinted_until: clock time until which another machine's hint holds.
        successes: how many requests got an answer; ``failed`` has how many ended with which error.
        probe_outcome: what the canary heard last: ``right``, ``wrong``, ``silent``, ``unclear``; empty before.
        errors: the last errors, each with its clock time.
        idle_event: set once nothing runs on it, where somebody waits for that.
    """

    def __init__(
        self,
        options: ReplicaOptions,
        backend: Backend,
        strategies: Iterable[ResilienceStrategy],
        runtime: Runtime,
    ) -> None:
        self.options, self.backend, self._runtime = options, backend, runtime
        self.name, self.weight = options.name, options.weight
        self.inflight, self.latency_s = 0, 0.0
        self.is_draining = self.is_corrupt = False
        self.failed_checks: set[str] = set()
        self.cooldown_until = self.hinted_until = -math.inf
        self.idle_event: asyncio.Event | None = None
        self.successes = 0
        self.failures: Counter[str] = Counter()
        self.errors: deque[tuple[float, str]] = deque(maxlen=_MAX_ERRORS)
        self.probe_outcome = ""
        self._latencies: deque[float] = deque(maxlen=_MAX_LATENCIES)
        self.set_strategies(strategies)

    def set_strategies(self, strategies: Iterable[ResilienceStrategy]) -> None:
        """Put strategies around it, with a fresh state; calls that run keep those that they began with."""
        own = tuple(
            replace(s, target=self.name) if isinstance(s, CircuitBreakerOptions) else s for s in strategies
        )
        runtime = self._runtime
        pipeline = Pipeline.from_runtime(own, runtime)
        bound = pipeline.bind(self._send_to_backend)
        self.send = bound.send
        breaker = bound.bound_strategies.get(CircuitBreakerOptions.name)
        self.breaker = breaker if isinstance(breaker, CircuitBreaker) else None

    def update_options(self, options: ReplicaOptions) -> None:
        """Take over options that need no new connection."""
        self.options, self.weight = options, options.weight

    @property
    def is_ready(self) -> bool:
        """Whether one more request could be sent now, as far as breaker and limit go."""
        most = self.options.max_concurrent
        if most is not None and self.inflight >= most:
            return False
        breaker = self.breaker
        return breaker is None or breaker.state is CircuitState.CLOSED or breaker.is_ready

    def can_serve(self, model: str, api: str) -> bool:
        """Whether it is there for a model and an API; empty ones, of requests that just pass, suit all."""
        options = self.options
        if api and options.apis is not None and api not in options.apis:
            return False
        return not options.models or not model or model in options.models or ANY_MODEL in options.models

    def on_request_end(self) -> None:
        """A request on it is over."""
        self.inflight -= 1
        if self.idle_event is not None and not self.inflight:
            self.idle_event.set()

    def record_success(self, seconds: float) -> None:
        """A request got its head or first token after so many seconds."""
        self.successes += 1
        self._latencies.append(seconds)
        self.latency_s += (seconds - self.latency_s) * 0.2 if self.latency_s else seconds

    def record_error(self, error: BaseException, now: float) -> None:
        """A request ended with an error; only its code is kept."""
        code = error.code if isinstance(error, ResilienceError) else type(error).__name__
        status = getattr(error, "status", None)
        label = code if status is None else f"{code} {status}"
        self.failures[label] += 1
        self.errors.append((now, label))

    def compute_latency_quantiles(self) -> dict[str, float | None]:
        """Median, 95th and 99th percentile of the last latencies, in seconds; None while there are none."""
        values = sorted(self._latencies)

        def at(share: float) -> float | None:
            return values[math.ceil(share * len(values)) - 1] if values else None

        return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99)}

    async def _send_to_backend(self, request: BackendRequest, deadline: Deadline) -> Any:
        """Ask the endpoint for the model by the name that it has there; refuse an answer that is none."""
        models = self.options.models
        if models and request.model:
            served = models.get(request.model) or models.get(ANY_MODEL) or ANY_MODEL
            if served not in (ANY_MODEL, request.model):
                request = replace(request, body=replace_fields(request.body, {"model": served}), model=served)
        answer = await self.backend.send(request, deadline)
        if type(answer) is Response and answer.status == 200 and request.api is not None:
            wrong = request.api.find_body_error(answer.body, request.body)
            if wrong is not None:
                raise BackendError(f"the answer is not what it should be: {wrong}", stage="sent")
        return answer
