"""Policy from the estimates of a pilot: per trigger, the strategies that help."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

from agentguard.config.policy import ESCALATION_KEY, Policy
from agentguard.detect.base import detectors
from agentguard.evals.pilot.estimate import InterventionEstimate, PilotReport, PilotVerdict
from agentguard.evals.pilot.scripted import PILOT_STRATEGIES
from agentguard.recover.recovery_policy import DEFAULT_ESCALATION

MAX_HELPFUL: Final = 2
"""Number of strategies that are tried before the strategies that end the run."""

_FINAL_STRATEGIES: Final = ("escalate", "stop")


def propose_policy(report: PilotReport, policy: Policy | None = None) -> Policy:
    """Return the policy with an escalation policy for each trigger that the pilot decides.

    - The strategies that help come first, the largest gain before the others, at most two.
    - Strategies that hurt are removed. A detector is switched off if none remains before the final ones.
    - The final strategies ``escalate`` and ``stop`` remain. A pilot measures them as the first answer to a
      trigger, not after several failed recoveries.
    - The other triggers keep the escalation of the policy.

    Raises:
        ConfigError: the result is not a valid policy.
    """
    base = policy or Policy()
    cells: dict[str, list[InterventionEstimate]] = defaultdict(list)
    for one in report.interventions:
        if one.trigger in detectors().names():
            cells[one.trigger].append(one)
    changes = {trigger: _build_options(base, trigger, several) for trigger, several in cells.items()}
    document = base.model_dump(mode="json", exclude_unset=True)
    document["detectors"] = {
        **document.get("detectors", {}),
        **{k: v for k, v in changes.items() if v is not None},
    }
    return Policy.parse(document, source="pilot")


def format_policy(policy: Policy, report: PilotReport) -> str:
    """Return the policy as YAML with the pilot's figures as comments."""
    overall = report.overall
    lines = [
        f"# agentguard pilot: {overall.base_failure.n} pairs of runs, {overall.base_failure.count} failed "
        f"without the guard, {overall.rescue.count} rescued, {overall.disruption.count} disrupted.",
        *(f"# {format_estimate(one)}" for one in report.interventions),
    ]
    document = policy.model_dump(mode="json", exclude_unset=True)
    return "\n".join(lines) + "\n" + yaml.safe_dump(document or {"version": 1}, sort_keys=False)


def format_estimate(estimate: InterventionEstimate) -> str:
    """Return an estimate as one line."""
    rates = (("p", estimate.base_failure), ("r", estimate.rescue), ("d", estimate.disruption))
    figures = ", ".join(
        f"{name} {rate.count}/{rate.n} [{rate.interval[0]:.2f}, {rate.interval[1]:.2f}]"
        for name, rate in rates
    )
    name = f"{estimate.trigger} {estimate.strategy}".strip() or "all runs"
    return f"{name}: {estimate.verdict.value} ({figures})"


def _build_options(
    base: Policy, trigger: str, estimates: Iterable[InterventionEstimate]
) -> Mapping[str, Any] | bool | None:
    """Return the detector's options with its escalation; False to switch it off, None for no change."""
    by_verdict: dict[PilotVerdict, list[InterventionEstimate]] = defaultdict(list)
    for one in estimates:
        if one.strategy not in _FINAL_STRATEGIES:
            by_verdict[one.verdict].append(one)
    harmful = {one.strategy for one in by_verdict[PilotVerdict.HURTS]}
    helpful = [one.strategy for one in sorted(by_verdict[PilotVerdict.HELPS], key=_rank_estimate)]
    given = base.list_escalations().get(trigger, base.recover.on_fail) or DEFAULT_ESCALATION
    present = [given] if isinstance(given, str) else list(given)
    final = [level for level in present if get_strategy_name(level) in _FINAL_STRATEGIES]
    first = [level for level in present if level not in final and get_strategy_name(level) not in harmful]
    if helpful:
        configured = {get_strategy_name(level): level for level in first}
        first = [configured.get(name, name) for name in helpful[:MAX_HELPFUL]]
    if not first and harmful:
        return False
    if [*first, *final] == present:
        return None
    return {**base.get_detector_options(trigger), ESCALATION_KEY: [*first, *final]}


def _rank_estimate(estimate: InterventionEstimate) -> tuple[float, int]:
    """Return the sort key: the largest gain first, then the mildest strategy."""
    order = [*PILOT_STRATEGIES, estimate.strategy]
    return -estimate.gain, order.index(estimate.strategy)


def get_strategy_name(level: str | Mapping[str, Any]) -> str:
    """Return the name of a level's strategy."""
    return level if isinstance(level, str) else next(iter(level))
