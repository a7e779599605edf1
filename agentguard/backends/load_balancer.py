"""Load balancer: chooses the replica of each attempt, between the pool strategies and the replica strategies.

Each attempt chooses in this order:

1. Replicas of the lowest priority level that are healthy, have capacity, and were not tried by this request.
2. Such replicas of the next levels.
3. Replicas that this request already tried.

A replica is healthy if it has passed its checks and is neither ejected nor corrupt. It has capacity if its
circuit breaker and its concurrency limit admit a request. If too few replicas are healthy, all but the
corrupt ones are used (panic mode).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agentguard.backends.base import BackendRequest
from agentguard.backends.config import ANY_MODEL
from agentguard.backends.load_balancing.base import LoadBalancingPolicy
from agentguard.backends.replica import Replica
from agentguard.errors import BackendError, CircuitOpen, Overloaded, ResilienceError
from agentguard.resilience import (
    Deadline,
    EventKind,
    MonitoredStream,
    OutlierDetection,
    OutlierDetectionOptions,
    RequestPriority,
    Runtime,
)
from agentguard.resilience.base import OVERLOAD_STATUSES, CallOutcome, classify_outcome

Tier = tuple[Replica, ...]


class NoReplica(BackendError):
    """No replica serves the requested model and API; the request was not sent.

    Attributes:
        is_drained: True if such replicas exist but all are draining.
    """

    code = "no_replica"

    def __init__(self, *, is_drained: bool = False) -> None:
        self.is_drained = is_drained
        reason = "every replica for this request is drained"
        if not is_drained:
            reason = "no replica serves this model over this API"
        super().__init__(reason, status=404, stage="unsent")


class AttemptContext:
    """Context of one request in the pool, with the results of its attempts."""

    __slots__ = (
        "attempts",
        "idempotent",
        "is_hedged",
        "is_panic",
        "is_resumption",
        "priority",
        "request",
        "running_count",
    )

    def __init__(self, request: BackendRequest, *, is_resumption: bool = False) -> None:
        self.request = request
        self.idempotent: bool = request.idempotent
        self.priority: RequestPriority = request.priority
        self.is_resumption = is_resumption  # requires a resumable replica
        self.attempts = self.running_count = 0
        self.is_hedged = self.is_panic = False

    def build_notes(self) -> tuple[tuple[str, str], ...]:
        """Return the notes on the attempts; empty after a single ordinary attempt."""
        notes: tuple[tuple[str, str], ...] = ()
        if self.attempts > 1:
            notes = (("attempts", str(self.attempts)), ("tried", ",".join(self.request.tried_replicas)))
        if self.is_hedged:
            notes = (*notes, ("hedged", "1"))
        return (*notes, ("panic", "1")) if self.is_panic else notes


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """Candidates for one model and API until the next change: usable tiers, and replicas in cooldown."""

    tiers: tuple[Tier, ...]
    cooling_down: Tier
    is_panic: bool


def build_tiers(
    replicas: list[Replica], healthy: set[str], now: float, panic_threshold: float
) -> CandidateSet:
    """Return the candidates of the tiers whose share of usable replicas reaches the panic threshold.

    If no tier does, all replicas are candidates (panic mode).

    Args:
        replicas: replicas that serve the request and are not corrupt.
        healthy: names of the replicas that are not ejected.
        now: clock time in seconds.
        panic_threshold: percentage of usable replicas below which a tier is skipped.
    """
    levels: dict[int, list[Replica]] = {}
    for one in replicas:
        levels.setdefault(one.options.priority, []).append(one)
    tiers: list[Tier] = []
    cooling_down: list[Replica] = []
    for _, members in sorted(levels.items()):
        usable = [
            one
            for one in members
            if not one.failed_checks and one.name in healthy and one.hinted_until <= now
        ]
        if usable and len(usable) >= panic_threshold / 100 * len(members):
            tiers.append(tuple(one for one in usable if one.cooldown_until <= now))
            cooling_down += [one for one in usable if one.cooldown_until > now]
    tiers = [tier for tier in tiers if tier]
    if not tiers and not cooling_down:
        return CandidateSet(tuple(tuple(members) for _, members in sorted(levels.items())), (), is_panic=True)
    return CandidateSet(tuple(tiers) or (tuple(cooling_down),), tuple(cooling_down), is_panic=False)


def list_available(tier: Tier, context: AttemptContext, skipped: Tier) -> list[Replica]:
    """Return the replicas of a tier that can take a request now."""
    return [
        one
        for one in tier
        if one.is_ready and one not in skipped and (one.options.resumable or not context.is_resumption)
    ]


def build_unavailable_error(candidates: CandidateSet, *, is_hedge: bool) -> ResilienceError:
    """Build the error for a request that no replica can take."""
    if is_hedge:
        return Overloaded("there is no other replica")
    waits = [
        max(0.0, one.breaker.remaining_break_s)
        for tier in (*candidates.tiers, candidates.cooling_down)
        for one in tier
        if one.breaker is not None and not one.breaker.is_ready
    ]
    if waits:
        return CircuitOpen("the circuit breaker of every replica is open", retry_after_s=min(waits))
    return Overloaded("every replica is at its concurrency limit")


MAX_COOLDOWN_S = 60.0
"""Upper bound on the cooldown that a replica requests, if there are other replicas."""


class LoadBalancer:
    """Load balancer of a pool: it chooses replicas, sends to them and records the results.

    All methods except `send` are synchronous and therefore atomic.

    Attributes:
        replicas: members by name, in configuration order.
        has_resumable_replica: True if a replica can resume streams.
        outlier_detection: outlier detection among the replicas.
    """

    def __init__(
        self, policy: LoadBalancingPolicy, outlier_options: OutlierDetectionOptions | None, runtime: Runtime
    ) -> None:
        self.policy, self._runtime = policy, runtime
        self.replicas: dict[str, Replica] = {}
        self.has_resumable_replica = False
        self._set_outlier_detection(outlier_options)
        self._candidates: dict[tuple[str, str], CandidateSet] = {}
        self._panicking_keys: frozenset[tuple[str, str]] = frozenset()
        self._known_models: frozenset[str] = frozenset()
        self._seen_change_count, self._refresh_at = -1, -math.inf

    def _set_outlier_detection(self, outlier_options: OutlierDetectionOptions | None) -> None:
        self.outlier_options = outlier_options
        self._panic_threshold = (outlier_options or OutlierDetectionOptions()).panic_threshold
        self.outlier_detection = OutlierDetection(
            self.replicas, outlier_options or OutlierDetectionOptions(), self._runtime
        )

    def reconfigure(
        self, policy: LoadBalancingPolicy | None, outlier_options: OutlierDetectionOptions | None
    ) -> None:
        """Replace the policy, if one is given, and the ejection options, if they differ."""
        self.policy = policy or self.policy
        if outlier_options != self.outlier_options:
            self._set_outlier_detection(outlier_options)
        self.invalidate()

    def set_replicas(self, replicas: Iterable[Replica]) -> None:
        """Replace the replicas, in this order; remaining replicas keep their records."""
        new_replicas = {replica.name: replica for replica in replicas}
        for name in [*self.replicas]:
            if new_replicas.get(name) is not self.replicas[name]:
                self.outlier_detection.remove(name)
        for name in new_replicas:
            self.outlier_detection.add(name)
        self.replicas = new_replicas
        self._known_models = frozenset(
            model for member in new_replicas.values() for model in member.options.models
        )
        self.has_resumable_replica = any(member.options.resumable for member in new_replicas.values())
        self.invalidate()

    def invalidate(self) -> None:
        """Discard the cached candidates after a change of a replica."""
        self._seen_change_count = -1

    @property
    def model_names(self) -> list[str]:
        """Return the models in the replicas' configuration, sorted."""
        return sorted(self._known_models - {ANY_MODEL})

    def count_available(self, request: BackendRequest) -> int:
        """Return the number of replicas that can take the request now.

        Raises NoReplica, or CircuitOpen if all replicas are corrupt.
        """
        candidates, context = self._get_candidates(request), AttemptContext(request)
        return sum(len(list_available(tier, context, ())) for tier in candidates.tiers)

    @property
    def panicking_groups(self) -> list[str]:
        """Return the models and APIs in panic mode, as ``model/api``."""
        return sorted(f"{model or ANY_MODEL}/{api or ANY_MODEL}" for model, api in self._panicking_keys)

    async def send(self, context: AttemptContext, deadline: Deadline) -> Any:
        """Send a request to the chosen replica; choose again if the replica rejects it locally."""
        request, hedge, now = context.request, context.running_count > 0, self._runtime.clock.now
        skipped: Tier = ()
        rejection: ResilienceError | None = None
        context.running_count += 1
        try:
            while True:
                replica = self._select_replica(context, skipped, rejection, is_hedge=hedge)
                request.tried_replicas.append(replica.name)
                context.attempts += 1
                context.is_hedged = context.is_hedged or hedge
                replica.inflight += 1
                started = now()
                try:
                    response = await replica.send(request, deadline)
                except BaseException as error:
                    self._on_call_end(replica, error, deadline)
                    if not isinstance(error, CircuitOpen | Overloaded):
                        if isinstance(error, BackendError):
                            self._apply_retry_after(replica, context, error)
                        raise
                    # the replica's strategies rejected the request, so nothing was sent
                    rejection, skipped = error, (*skipped, replica)
                    request.tried_replicas.remove(replica.name)
                    context.attempts -= 1
                else:
                    return self._on_response(replica, response, now() - started, deadline)
        finally:
            context.running_count -= 1

    def _on_response(self, replica: Replica, response: Any, seconds: float, deadline: Deadline) -> Any:
        """Record a response, or the beginning of one; a stream is recorded again at its end."""
        replica.record_success(seconds)
        if isinstance(response, MonitoredStream):
            response.add_end_callback(lambda error: self._on_call_end(replica, error, deadline))
        else:
            replica.on_request_end()
            if self.outlier_options is not None and self.replicas.get(replica.name) is replica:
                self.outlier_detection.record(replica.name, True)
        return response

    def _on_call_end(self, replica: Replica, error: BaseException | None, deadline: Deadline) -> None:
        """Record the end of a response, or its failure."""
        replica.on_request_end()
        outcome = classify_outcome(error, deadline)
        if outcome is CallOutcome.IGNORED:
            return
        if error is not None and not isinstance(error, CircuitOpen | Overloaded):
            replica.record_error(error, self._runtime.clock.now())
        if self.outlier_options is not None and self.replicas.get(replica.name) is replica:
            self.outlier_detection.record(replica.name, outcome is CallOutcome.SUCCESS)

    def _apply_retry_after(self, replica: Replica, context: AttemptContext, error: BackendError) -> None:
        """Put a replica in cooldown as it requested.

        The request need not wait if another replica is available.
        """
        retry_after_s = error.retry_after_s
        if error.status in OVERLOAD_STATUSES and retry_after_s is not None and retry_after_s > 0:
            replica.cooldown_until = self._runtime.clock.now() + min(retry_after_s, MAX_COOLDOWN_S)
            self.invalidate()
            if self._find_untried(self._get_candidates(context.request), context, ()):
                error.retry_after_s = None

    def _select_replica(
        self, context: AttemptContext, skipped: Tier, rejection: ResilienceError | None, *, is_hedge: bool
    ) -> Replica:
        request = context.request
        if request.pinned_replica:
            pinned_replica = self.replicas.get(request.pinned_replica)
            if is_hedge:
                raise Overloaded("no other replica has the response that the request continues")
            if (
                pinned_replica is not None
                and not pinned_replica.is_corrupt
                and list_available((pinned_replica,), context, skipped)
            ):
                return pinned_replica
        candidate_set = self._get_candidates(request)
        if candidate_set.is_panic:
            context.is_panic = True
        if not request.tried_replicas and not skipped and not context.is_resumption:
            tier = candidate_set.tiers[0]
            replica = tier[0] if len(tier) == 1 else self.policy.choose(request, tier)
            if replica.is_ready:
                return replica
        candidates = self._find_untried(candidate_set, context, skipped)
        if not candidates and not is_hedge:
            candidates = self._find_any(candidate_set, context, skipped)
        if candidates:
            return self.policy.choose(request, candidates)
        raise rejection or build_unavailable_error(candidate_set, is_hedge=is_hedge)

    def _find_untried(
        self, candidates: CandidateSet, context: AttemptContext, skipped: Tier
    ) -> list[Replica]:
        """Return the available, untried replicas of the lowest tier that has one."""
        tried_names = context.request.tried_replicas
        for tier in candidates.tiers:
            untried = [
                replica
                for replica in list_available(tier, context, skipped)
                if replica.name not in tried_names
            ]
            if untried:
                return untried
        return []

    def _find_any(self, candidates: CandidateSet, context: AttemptContext, skipped: Tier) -> list[Replica]:
        """Return the available replicas of the lowest tier that has one; replicas in cooldown come last."""
        for tier in (*candidates.tiers, candidates.cooling_down):
            usable = list_available(tier, context, skipped)
            if usable:
                return usable
        return []

    def _get_candidates(self, request: BackendRequest) -> CandidateSet:
        """Return the candidates for a request. Raises NoReplica, or CircuitOpen if all are corrupt."""
        if (
            self._seen_change_count != self.outlier_detection.change_count
            or self._runtime.clock.now() >= self._refresh_at
        ):
            self._refresh()
        model = request.model
        if model and model not in self._known_models:
            model = ANY_MODEL  # limits the cache: clients may send any name
        key = (model, request.api.name if request.api is not None else "")
        return self._candidates.get(key) or self._build_candidates(key)

    def _refresh(self) -> None:
        """Update ejections and cooldowns; clear the cached candidates."""
        now = self._runtime.clock.now()
        self.outlier_detection.list_healthy_hosts()
        self._seen_change_count = self.outlier_detection.change_count
        pending_changes = [
            at
            for replica in self.replicas.values()
            for at in (replica.cooldown_until, replica.hinted_until)
            if at > now
        ]
        self._refresh_at = min([self.outlier_detection.next_change_at, *pending_changes])
        self._candidates = {}

    def _build_candidates(self, key: tuple[str, str]) -> CandidateSet:
        serving = [one for one in self.replicas.values() if not one.is_draining and one.can_serve(*key)]
        if not serving:
            raise NoReplica(is_drained=any(one.can_serve(*key) for one in self.replicas.values()))
        correct_replicas = [one for one in serving if not one.is_corrupt]
        if not correct_replicas:
            raise CircuitOpen("every replica for this request gives wrong answers")
        candidates = build_tiers(
            correct_replicas,
            set(self.outlier_detection.list_healthy_hosts()),
            self._runtime.clock.now(),
            self._panic_threshold,
        )
        self._candidates[key] = candidates
        if candidates.is_panic and key not in self._panicking_keys:
            self._runtime.emit_event(
                EventKind.PANIC, "choice", reason=f"too few of {len(serving)} replicas usable"
            )
        self._panicking_keys = (
            self._panicking_keys | {key} if candidates.is_panic else self._panicking_keys - {key}
        )
        return candidates
