"""Status of a pool as JSON data; it contains no keys and no request data."""

from __future__ import annotations

import math
from typing import Any

from agentguard.backends import pipeline_config
from agentguard.backends.config import BackendsOptions, ReplicaOptions
from agentguard.backends.load_balancer import LoadBalancer
from agentguard.backends.replica import Replica
from agentguard.resilience import HedgeOptions, LoadSheddingOptions, ResilienceStrategy, RetryOptions
from agentguard.resilience.hedge import Hedge
from agentguard.resilience.load_shedding import LoadShedding
from agentguard.resilience.outlier_ejection import HostState
from agentguard.resilience.retry import Retry


def describe_backends(options: BackendsOptions) -> list[str]:
    """Describe the path of a request, outermost first: one line per strategy and per replica."""
    replicas = options.replicas
    pool_strategies, replica_strategies = (
        pipeline_config.select_pool_strategies(options.pipeline),
        pipeline_config.select_replica_strategies(options.pipeline),
    )
    lines = [strategy.describe() for strategy in pool_strategies]
    lines.append(f"choice of {len(replicas)} replicas: {options.load_balancing.describe()}")
    numbered = [
        f"{n}. {line}" for n, line in enumerate([*lines, *(one.describe() for one in replica_strategies)], 1)
    ]
    if replica_strategies:
        numbered.insert(len(lines), "   at each replica:")
    return [*numbered, *_describe_services(options), *(_describe_replica(one) for one in replicas)]


def _describe_services(options: BackendsOptions) -> list[str]:
    """Describe the components outside the path of a request."""
    parts: dict[str, object] = {
        "health": options.health,
        "probe": options.probe and options.probe.model_copy(update={"prompt": "...", "expected": "..."}),
        "quorum": options.quorum,
    }
    lines = [f"{name} {part if part is not None else 'off'}" for name, part in parts.items()]
    ejection = "outlier off" if options.outlier is None else options.outlier.describe()
    return [ejection, *lines, f"max_stream_resumptions={options.max_stream_resumptions}"]


def _describe_replica(replica: ReplicaOptions) -> str:
    models = ",".join(
        requested_model if requested_model == served_model else f"{requested_model}={served_model}"
        for requested_model, served_model in replica.models.items()
    )
    facts = {
        "priority": replica.priority,
        "weight": f"{replica.weight:g}",
        "models": models or "all",
        "apis": ",".join(replica.apis) if replica.apis is not None else "all",
        "resumable": replica.resumable,
        "max_concurrent": replica.max_concurrent or "unlimited",
    }
    return f"replica {replica.name} {replica.url} " + " ".join(
        f"{name}={fact}" for name, fact in facts.items()
    )


def build_replica_status(replica: Replica, host: HostState | None, now: float) -> dict[str, Any]:
    """Return the state of one replica; times are in seconds from now."""
    breaker = replica.breaker
    ejected = host is not None and host.is_ejected
    return {
        "name": replica.name,
        "url": replica.options.url,
        "priority": replica.options.priority,
        "weight": replica.weight,
        "state": _get_replica_state(replica, is_ejected=ejected, now=now),
        "inflight": replica.inflight,
        "max_concurrent": replica.options.max_concurrent,
        "circuit_breaker": None if breaker is None else str(breaker.state),
        "breaker_opens_s": None
        if breaker is None or breaker.is_ready
        else round(max(0.0, breaker.remaining_break_s), 3),
        "ejections": 0 if host is None else host.ejection_count,
        "ejected_s": _compute_seconds_until(host.ejected_until, now)
        if host is not None and ejected
        else None,
        "down": sorted(replica.failed_checks),
        "corrupt": replica.is_corrupt,
        "probe": replica.probe_outcome or None,
        "rests_s": _compute_seconds_until(replica.cooldown_until, now),
        "hinted_s": _compute_seconds_until(replica.hinted_until, now),
        "good": replica.successes,
        "failed": dict(replica.failures),
        "last_errors": [{"code": code, "ago_s": round(now - at, 3)} for at, code in replica.errors],
        "latency_s": replica.compute_latency_quantiles(),
    }


def build_strategy_status(bound_strategies: dict[str, ResilienceStrategy]) -> dict[str, Any]:
    """Return the state of the pool strategies: budgets, limit, queue."""
    status: dict[str, Any] = {}
    retry, hedge, load_shedding = (
        bound_strategies.get(RetryOptions.name),
        bound_strategies.get(HedgeOptions.name),
        bound_strategies.get(LoadSheddingOptions.name),
    )
    if isinstance(retry, Retry):
        status["retry"] = {"tokens": round(retry.budget.tokens, 3)}
    if isinstance(hedge, Hedge):
        status["hedge"] = {"tokens": round(hedge.budget.tokens, 3), "delay_s": hedge.delay}
    if isinstance(load_shedding, LoadShedding):
        status["load_shedding"] = {
            "limit": int(load_shedding.limit.value),
            "running": load_shedding.inflight,
            "waiting": load_shedding.queue_length,
        }
    return status


def build_replica_statuses(
    load_balancer: LoadBalancer, leaving: set[Replica], now: float
) -> list[dict[str, Any]]:
    """Return the state of all replicas; removed ones come last."""
    hosts = load_balancer.outlier_detection.snapshot()
    return [
        *(build_replica_status(one, hosts.get(one.name), now) for one in load_balancer.replicas.values()),
        *(build_replica_status(one, None, now) | {"state": "leaving"} for one in leaving),
    ]


def _compute_seconds_until(until: float, now: float) -> float | None:
    return round(until - now, 3) if until > now and math.isfinite(until) else None


def _get_replica_state(replica: Replica, *, is_ejected: bool, now: float) -> str:
    """Return the main state as one word: the reason why the replica is not used, or ``up``."""
    states = (
        ("draining", replica.is_draining),
        ("corrupt", replica.is_corrupt),
        ("down", bool(replica.failed_checks)),
        ("ejected", is_ejected),
        ("open", replica.breaker is not None and not replica.breaker.is_ready),
        ("hinted", replica.hinted_until > now),
        ("resting", replica.cooldown_until > now),
    )
    return next((name for name, applies in states if applies), "up")
