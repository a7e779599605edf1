"""Adapter of strategies that lack the optional members of the protocol."""

from __future__ import annotations

import pytest

from agentguard.plugins import Registry
from agentguard.recover.actions import Sample
from agentguard.recover.escalation_planner import EscalationPlanner
from agentguard.recover.plan import RecoveryPlan
from agentguard.recover.recovery_policy import build_escalation
from agentguard.recover.strategies.hint import HintStrategy
from agentguard.recover.strategies.restart import RestartStrategy
from agentguard.recover.strategies.roll_forward import RollForwardStrategy
from agentguard.recover.strategy import (
    RecoveryContext,
    RecoveryStrategyFactory,
    StrategyAdapter,
    adapt_strategy,
)
from agentguard.testing.contracts.strategies import check_optional_members
from tests.unit.recover.situations import run, situation


class Minimal:
    """Strategy with the required members only."""

    name = "minimal"

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Return the plan of a hint under another name."""
        return HintStrategy().plan(context)


class Voting(Minimal):
    """Strategy with some optional members."""

    sample = Sample(n=3, quorum=2, models=("large",))
    min_confidence = 0.2

    def accept(self, run: object) -> str:
        """Refuse all candidates."""
        return "no"


def test_minimal_strategy_gets_the_defaults() -> None:
    held = adapt_strategy(Minimal())
    assert isinstance(held, StrategyAdapter)
    assert (held.name, held.min_confidence, held.max_attempts) == ("minimal", 1.0, 1)
    assert (held.sample, held.repairs_calls, held.retries_reads) == (None, False, False)
    assert held.accept(run(2)) is True
    assert held.plan(situation(1)) == Minimal().plan(situation(1))


def test_plug_in_keeps_its_optional_members() -> None:
    held = adapt_strategy(Voting())
    assert (held.sample, held.min_confidence, held.accept(run(2))) == (Voting.sample, 0.2, "no")
    assert EscalationPlanner([held]).models == {"large"}


def test_complete_strategies_are_not_wrapped() -> None:
    hint, adapted = HintStrategy(), adapt_strategy(Minimal())
    assert adapt_strategy(hint) is hint
    assert adapt_strategy(adapted) is adapted


def test_registered_minimal_strategy_works_in_an_escalation_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[RecoveryStrategyFactory] = Registry("strategy", group="none", builtin={})
    registry.register("minimal", Minimal)
    monkeypatch.setattr("agentguard.recover.recovery_policy.strategies", lambda: registry)
    (held,) = build_escalation("minimal", trigger="t")
    assert EscalationPlanner([held]).plan(situation(1)).plan is not None


def test_options_set_the_members() -> None:
    forward = RollForwardStrategy(acts_from=0.4, calls=False)
    assert (forward.min_confidence, forward.repairs_calls, forward.retries_reads) == (0.4, False, True)
    assert RestartStrategy(times=3).max_attempts == 3


def test_contract_checks_the_optional_members() -> None:
    check_optional_members(Minimal)
    check_optional_members(Voting)
