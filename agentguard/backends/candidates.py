"""The replicas that there are for a model and an API: in tiers, with those that rest, or in a panic."""

from __future__ import annotations

from dataclasses import dataclass

from agentguard.backends.attempt_context import AttemptContext
from agentguard.backends.replica import Replica
from agentguard.errors import CircuitOpen, Overloaded, ResilienceError

Tier = tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """The replicas for one model and API, until something changes: tiers to use, and those that rest."""

    tiers: tuple[Tier, ...]
    resting: Tier
    panic: bool


def build_tiers(sound: list[Replica], kept: set[str], now: float, panic: float) -> CandidateSet:
    """The tiers of which enough can be used; all of them where there is none."""
    levels: dict[int, list[Replica]] = {}
    for one in sound:
        levels.setdefault(one.options.tier, []).append(one)
    tiers: list[Tier] = []
    resting: list[Replica] = []
    for _, members in sorted(levels.items()):
        usable = [one for one in members if not one.down and one.name in kept and one.hinted_until <= now]
        if usable and len(usable) >= panic * len(members):
            tiers.append(tuple(one for one in usable if one.rests_until <= now))
            resting += [one for one in usable if one.rests_until > now]
    tiers = [tier for tier in tiers if tier]
    if not tiers and not resting:
        return CandidateSet(tuple(tuple(members) for _, members in sorted(levels.items())), (), panic=True)
    return CandidateSet(tuple(tiers) or (tuple(resting),), tuple(resting), panic=False)


def available(tier: Tier, trip: AttemptContext, skipped: Tier) -> list[Replica]:
    """Those of a tier that could take a request now."""
    return [
        one
        for one in tier
        if one.ready and one not in skipped and (one.options.continues or not trip.continues)
    ]


def unavailable_error(offer: CandidateSet, *, hedge: bool) -> ResilienceError:
    """Why no replica can take a request."""
    if hedge:
        return Overloaded("there is no other replica to ask")
    waits = [
        max(0.0, one.breaker.left)
        for tier in (*offer.tiers, offer.resting)
        for one in tier
        if one.breaker is not None and not one.breaker.ready
    ]
    if waits:
        return CircuitOpen("every replica failed too often just now", retry_after_s=min(waits))
    return Overloaded("every replica has as many requests as it may have")
