"""Which replica gets an attempt: the seam between the strategies over the pool and those at each replica.

Each attempt is chosen anew. First come the replicas of the lowest tier that are sound (not found down, not
ejected, not corrupt), can take one more (breaker, limit), and were not tried by this request; then those of
the next tiers; then, for lack of others, those that were tried. Where too few are sound, all but corrupt ones
are used: panic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agentguard.backends.attempt_context import AttemptContext, NoReplica
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
    OutlierDetector,
    Runtime,
)
from agentguard.resilience.base import OVERLOAD_STATUSES, CallOutcome, classify_outcome

Tier = tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """The replicas for one model and API, until something changes: tiers to use, and those that rest."""

    tiers: tuple[Tier, ...]
    cooling_down: Tier
    is_panic: bool


def build_tiers(
    replicas: list[Replica], healthy: set[str], now: float, panic_threshold: float
) -> CandidateSet:
    """The tiers of which enough can be used; all of them where there is none."""
    levels: dict[int, list[Replica]] = {}
    for one in replicas:
        levels.setdefault(one.options.priority, []).append(one)
    tiers: list[Tier] = []
    resting: list[Replica] = []
    for _, members in sorted(levels.items()):
        usable = [
            one
            for one in members
            if not one.failed_checks and one.name in healthy and one.hinted_until <= now
        ]
        if usable and len(usable) >= panic_threshold * len(members):
            tiers.append(tuple(one for one in usable if one.cooldown_until <= now))
            resting += [one for one in usable if one.cooldown_until > now]
    tiers = [tier for tier in tiers if tier]
    if not tiers and not resting:
        return CandidateSet(tuple(tuple(members) for _, members in sorted(levels.items())), (), is_panic=True)
    return CandidateSet(tuple(tiers) or (tuple(resting),), tuple(resting), is_panic=False)


def available(tier: Tier, context: AttemptContext, skipped: Tier) -> list[Replica]:
    """Those of a tier that could take a request now."""
    return [
        one
        for one in tier
        if one.is_ready and one not in skipped and (one.options.resumable or not context.is_resumption)
    ]


def unavailable_error(candidates: CandidateSet, *, is_hedge: bool) -> ResilienceError:
    """Why no replica can take a request."""
    if is_hedge:
        return Overloaded("there is no other replica to ask")
    waits = [
        max(0.0, one.breaker.remaining_break_s)
        for tier in (*candidates.tiers, candidates.cooling_down)
        for one in tier
        if one.breaker is not None and not one.breaker.is_ready
    ]
    if waits:
        return CircuitOpen("every replica failed too often just now", retry_after_s=min(waits))
    return Overloaded("every replica has as many requests as it may have")


MAX_COOLDOWN_S = 60.0
"""How long a replica that asked for a pause is passed over at most, where there are others."""


class LoadBalancer:
    """Chooses, sends, and keeps the records that the next choice goes by. All but `send` is synchronous.

    Attributes:
        replicas: the members by name, in the order of the configuration.
        has_resumable_replica: whether any of them continues answers.
        outlier_detector: who is ejected.
    """

    def __init__(
        self, policy: LoadBalancingPolicy, outlier_options: OutlierDetection | None, runtime: Runtime
    ) -> None:
        self.policy, self._runtime = policy, runtime
        self.replicas: dict[str, Replica] = {}
        self.has_resumable_replica = False
        self._set_outlier_detection(outlier_options)
        self._candidates: dict[tuple[str, str], CandidateSet] = {}
        self._panicking_keys: frozenset[tuple[str, str]] = frozenset()
        self._known_models: frozenset[str] = frozenset()
        self._seen_change_count, self._refresh_at = -1, -math.inf

    def _set_outlier_detection(self, outlier_options: OutlierDetection | None) -> None:
        self.outlier_options = outlier_options
        self._panic_threshold = (outlier_options or OutlierDetection()).panic_threshold
        self.outlier_detector = OutlierDetector(
            self.replicas, outlier_options or OutlierDetection(), self._runtime
        )

    def reconfigure(
        self, policy: LoadBalancingPolicy | None, outlier_options: OutlierDetection | None
    ) -> None:
        """Take over another policy, if one is given, and other options of ejection, if they differ."""
        self.policy = policy or self.policy
        if outlier_options != self.outlier_options:
            self._set_outlier_detection(outlier_options)
        self.invalidate()

    def set_replicas(self, replicas: Iterable[Replica]) -> None:
        """These are the replicas now, in this order; those that stay keep their records."""
        new = {replica.name: replica for replica in replicas}
        for name in [*self.replicas]:
            if new.get(name) is not self.replicas[name]:
                self.outlier_detector.remove(name)
        for name in new:
            self.outlier_detector.add(name)
        self.replicas = new
        self._known_models = frozenset(model for one in new.values() for model in one.options.models)
        self.has_resumable_replica = any(one.options.resumable for one in new.values())
        self.invalidate()

    def invalidate(self) -> None:
        """Something about a replica changed: look at all of them anew."""
        self._seen_change_count = -1

    @property
    def model_names(self) -> list[str]:
        """The models that replicas name, sorted."""
        return sorted(self._known_models - {ANY_MODEL})

    def count_available(self, request: BackendRequest) -> int:
        """How many replicas could take a request now. Raises NoReplica."""
        offer, trip = self._get_candidates(request), AttemptContext(request)
        return sum(len(available(tier, trip, ())) for tier in offer.tiers)

    @property
    def panicking_groups(self) -> list[str]:
        """For which models and APIs too few replicas are sound, as ``model/api``."""
        return sorted(f"{model or ANY_MODEL}/{api or ANY_MODEL}" for model, api in self._panicking_keys)

    async def send(self, context: AttemptContext, deadline: Deadline) -> Any:
        """Send a request to the replica that is chosen; to another one where that can't take it after all."""
        request, hedge, now = context.request, context.running_count > 0, self._runtime.clock.now
        skipped: Tier = ()
        refused: ResilienceError | None = None
        context.running_count += 1
        try:
            while True:
                replica = self._select_replica(context, skipped, refused, is_hedge=hedge)
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
                    refused, skipped = (
                        error,
                        (*skipped, replica),
                    )  # held back at the replica: nothing was sent
                    request.tried_replicas.remove(replica.name)
                    context.attempts -= 1
                else:
                    return self._on_response(replica, response, now() - started, deadline)
        finally:
            context.running_count -= 1

    def _on_response(self, replica: Replica, response: Any, seconds: float, deadline: Deadline) -> Any:
        """A replica gave an answer, or the beginning of one: keep its records until that is over."""
        replica.record_success(seconds)
        if isinstance(response, MonitoredStream):
            response.add_end_callback(lambda error: self._on_call_end(replica, error, deadline))
        else:
            replica.on_request_end()
            if self.outlier_options is not None and self.replicas.get(replica.name) is replica:
                self.outlier_detector.record(replica.name, True)
        return response

    def _on_call_end(self, replica: Replica, error: BaseException | None, deadline: Deadline) -> None:
        """An answer is over, or there is none."""
        replica.on_request_end()
        outcome = classify_outcome(error, deadline)
        if outcome is CallOutcome.IGNORED:
            return
        if error is not None and not isinstance(error, CircuitOpen | Overloaded):
            replica.record_error(error, self._runtime.clock.now())
        if self.outlier_options is not None and self.replicas.get(replica.name) is replica:
            self.outlier_detector.record(replica.name, outcome is CallOutcome.SUCCESS)

    def _apply_retry_after(self, replica: Replica, context: AttemptContext, error: BackendError) -> None:
        """A replica asked for a pause: it gets it, and the request need not wait if another one is there."""
        asked = error.retry_after_s
        if error.status in OVERLOAD_STATUSES and asked is not None and asked > 0:
            replica.cooldown_until = self._runtime.clock.now() + min(asked, MAX_COOLDOWN_S)
            self.invalidate()
            if self._find_untried(self._get_candidates(context.request), context, ()):
                error.retry_after_s = None

    def _select_replica(
        self, context: AttemptContext, skipped: Tier, rejection: ResilienceError | None, *, is_hedge: bool
    ) -> Replica:
        request = context.request
        if request.pinned_replica:
            holder = self.replicas.get(request.pinned_replica)
            if is_hedge:
                raise Overloaded("no other replica has what the request goes on with")
            if holder is not None and available((holder,), context, skipped) and not holder.is_corrupt:
                return holder
        offer = self._get_candidates(request)
        if offer.is_panic:
            context.is_panic = True
        if not request.tried_replicas and not skipped and not context.is_resumption:
            replica = self.policy.choose(request, offer.tiers[0])
            if replica.is_ready:
                return replica
        found = self._find_untried(offer, context, skipped)
        if not found and not is_hedge:
            found = self._find_any(offer, context, skipped)
        if found:
            return self.policy.choose(request, found)
        raise rejection or unavailable_error(offer, is_hedge=is_hedge)

    def _find_untried(
        self, candidates: CandidateSet, context: AttemptContext, skipped: Tier
    ) -> list[Replica]:
        """What can take the request and was not tried by it, of the lowest tier that has such."""
        tried = context.request.tried_replicas
        for tier in candidates.tiers:
            found = [one for one in available(tier, context, skipped) if one.name not in tried]
            if found:
                return found
        return []

    def _find_any(self, candidates: CandidateSet, context: AttemptContext, skipped: Tier) -> list[Replica]:
        """What can take the request at all; what rests comes last."""
        for tier in (*candidates.tiers, candidates.cooling_down):
            found = available(tier, context, skipped)
            if found:
                return found
        return []

    def _get_candidates(self, request: BackendRequest) -> CandidateSet:
        """What there is for a request's model and API. Raises NoReplica, or CircuitOpen if none is sound."""
        if (
            self._seen_change_count != self.outlier_detector.change_count
            or self._runtime.clock.now() >= self._refresh_at
        ):
            self._refresh()
        model = request.model
        if model and model not in self._known_models:
            model = ANY_MODEL  # so that clients can't fill the memory with names
        key = (model, request.api.name if request.api is not None else "")
        return self._candidates.get(key) or self._build_candidates(key)

    def _refresh(self) -> None:
        """Let the time pass for ejections and pauses; forget the offers."""
        now = self._runtime.clock.now()
        self.outlier_detector.list_healthy_hosts()
        self._seen_change_count = self.outlier_detector.change_count
        later = [
            at for one in self.replicas.values() for at in (one.cooldown_until, one.hinted_until) if at > now
        ]
        self._refresh_at = min([self.outlier_detector.next_change_at, *later])
        self._candidates = {}

    def _build_candidates(self, key: tuple[str, str]) -> CandidateSet:
        serving = [one for one in self.replicas.values() if not one.is_draining and one.can_serve(*key)]
        if not serving:
            raise NoReplica(is_drained=any(one.can_serve(*key) for one in self.replicas.values()))
        sound = [one for one in serving if not one.is_corrupt]
        if not sound:
            raise CircuitOpen("every replica that serves this answers wrongly")
        offer = build_tiers(
            sound,
            set(self.outlier_detector.list_healthy_hosts()),
            self._runtime.clock.now(),
            self._panic_threshold,
        )
        self._candidates[key] = offer
        if offer.is_panic and key not in self._panicking_keys:
            self._runtime.emit_event(
                EventKind.PANIC, "choice", reason=f"too few of {len(serving)} replicas usable"
            )
        self._panicking_keys = (
            self._panicking_keys | {key} if offer.is_panic else self._panicking_keys - {key}
        )
        return offer
