"""A pool of replicas behind one seam: strategies over all, a choice, strategies at each, the endpoint.

::

    pool = Pool(BackendsOptions.parse({"replicas": [{"name": "a", "url": "http://127.0.0.1:8000/v1"}]}))
    await pool.start()
    answer = await pool.send(BackendRequest(target="/chat/completions", ...), Deadline.after(60))
    await pool.aclose()
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import Any, cast

from agentguard.backends import pipeline_config, status
from agentguard.backends.attempt_context import AttemptContext
from agentguard.backends.base import BackendRequest, Response, StreamingResponse
from agentguard.backends.config import BackendsOptions, ReplicaOptions
from agentguard.backends.explain import explain
from agentguard.backends.health.hint_bridge import HintBridge
from agentguard.backends.health.hints import Hints
from agentguard.backends.load_balancer import LoadBalancer
from agentguard.backends.membership import PoolMembership
from agentguard.backends.quorum import QuorumReader
from agentguard.backends.replica import Connect
from agentguard.backends.replica_factory import http_backend_factory
from agentguard.backends.stream_resumption.resumer import CONTINUED_APIS, ResumableStream
from agentguard.errors import Overloaded
from agentguard.resilience import (
    MONOTONIC,
    AttemptTimeout,
    Clock,
    Deadline,
    EventKind,
    Observer,
    Pipeline,
    ResilienceStrategy,
    Retry,
    Runtime,
    Stream,
    Timeout,
)
from agentguard.resilience.events import Observers
from agentguard.resilience.retry import Retrier


class Pool:
    """Several replicas as one `Backend`; for one event loop.

    Args:
        options: the ``backends`` section of the configuration.
        connect: makes the backend of a replica; over HTTP, if not given.
        clock: source of the time.
        rng: source of all chance; seed it to repeat a run.
        observers: are told the events of all strategies, and what heartbeat and canary find.
        hints: carries breakers' and ejections' states between machines.

    Raises:
        ConfigError: a replica can't be made, e.g. because its key is missing.
    """

    def __init__(
        self,
        options: BackendsOptions,
        *,
        connect: Connect | None = None,
        clock: Clock = MONOTONIC,
        rng: random.Random | None = None,
        observers: Iterable[Observer] = (),
        hints: Hints | None = None,
    ) -> None:
        self.options = options
        self._rng = rng or random.Random()  # noqa: S311
        hinting = None if hints is None else HintBridge(hints)
        told = observers if hinting is None else (*observers, hinting.observe)
        self._runtime = Runtime(clock=clock, rng=self._rng, emit=Observers(told))
        self._choice = LoadBalancer(options.policy.build(self._rng), options.outlier, self._runtime)
        if hinting is not None:
            hinting.subscribe(self._choice, clock)
        self._members = PoolMembership(
            options, self._choice, self._runtime, connect or http_backend_factory(options.http)
        )
        self._voting = QuorumReader(options.votes, self._one)
        self._build(options)
        self._total_s = _total_s(options.pipeline)

    def _build(self, options: BackendsOptions) -> None:
        """Put the strategies over the choice; requests that run keep to the ones that they began with."""
        self._over = Pipeline.sharing(_bound(options.pipeline), self._runtime).bind(self._choice.send)

    async def start(self) -> None:
        """Begin with heartbeats and canaries; without it the pool works, but looks after nothing."""
        self._members.start()

    def send(
        self, request: BackendRequest, deadline: Deadline
    ) -> Coroutine[Any, Any, Response | StreamingResponse]:
        """Send a request to one replica, or to as many as vote on it; see `Backend.send`.

        Raises:
            NoReplica: none serves the model over the API.
            CircuitOpen, Overloaded: none can take it now.
            Refused, ResilienceError: as of the last attempt; RetriesExhausted with it if it was tried again.
        """
        return self._one(request, deadline) if request.votes <= 1 else self._voted(request, deadline)

    async def _voted(self, request: BackendRequest, deadline: Deadline) -> Response | StreamingResponse:
        return await self._voting.send(request, deadline, self._choice.count(request))

    async def _one(self, request: BackendRequest, deadline: Deadline) -> Response | StreamingResponse:
        if self._total_s is not None:
            deadline = deadline.sooner(self._total_s)  # over what continues the answer, too
        continuing = request.stream and self._continues(request)
        trip = AttemptContext(request)
        response = await self._over.send(trip, deadline)
        notes = trip.notes() if trip.attempts > 1 or trip.panic else ()
        if type(response) is Response:
            return replace(response, notes=(*response.notes, *notes)) if notes else response
        if notes:
            response.notes = (*response.notes, *notes)
        if continuing and isinstance(response, Stream):
            return ResumableStream(
                response, request, self._goes_on(request, deadline), self.options.continuations
            )
        return cast("Response | StreamingResponse", response)

    def _continues(self, request: BackendRequest) -> bool:
        api = request.api
        return (
            self._choice.continues
            and self.options.continuations > 0
            and request.idempotent
            and api is not None
            and api.name in CONTINUED_APIS
        )

    def _goes_on(self, request: BackendRequest, deadline: Deadline) -> Any:
        """What asks for the rest of an answer: another attempt, which the budget of retries pays."""

        async def go_on(body: bytes, *, prefixed: bool, why: str) -> Any:
            retrier = self._over.layers.get(Retry.name)
            if isinstance(retrier, Retrier) and not retrier.budget.withdraw():
                raise Overloaded("no retry left in the budget to continue an answer with")
            trip = AttemptContext(replace(request, body=body), continues=prefixed)
            response = await self._over.send(trip, deadline)
            if isinstance(response, Stream):
                self._runtime.tell(EventKind.CONTINUED, "pool", target=response.replica, reason=why)
            return response

        return go_on

    def explain(self) -> list[str]:
        """The pipeline's order as built: one line a strategy, outermost first."""
        return explain(self.options)

    def status(self) -> dict[str, Any]:
        """Everything a status page wants, for JSON: strategies, panics, and the state of each replica."""
        now = self._runtime.clock.now()
        replicas = status.of_choice(self._choice, self._members.leaving, now)
        return {
            "policy": self.options.policy.describe(),
            "panic": self._choice.panicking,
            "usable": sum(one["state"] in ("up", "resting", "hinted") for one in replicas),
            "inflight": sum(one["inflight"] for one in replicas),
            "votes": self._voting.running,
            **status.of_layers(self._over.layers),
            "replicas": replicas,
        }

    def models(self) -> list[str]:
        """The models that replicas name in the configuration, sorted."""
        return self._choice.models

    async def apply(self, options: BackendsOptions) -> None:
        """Become what a new configuration says, without a lost request.

        Raises:
            ConfigError: a replica can't be made; nothing was changed.
        """
        before = self.options
        await self._members.apply(options)
        self.options = options
        chooser = options.policy.build(self._rng) if options.policy != before.policy else None
        self._choice.arrange(chooser, options.outlier)
        if options.votes != before.votes:
            self._voting.options = options.votes
        if _bound(options.pipeline) != _bound(before.pipeline):
            self._build(options)
        self._total_s = _total_s(options.pipeline)

    async def add(self, replica: ReplicaOptions) -> None:
        """Add a replica. Raises ConfigError if its name is taken or it can't be made."""
        await self._members.add(replica)
        self._follow()

    async def drain(self, name: str, *, on: bool = True) -> None:
        """Give a replica no new requests, or some again. Raises ConfigError if there is none of that name."""
        self._members.drain(name, on=on)

    async def remove(self, name: str) -> None:
        """Take a replica out; what runs on it is finished. Raises ConfigError if there is none."""
        await self._members.remove(name)
        self._follow()

    async def idle(self, name: str) -> None:
        """Wait until nothing runs on a replica, be it a member or leaving."""
        await self._members.idle(name)

    def _follow(self) -> None:
        """The options say who is there."""
        replicas = tuple(one.options for one in self._choice.replicas.values())
        self.options = self.options.model_copy(update={"replicas": replicas})

    async def aclose(self) -> None:
        """End: stop looking after replicas, close their connections; requests under way fail."""
        await self._members.aclose()


def _total_s(pipeline: tuple[ResilienceStrategy, ...]) -> float | None:
    return next((one.total_s for one in pipeline if isinstance(one, Timeout)), None)


def _bound(pipeline: tuple[ResilienceStrategy, ...]) -> tuple[ResilienceStrategy, ...]:
    """The strategies that are bound over the choice.

    Where attempts are limited, each wait of a call ends by the deadline by itself, and a timer over all of
    them would be one too many: the `Timeout` is kept by the deadline that the pool sets.
    """
    limited = any(isinstance(one, AttemptTimeout) for one in pipeline)
    return tuple(one for one in pipeline_config.over(pipeline) if not (limited and isinstance(one, Timeout)))
