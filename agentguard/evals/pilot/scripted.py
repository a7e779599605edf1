"""Pilot over the scenarios of the guard check: each strategy alone, and the guard as configured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from agentguard.config.policy import Policy
from agentguard.evals.pilot.estimate import PilotPair, PilotReport, estimate_interventions
from agentguard.guard import Guard
from agentguard.recover.plan import Recovery
from agentguard.testing.contracts.integrations import AgentDriver
from agentguard.testing.guard_check import ScriptedScenario
from agentguard.testing.guard_check.check import RunResult, run_guarded, run_plain

PILOT_STRATEGIES: Final = (
    "hint",
    "reprompt",
    "roll_forward",
    "rollback",
    "disable_tool",
    "restart",
    "stop",
)
"""Strategies that the pilot compares, mildest first. The others need a person, a model or a vote."""


def run_scripted_pilot(
    driver: AgentDriver, scenarios: Sequence[ScriptedScenario], policy: Policy | None = None
) -> PilotReport:
    """Run the scenarios without the guard, with it, and with each strategy as its only one.

    Args:
        driver: function that runs an agent under a guard; see `agentguard.testing.contracts.integrations`.
        scenarios: the scenarios.
        policy: policy of the guard; without it, the default policy.
    """
    base = policy or Policy()
    plain = [run_plain(scenario) for scenario in scenarios]
    pairs = list(_iter_pairs(driver, scenarios, plain, base))
    alternatives = (
        pair
        for strategy in PILOT_STRATEGIES
        for pair in _iter_pairs(driver, scenarios, plain, _replace_strategy(base, strategy))
        if pair.strategy == strategy
    )
    return estimate_interventions(pairs, alternatives=alternatives)


def _replace_strategy(policy: Policy, strategy: str) -> Policy:
    detectors = {
        name: options if options is False else policy.get_detector_options(name)
        for name, options in policy.detectors.items()
    }
    recover = policy.recover.model_copy(update={"on_fail": strategy})
    return policy.model_copy(update={"detectors": detectors, "recover": recover})


def _iter_pairs(
    driver: AgentDriver, scenarios: Sequence[ScriptedScenario], plain: Sequence[RunResult], policy: Policy
) -> Iterator[PilotPair]:
    for scenario, without in zip(scenarios, plain, strict=True):
        recoveries: list[Recovery] = []
        guard = Guard.from_policy(policy, observers=(recoveries.append,), schemata=False)
        result = run_guarded(driver, scenario, lambda guard=guard: guard)  # type: ignore[misc]
        first = recoveries[0] if recoveries else None
        yield PilotPair(
            task=scenario.name,
            failed_without=not without.passes,
            failed_with=not result.passes,
            trigger="" if first is None else first.trigger,
            strategy="" if first is None else first.plan.strategy,
            added_harm=result.harm - without.harm,
        )
