"""Replica of a pool: its endpoint, its strategies, and its records."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

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
    Runtime,
    StrategyOptions,
    StreamTimeoutOptions,
)
from agentguard.resilience.stream_timeout import monitor_response


def _replace_model(request: BackendRequest, served_model: str) -> BackendRequest:
    """Return the request with another model: in the query of a tunnel, in the body of other requests."""
    if not request.is_tunnel:
        return replace(
            request, body=replace_fields(request.body, {"model": served_model}), model=served_model
        )
    path, _, query = request.target.partition("?")
    pairs = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name != "model"]
    return replace(
        request, target=f"{path}?{urlencode([*pairs, ('model', served_model)])}", model=served_model
    )


Connect = Callable[[ReplicaOptions], Backend]
"""Function that creates the backend of a replica; it opens no connection."""

_MAX_LATENCIES = 256
_MAX_ERRORS = 8


class Replica:
    """Replica of a pool. The pool updates its state; policies see it as a `ReplicaView`.

    Attributes:
        options: options of the replica.
        name: name in the options.
        weight: weight in the options.
        inflight: number of running requests; a stream counts until its end.
        latency_s: moving mean of the seconds to the head or first token.
        is_draining: True if the replica gets no new requests.
        failed_checks: health checks that found the replica down: ``heartbeat``, ``probe``.
        is_corrupt: True if the known-answer probe got wrong answers.
        cooldown_until: clock time until which the replica asked for a pause (Retry-After).
        hinted_until: clock time until which a hint of another machine is valid.
        successes: number of requests with a response.
        failures: number of failed requests by error.
        probe_outcome: last outcome of the known-answer probe: ``right``, ``wrong``, ``silent``, ``unclear``;
            empty before the first probe.
        errors: the last errors, each with its clock time.
        idle_event: set when the last running request ends; None if no task waits for that.
    """

    def __init__(
        self,
        options: ReplicaOptions,
        backend: Backend,
        strategies: Sequence[StrategyOptions],
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

    def set_strategies(self, strategies: Sequence[StrategyOptions]) -> None:
        """Replace the strategies, with a fresh state; running calls keep their strategies."""
        # `_send_to_backend` applies the stream timeout, so that whole responses pass one strategy less.
        self._stream_timeout = next((s for s in strategies if isinstance(s, StreamTimeoutOptions)), None)
        own_strategies = tuple(
            replace(s, target=self.name) if isinstance(s, CircuitBreakerOptions) else s
            for s in strategies
            if not isinstance(s, StreamTimeoutOptions)
        )
        bound_pipeline = Pipeline.from_runtime(own_strategies, self._runtime).bind(self._send_to_backend)
        self.send = bound_pipeline.send
        breaker = bound_pipeline.bound_strategies.get(CircuitBreakerOptions.name)
        self.breaker = breaker if isinstance(breaker, CircuitBreaker) else None

    def update_options(self, options: ReplicaOptions) -> None:
        """Replace the options; they must not require a new connection."""
        self.options, self.weight = options, options.weight

    @property
    def is_ready(self) -> bool:
        """Return whether circuit breaker and concurrency limit admit one more request now."""
        max_concurrent = self.options.max_concurrent
        if max_concurrent is not None and self.inflight >= max_concurrent:
            return False
        breaker = self.breaker
        return breaker is None or breaker.state is CircuitState.CLOSED or breaker.is_ready

    def can_serve(self, model: str, api: str) -> bool:
        """Return whether the replica serves a model and an API; an empty name matches every replica."""
        options = self.options
        if api and options.apis is not None and api not in options.apis:
            return False
        return not options.models or not model or model in options.models or ANY_MODEL in options.models

    def on_request_end(self) -> None:
        """Record the end of a request."""
        self.inflight -= 1
        if self.idle_event is not None and not self.inflight:
            self.idle_event.set()

    def record_success(self, seconds: float) -> None:
        """Record a request whose head or first token came after ``seconds``."""
        self.successes += 1
        self._latencies.append(seconds)
        self.latency_s += (seconds - self.latency_s) * 0.2 if self.latency_s else seconds

    def record_error(self, error: BaseException, now: float) -> None:
        """Record a failed request; only the error code is kept."""
        code = error.code if isinstance(error, ResilienceError) else type(error).__name__
        status = getattr(error, "status", None)
        label = code if status is None else f"{code} {status}"
        self.failures[label] += 1
        self.errors.append((now, label))

    def compute_latency_quantiles(self) -> dict[str, float | None]:
        """Return median, 95th and 99th percentile of recent latencies in seconds; None without data."""
        values = sorted(self._latencies)

        def at(share: float) -> float | None:
            return values[math.ceil(share * len(values)) - 1] if values else None

        return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99)}

    async def _send_to_backend(self, request: BackendRequest, deadline: Deadline) -> Any:
        """Send the request with this endpoint's model name. Raises BackendError for a malformed answer."""
        models = self.options.models
        if models and request.model:
            served_model = models.get(request.model) or models.get(ANY_MODEL) or ANY_MODEL
            if served_model not in (ANY_MODEL, request.model):
                request = _replace_model(request, served_model)
        stream_timeout = self._stream_timeout
        answer = await self.backend.send(request, deadline)
        if type(answer) is not Response:
            if stream_timeout is None:
                return answer
            return await monitor_response(answer, request, deadline, stream_timeout, self._runtime)
        if answer.status == 200 and request.api is not None:
            body_error = request.api.find_body_error(answer.body, request.body)
            if body_error is not None:
                raise BackendError(f"the response is not valid: {body_error}", stage="sent")
        return answer
