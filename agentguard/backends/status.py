"""What a status page tells of a pool: plain data for JSON, with no key and nothing of any request in it."""

from __future__ import annotations

import math
from typing import Any

from agentguard.backends.load_balancer import LoadBalancer
from agentguard.backends.replica import Replica
from agentguard.resilience import BoundStrategy, Hedge, Retry, Shed
from agentguard.resilience.hedge import Hedger
from agentguard.resilience.load_shedding import Shedder
from agentguard.resilience.outlier_ejection import HostState
from agentguard.resilience.retry import Retrier


def of_replica(replica: Replica, host: HostState | None, now: float) -> dict[str, Any]:
    """One replica's state; times are in seconds from now."""
    breaker = replica.breaker
    ejected = host is not None and host.ejected
    return {
        "name": replica.name,
        "url": replica.options.url,
        "tier": replica.options.tier,
        "weight": replica.weight,
        "state": _state(replica, ejected=ejected, now=now),
        "inflight": replica.inflight,
        "max_concurrent": replica.options.max_concurrent,
        "breaker": None if breaker is None else str(breaker.state),
        "breaker_opens_s": None if breaker is None or breaker.ready else round(max(0.0, breaker.left), 3),
        "ejections": 0 if host is None else host.times,
        "ejected_s": _left(host.until, now) if host is not None and ejected else None,
        "down": sorted(replica.down),
        "corrupt": replica.corrupt,
        "canary": replica.canary or None,
        "rests_s": _left(replica.rests_until, now),
        "hinted_s": _left(replica.hinted_until, now),
        "good": replica.good,
        "failed": dict(replica.failed),
        "last_errors": [{"code": code, "ago_s": round(now - at, 3)} for at, code in replica.errors],
        "latency_s": replica.quantiles(),
    }


def of_layers(layers: dict[str, BoundStrategy]) -> dict[str, Any]:
    """What the strategies over the pool know: budgets, limit, queue."""
    found: dict[str, Any] = {}
    retrier, hedger, shedder = layers.get(Retry.name), layers.get(Hedge.name), layers.get(Shed.name)
    if isinstance(retrier, Retrier):
        found["retry"] = {"tokens": round(retrier.budget.tokens, 3)}
    if isinstance(hedger, Hedger):
        found["hedge"] = {"tokens": round(hedger.budget.tokens, 3), "delay_s": hedger.delay}
    if isinstance(shedder, Shedder):
        found["shed"] = {
            "limit": int(shedder.limit.value),
            "running": shedder.inflight,
            "waiting": shedder.waiting,
        }
    return found


def of_choice(choice: LoadBalancer, leaving: set[Replica], now: float) -> list[dict[str, Any]]:
    """All replicas, those that are leaving last."""
    hosts = choice.outliers.snapshot()
    return [
        *(of_replica(one, hosts.get(one.name), now) for one in choice.replicas.values()),
        *(of_replica(one, None, now) | {"state": "leaving"} for one in leaving),
    ]


def _left(until: float, now: float) -> float | None:
    return round(until - now, 3) if until > now and math.isfinite(until) else None


def _state(replica: Replica, *, ejected: bool, now: float) -> str:
    """The one word that says most: why it is not used, or that it is ``up``."""
    states = (
        ("draining", replica.draining),
        ("corrupt", replica.corrupt),
        ("down", bool(replica.down)),
        ("ejected", ejected),
        ("open", replica.breaker is not None and not replica.breaker.ready),
        ("hinted", replica.hinted_until > now),
        ("resting", replica.rests_until > now),
    )
    return next((name for name, holds in states if holds), "up")
