"""Pool of replicas: pool strategies, load balancer, replica strategies, endpoint.

::

    pool = Pool(BackendsOptions.parse({"replicas": [{"name": "a", "url": "http://127.0.0.1:8000/v1"}]}))
    await pool.start()
    response = await pool.send(BackendRequest(target="/chat/completions", ...), Deadline.after(60))
    await pool.aclose()
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import Any, cast

from agentguard.backends import pipeline_config, status
from agentguard.backends.backend_factory import build_http_backend_factory
from agentguard.backends.base import BackendRequest, Response, StreamingResponse
from agentguard.backends.config import BackendsOptions, ReplicaOptions
from agentguard.backends.health.peer_hints import HintBridge, HintChannel
from agentguard.backends.load_balancer import AttemptContext, LoadBalancer
from agentguard.backends.membership import PoolMembership
from agentguard.backends.quorum import QuorumReader
from agentguard.backends.replica import Connect
from agentguard.backends.status import describe_backends
from agentguard.backends.stream_resumption import RESUMABLE_APIS, ResumableStream
from agentguard.errors import Overloaded
from agentguard.resilience import (
    MONOTONIC,
    AttemptTimeoutOptions,
    Clock,
    Deadline,
    EventKind,
    MonitoredStream,
    Observer,
    Pipeline,
    RetryOptions,
    Runtime,
    StrategyOptions,
    TimeoutOptions,
)
from agentguard.resilience.events import Observers
from agentguard.resilience.retry import Retry


class Pool:
    """Several replicas as one `Backend`; all calls must use the same event loop.

    Args:
        options: the ``backends`` section of the configuration.
        connect: creates the backend of a replica; by default over HTTP.
        clock: source of time.
        rng: random generator; seed it to reproduce a run.
        observers: called with the events of all strategies and health checks.
        hints: channel that carries hints between machines.

    Raises:
        ConfigError: a replica cannot be created, for example because its key is missing.
    """

    def __init__(
        self,
        options: BackendsOptions,
        *,
        connect: Connect | None = None,
        clock: Clock = MONOTONIC,
        rng: random.Random | None = None,
        observers: Iterable[Observer] = (),
        hints: HintChannel | None = None,
    ) -> None:
        self.options = options
        self._rng = rng or random.Random()  # noqa: S311
        hint_bridge = None if hints is None else HintBridge(hints)
        all_observers = observers if hint_bridge is None else (*observers, hint_bridge.observe)
        self._runtime = Runtime(clock=clock, rng=self._rng, observers=Observers(all_observers))
        self._load_balancer = LoadBalancer(
            options.load_balancing.build(self._rng), options.outlier, self._runtime
        )
        if hint_bridge is not None:
            hint_bridge.subscribe(self._load_balancer, clock)
        self._membership = PoolMembership(
            options, self._load_balancer, self._runtime, connect or build_http_backend_factory(options.http)
        )
        self._quorum_reader = QuorumReader(options.quorum, self._send_to_one)
        self._bind_pipeline(options)
        self._total_timeout_s = _find_total_timeout(options.pipeline)

    def _bind_pipeline(self, options: BackendsOptions) -> None:
        """Bind the strategies to the load balancer; running requests keep their strategies."""
        self._pool_pipeline = Pipeline.from_runtime(
            _select_bound_strategies(options.pipeline), self._runtime
        ).bind(self._load_balancer.send)

    async def start(self) -> None:
        """Start the health checks; the pool also works without them."""
        self._membership.start()

    def send(
        self, request: BackendRequest, deadline: Deadline
    ) -> Coroutine[Any, Any, Response | StreamingResponse]:
        """Send a request to one replica, or to several for a vote; see `Backend.send`.

        Raises:
            NoReplica: no replica serves the model over the API.
            CircuitOpen, Overloaded: no replica can take the request now.
            UpstreamError, ResilienceError: error of the last attempt, inside RetriesExhausted after a retry.
        """
        return (
            self._send_to_one(request, deadline)
            if request.quorum_size <= 1
            else self._send_to_quorum(request, deadline)
        )

    async def _send_to_quorum(
        self, request: BackendRequest, deadline: Deadline
    ) -> Response | StreamingResponse:
        return await self._quorum_reader.send(request, deadline, self._load_balancer.count_available(request))

    async def _send_to_one(self, request: BackendRequest, deadline: Deadline) -> Response | StreamingResponse:
        if self._total_timeout_s is not None:
            deadline = deadline.with_timeout(self._total_timeout_s)  # includes the resumptions of the stream
        is_resumable = request.stream and self._is_resumable(request)
        context = AttemptContext(request)
        response = await self._pool_pipeline.send(context, deadline)
        notes = context.build_notes() if context.attempts > 1 or context.is_panic else ()
        if type(response) is Response:
            return replace(response, notes=(*response.notes, *notes)) if notes else response
        if notes:
            response.notes = (*response.notes, *notes)
        if is_resumable and isinstance(response, MonitoredStream):
            return ResumableStream(
                response,
                request,
                self._build_resume_callback(request, deadline),
                self.options.max_stream_resumptions,
            )
        return cast("Response | StreamingResponse", response)

    def _is_resumable(self, request: BackendRequest) -> bool:
        api = request.api
        return (
            self._load_balancer.has_resumable_replica
            and self.options.max_stream_resumptions > 0
            and request.idempotent
            and api is not None
            and api.name in RESUMABLE_APIS
        )

    def _build_resume_callback(self, request: BackendRequest, deadline: Deadline) -> Any:
        """Build the function that requests the rest of a stream: a further attempt under the retry budget."""

        async def resume(body: bytes, *, prefixed: bool, why: str) -> Any:
            retry = self._pool_pipeline.bound_strategies.get(RetryOptions.name)
            if isinstance(retry, Retry) and not retry.budget.withdraw():
                raise Overloaded("the retry budget has no retry to resume the response")
            context = AttemptContext(replace(request, body=body), is_resumption=prefixed)
            response = await self._pool_pipeline.send(context, deadline)
            if isinstance(response, MonitoredStream):
                self._runtime.emit_event(EventKind.CONTINUED, "pool", target=response.replica, reason=why)
            return response

        return resume

    def explain(self) -> list[str]:
        """Return the bound pipeline: one line per strategy, outermost first."""
        return describe_backends(self.options)

    def status(self) -> dict[str, Any]:
        """Return the state of strategies, panic mode and replicas as JSON data for a status page."""
        now = self._runtime.clock.now()
        replicas = status.build_replica_statuses(self._load_balancer, self._membership.leaving, now)
        return {
            "load_balancing": self.options.load_balancing.describe(),
            "panic": self._load_balancer.panicking_groups,
            "usable": sum(one["state"] in ("up", "resting", "hinted") for one in replicas),
            "inflight": sum(one["inflight"] for one in replicas),
            "quorum": self._quorum_reader.running_count,
            **status.build_strategy_status(self._pool_pipeline.bound_strategies),
            "replicas": replicas,
        }

    def models(self) -> list[str]:
        """Return the models in the replicas' configuration, sorted."""
        return self._load_balancer.model_names

    async def apply(self, options: BackendsOptions) -> None:
        """Apply a new configuration without losing a request.

        Raises:
            ConfigError: a replica cannot be created; nothing has changed.
        """
        old_options = self.options
        await self._membership.apply(options)
        self.options = options
        policy = (
            options.load_balancing.build(self._rng)
            if options.load_balancing != old_options.load_balancing
            else None
        )
        self._load_balancer.reconfigure(policy, options.outlier)
        if options.quorum != old_options.quorum:
            self._quorum_reader.options = options.quorum
        if _select_bound_strategies(options.pipeline) != _select_bound_strategies(old_options.pipeline):
            self._bind_pipeline(options)
        self._total_timeout_s = _find_total_timeout(options.pipeline)

    async def add(self, replica: ReplicaOptions) -> None:
        """Add a replica. Raises ConfigError if its name is taken or it cannot be created."""
        await self._membership.add(replica)
        self._sync_options()

    async def drain(self, name: str, *, on: bool = True) -> None:
        """Stop or resume new requests to a replica. Raises ConfigError if the name is unknown."""
        self._membership.drain(name, on=on)

    async def remove(self, name: str) -> None:
        """Remove a replica; its running requests are completed. Raises ConfigError if the name is unknown."""
        await self._membership.remove(name)
        self._sync_options()

    async def wait_idle(self, name: str) -> None:
        """Wait until a current or removed replica has no requests."""
        await self._membership.wait_idle(name)

    def _sync_options(self) -> None:
        """Update the options after a change of the replicas."""
        replicas = tuple(one.options for one in self._load_balancer.replicas.values())
        self.options = self.options.model_copy(update={"replicas": replicas})

    async def aclose(self) -> None:
        """Stop the health checks and close all connections; pending requests fail."""
        await self._membership.aclose()


def _find_total_timeout(pipeline: tuple[StrategyOptions, ...]) -> float | None:
    return next((one.total_s for one in pipeline if isinstance(one, TimeoutOptions)), None)


def _select_bound_strategies(
    pipeline: tuple[StrategyOptions, ...],
) -> tuple[StrategyOptions, ...]:
    """Return the strategies that are bound to the load balancer.

    If attempts have a time limit, each wait of a call ends at the deadline, and a further timer is redundant.
    The pool then enforces the `Timeout` by its deadline.
    """
    has_attempt_timeout = any(isinstance(one, AttemptTimeoutOptions) for one in pipeline)
    return tuple(
        one
        for one in pipeline_config.select_pool_strategies(pipeline)
        if not (has_attempt_timeout and isinstance(one, TimeoutOptions))
    )
