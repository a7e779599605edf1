"""Which replica gets an attempt: the seam between the strategies over the pool and those at each replica.

Each attempt is chosen anew. First come the replicas of the lowest tier that are sound (not found down, not
ejected, not corrupt), can take one more (breaker, limit), and were not tried by this request; then those of
the next tiers; then, for lack of others, those that were tried. Where too few are sound, all but corrupt ones
are used: panic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from agentguard.backends.attempt_context import AttemptContext, NoReplica
from agentguard.backends.base import BackendRequest
from agentguard.backends.candidates import CandidateSet, Tier, available, build_tiers, unavailable_error
from agentguard.backends.config import ANY
from agentguard.backends.load_balancing.base import LoadBalancingPolicy
from agentguard.backends.replica import Replica
from agentguard.errors import BackendError, CircuitOpen, Overloaded, ResilienceError
from agentguard.resilience import Deadline, EventKind, Outlier, Outliers, Runtime, Stream
from agentguard.resilience.base import OVERLOAD, CallOutcome, verdict

LONGEST_REST_S = 60.0
"""How long a replica that asked for a pause is passed over at most, where there are others."""


class LoadBalancer:
    """Chooses, sends, and keeps the records that the next choice goes by. All but `send` is synchronous.

    Attributes:
        replicas: the members by name, in the order of the configuration.
        continues: whether any of them continues answers.
        outliers: who is ejected.
    """

    def __init__(self, chooser: LoadBalancingPolicy, outlier: Outlier | None, runtime: Runtime) -> None:
        self.chooser, self._runtime = chooser, runtime
        self.replicas: dict[str, Replica] = {}
        self.continues = False
        self._arrange_outliers(outlier)
        self._offers: dict[tuple[str, str], CandidateSet] = {}
        self._panics: frozenset[tuple[str, str]] = frozenset()
        self._named: frozenset[str] = frozenset()
        self._seen, self._due = -1, -math.inf

    def _arrange_outliers(self, outlier: Outlier | None) -> None:
        self.outlier = outlier
        self._panic = (outlier or Outlier()).panic
        self.outliers = Outliers(self.replicas, outlier or Outlier(), self._runtime)

    def arrange(self, chooser: LoadBalancingPolicy | None, outlier: Outlier | None) -> None:
        """Take over another policy, if one is given, and other options of ejection, if they differ."""
        self.chooser = chooser or self.chooser
        if outlier != self.outlier:
            self._arrange_outliers(outlier)
        self.touch()

    def set_members(self, replicas: Iterable[Replica]) -> None:
        """These are the replicas now, in this order; those that stay keep their records."""
        new = {replica.name: replica for replica in replicas}
        for name in [*self.replicas]:
            if new.get(name) is not self.replicas[name]:
                self.outliers.remove(name)
        for name in new:
            self.outliers.add(name)
        self.replicas = new
        self._named = frozenset(model for one in new.values() for model in one.options.models)
        self.continues = any(one.options.continues for one in new.values())
        self.touch()

    def touch(self) -> None:
        """Something about a replica changed: look at all of them anew."""
        self._seen = -1

    @property
    def models(self) -> list[str]:
        """The models that replicas name, sorted."""
        return sorted(self._named - {ANY})

    def count(self, request: BackendRequest) -> int:
        """How many replicas could take a request now. Raises NoReplica."""
        offer, trip = self._offer(request), AttemptContext(request)
        return sum(len(available(tier, trip, ())) for tier in offer.tiers)

    @property
    def panicking(self) -> list[str]:
        """For which models and APIs too few replicas are sound, as ``model/api``."""
        return sorted(f"{model or ANY}/{api or ANY}" for model, api in self._panics)

    async def send(self, trip: AttemptContext, deadline: Deadline) -> Any:
        """Send a request to the replica that is chosen; to another one where that can't take it after all."""
        request, hedge, now = trip.request, trip.running > 0, self._runtime.clock.now
        skipped: Tier = ()
        refused: ResilienceError | None = None
        trip.running += 1
        try:
            while True:
                replica = self._pick(trip, skipped, refused, hedge=hedge)
                request.tried.append(replica.name)
                trip.attempts += 1
                trip.hedged = trip.hedged or hedge
                replica.inflight += 1
                started = now()
                try:
                    response = await replica.send(request, deadline)
                except BaseException as error:
                    self._over(replica, error, deadline)
                    if not isinstance(error, CircuitOpen | Overloaded):
                        if isinstance(error, BackendError):
                            self._rest(replica, trip, error)
                        raise
                    refused, skipped = (
                        error,
                        (*skipped, replica),
                    )  # held back at the replica: nothing was sent
                    request.tried.remove(replica.name)
                    trip.attempts -= 1
                else:
                    return self._answered(replica, response, now() - started, deadline)
        finally:
            trip.running -= 1

    def _answered(self, replica: Replica, response: Any, seconds: float, deadline: Deadline) -> Any:
        """A replica gave an answer, or the beginning of one: keep its records until that is over."""
        replica.succeeded(seconds)
        if isinstance(response, Stream):
            response.on_end(lambda error: self._over(replica, error, deadline))
        else:
            replica.left()
            if self.outlier is not None and self.replicas.get(replica.name) is replica:
                self.outliers.record(replica.name, True)
        return response

    def _over(self, replica: Replica, error: BaseException | None, deadline: Deadline) -> None:
        """An answer is over, or there is none."""
        replica.left()
        outcome = verdict(error, deadline)
        if outcome is CallOutcome.NOTHING:
            return
        if error is not None and not isinstance(error, CircuitOpen | Overloaded):
            replica.erred(error, self._runtime.clock.now())
        if self.outlier is not None and self.replicas.get(replica.name) is replica:
            self.outliers.record(replica.name, outcome is CallOutcome.GOOD)

    def _rest(self, replica: Replica, trip: AttemptContext, error: BackendError) -> None:
        """A replica asked for a pause: it gets it, and the request need not wait if another one is there."""
        asked = error.retry_after_s
        if error.status in OVERLOAD and asked is not None and asked > 0:
            replica.rests_until = self._runtime.clock.now() + min(asked, LONGEST_REST_S)
            self.touch()
            if self._fresh(self._offer(trip.request), trip, ()):
                error.retry_after_s = None

    def _pick(
        self, trip: AttemptContext, skipped: Tier, refused: ResilienceError | None, *, hedge: bool
    ) -> Replica:
        request = trip.request
        if request.replica:
            holder = self.replicas.get(request.replica)
            if hedge:
                raise Overloaded("no other replica has what the request goes on with")
            if holder is not None and available((holder,), trip, skipped) and not holder.corrupt:
                return holder
        offer = self._offer(request)
        if offer.panic:
            trip.panic = True
        if not request.tried and not skipped and not trip.continues:
            replica = self.chooser.choose(request, offer.tiers[0])
            if replica.ready:
                return replica
        found = self._fresh(offer, trip, skipped)
        if not found and not hedge:
            found = self._any(offer, trip, skipped)
        if found:
            return self.chooser.choose(request, found)
        raise refused or unavailable_error(offer, hedge=hedge)

    def _fresh(self, offer: CandidateSet, trip: AttemptContext, skipped: Tier) -> list[Replica]:
        """What can take the request and was not tried by it, of the lowest tier that has such."""
        tried = trip.request.tried
        for tier in offer.tiers:
            found = [one for one in available(tier, trip, skipped) if one.name not in tried]
            if found:
                return found
        return []

    def _any(self, offer: CandidateSet, trip: AttemptContext, skipped: Tier) -> list[Replica]:
        """What can take the request at all; what rests comes last."""
        for tier in (*offer.tiers, offer.resting):
            found = available(tier, trip, skipped)
            if found:
                return found
        return []

    def _offer(self, request: BackendRequest) -> CandidateSet:
        """What there is for a request's model and API. Raises NoReplica, or CircuitOpen if none is sound."""
        if self._seen != self.outliers.changes or self._runtime.clock.now() >= self._due:
            self._look()
        model = request.model
        if model and model not in self._named:
            model = ANY  # so that clients can't fill the memory with names
        key = (model, request.api.name if request.api is not None else "")
        return self._offers.get(key) or self._make(key)

    def _look(self) -> None:
        """Let the time pass for ejections and pauses; forget the offers."""
        now = self._runtime.clock.now()
        self.outliers.kept()
        self._seen = self.outliers.changes
        later = [
            at for one in self.replicas.values() for at in (one.rests_until, one.hinted_until) if at > now
        ]
        self._due = min([self.outliers.due, *later])
        self._offers = {}

    def _make(self, key: tuple[str, str]) -> CandidateSet:
        serving = [one for one in self.replicas.values() if not one.draining and one.serves(*key)]
        if not serving:
            raise NoReplica(drained=any(one.serves(*key) for one in self.replicas.values()))
        sound = [one for one in serving if not one.corrupt]
        if not sound:
            raise CircuitOpen("every replica that serves this answers wrongly")
        offer = build_tiers(sound, set(self.outliers.kept()), self._runtime.clock.now(), self._panic)
        self._offers[key] = offer
        if offer.panic and key not in self._panics:
            self._runtime.tell(EventKind.PANIC, "choice", reason=f"too few of {len(serving)} replicas usable")
        self._panics = self._panics | {key} if offer.panic else self._panics - {key}
        return offer
