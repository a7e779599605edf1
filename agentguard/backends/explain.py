"""The pipeline of a pool in words, in the order in which it was built."""

from __future__ import annotations

from agentguard.backends import pipeline_config
from agentguard.backends.config import BackendsOptions, ReplicaOptions


def explain(options: BackendsOptions) -> list[str]:
    """What a request passes, outermost first: one line a strategy, with every option, and one a replica."""
    replicas = options.replicas
    over, at = pipeline_config.over(options.pipeline), pipeline_config.at_replica(options.pipeline)
    lines = [strategy.describe() for strategy in over]
    lines.append(f"choice of {len(replicas)} replicas: {options.policy.describe()}")
    numbered = [f"{n}. {line}" for n, line in enumerate([*lines, *(one.describe() for one in at)], 1)]
    numbered.insert(len(lines), "   at each replica:") if at else None
    return [*numbered, *_beside(options), *(_replica(one) for one in replicas)]


def _beside(options: BackendsOptions) -> list[str]:
    """What stands beside the requests' way."""
    parts: dict[str, object] = {
        "health": options.health,
        "canary": options.canary and options.canary.model_copy(update={"ask": "...", "expect": "..."}),
        "votes": options.votes,
    }
    lines = [f"{name} {part if part is not None else 'off'}" for name, part in parts.items()]
    ejection = "outlier off" if options.outlier is None else options.outlier.describe()
    return [ejection, *lines, f"continuations most={options.continuations}"]


def _replica(one: ReplicaOptions) -> str:
    models = ",".join(asked if asked == name else f"{asked}={name}" for asked, name in one.models.items())
    facts = {
        "tier": one.tier,
        "weight": f"{one.weight:g}",
        "models": models or "all",
        "apis": ",".join(one.apis) if one.apis is not None else "all",
        "continues": one.continues,
        "max_concurrent": one.max_concurrent or "unlimited",
    }
    return f"replica {one.name} {one.url} " + " ".join(f"{name}={fact}" for name, fact in facts.items())
