"""Policy from the estimates of a pilot: per trigger, the strategies that help."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import yaml

from agentguard.config.policy import ESCALATION_KEY, Policy
from agentguard.detect.base import detectors
from agentguard.evals.pilot.estimate import InterventionEstimate, PilotReport, PilotVerdict
from agentguard.evals.pilot.scripted import PILOT_STRATEGIES
from agentguard.quantity import format_quantity
from agentguard.recover.acceptance.base import ACCEPTANCE_TRIGGER
from agentguard.recover.recovery_policy import DEFAULT_ESCALATION
from agentguard.runtime.live_judge import (
    LIVE_JUDGE_TRIGGER,
    OUTCOME_MODEL_TRIGGER,
    SINGLE_JUDGE_ESCALATION,
    STEP_MODEL_TRIGGER,
)

MAX_HELPFUL: Final = 2
"""Number of strategies that are tried before the strategies that end the run."""

_FINAL_STRATEGIES: Final = ("escalate", "stop")

_LIVE_SETTINGS: Final = {
    LIVE_JUDGE_TRIGGER: ("judge", "live"),
    OUTCOME_MODEL_TRIGGER: ("live_model",),
    STEP_MODEL_TRIGGER: ("live_model", "step_threshold"),
}
"""Path of the settings in a policy, by trigger."""


def propose_policy(report: PilotReport, policy: Policy | None = None) -> Policy:
    """Return the policy with an escalation policy for each trigger that the pilot decides.

    - The strategies that help come first, the largest gain before the others, at most two.
    - The proposal omits strategies that hurt. It disables a detector without another strategy before the
      final ones.
    - The final strategies ``escalate`` and ``stop`` remain. A pilot measures them as the first answer to a
      trigger, not after several failed recoveries.
    - The acceptance test keeps its final strategies, whatever the pilot measures.
    - The proposal disables a live judge or live model whose interventions hurt.
    - The other triggers keep the escalation of the policy.

    Raises:
        ConfigError: the result is not a valid policy.
    """
    base = policy or Policy()
    cells: dict[str, list[InterventionEstimate]] = defaultdict(list)
    for one in report.interventions:
        cells[one.trigger].append(one)
    document = base.model_dump(mode="json", exclude_unset=True)
    options = dict(document.get("detectors", {}))
    for trigger, several in cells.items():
        levels = _choose_levels(base, trigger, several)
        if trigger in detectors().names():
            if levels is not None:
                own = {**base.get_detector_options(trigger), ESCALATION_KEY: levels}
                options[trigger] = own if levels else False
        elif trigger == ACCEPTANCE_TRIGGER and base.acceptance is not None and levels:
            document["acceptance"]["on_fail"] = levels
        elif levels == [] and (path := _LIVE_SETTINGS.get(trigger)) is not None:
            _remove(document, path)
    if options:
        document["detectors"] = options
    return Policy.parse(document, source="pilot")


def _remove(document: dict[str, Any], path: Sequence[str]) -> None:
    """Remove the key at a path of nested mappings, if it exists."""
    *parents, last = path
    for name in parents:
        document = document.get(name) or {}
    document.pop(last, None)


def format_policy(policy: Policy, report: PilotReport) -> str:
    """Return the policy as YAML with the pilot's figures as comments."""
    overall = report.overall
    lines = [
        f"# agentguard pilot: {format_quantity(overall.base_failure.n, 'pair')} of runs, "
        f"{overall.base_failure.count} failed without the guard, "
        f"{overall.rescue.count} rescued, {overall.disruption.count} disrupted.",
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


def _choose_levels(base: Policy, trigger: str, estimates: Iterable[InterventionEstimate]) -> list[Any] | None:
    """Return the trigger's escalation; an empty list if all its strategies hurt, None for no change."""
    by_verdict: dict[PilotVerdict, list[InterventionEstimate]] = defaultdict(list)
    for one in estimates:
        if one.strategy not in _FINAL_STRATEGIES:
            by_verdict[one.verdict].append(one)
    harmful = {one.strategy for one in by_verdict[PilotVerdict.HURTS]}
    helpful = [one.strategy for one in sorted(by_verdict[PilotVerdict.HELPS], key=_rank_estimate)]
    present = _list_levels(base, trigger)
    final = [level for level in present if get_strategy_name(level) in _FINAL_STRATEGIES]
    first = [level for level in present if level not in final and get_strategy_name(level) not in harmful]
    if helpful:
        configured = {get_strategy_name(level): level for level in first}
        first = [configured.get(name, name) for name in helpful[:MAX_HELPFUL]]
    if not first and harmful:
        return final if trigger == ACCEPTANCE_TRIGGER else []
    return None if [*first, *final] == present else [*first, *final]


def _list_levels(base: Policy, trigger: str) -> list[Any]:
    """Return the levels of a trigger's escalation policy."""
    if trigger in (OUTCOME_MODEL_TRIGGER, STEP_MODEL_TRIGGER) or (
        trigger == LIVE_JUDGE_TRIGGER and not _has_second(base)
    ):
        return [SINGLE_JUDGE_ESCALATION]
    given = base.list_escalations().get(trigger, base.recover.on_fail) or DEFAULT_ESCALATION
    return [given] if isinstance(given, str) else list(given)


def _has_second(base: Policy) -> bool:
    return base.judge is not None and base.judge.second is not None


def _rank_estimate(estimate: InterventionEstimate) -> tuple[float, int]:
    """Return the sort key: the largest gain first, then the mildest strategy."""
    order = [*PILOT_STRATEGIES, estimate.strategy]
    return -estimate.gain, order.index(estimate.strategy)


def get_strategy_name(level: str | Mapping[str, Any]) -> str:
    """Return the name of a level's strategy."""
    return level if isinstance(level, str) else next(iter(level))
