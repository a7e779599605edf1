"""Every built-in strategy keeps to the public contract."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from agentguard.recover.base import Capabilities, Plan, Rewind, Situation, Tier, strategies
from agentguard.testing.contracts.strategies import CHECKS, situations
from agentguard.trajectory.model import Step

OPTIONS: dict[str, dict[str, Any]] = {
    "alternate": {"agents": {"clerk": "senior"}},
    "n_version": {"models": ["large"]},
    "roll_forward": {"repair": lambda run, held: _better(run.steps[held.step])},
}


def _better(step: Step) -> tuple[str, str]:
    return ("observations[0]", "seat 9 is yours") if step.observations else ("content", "another turn")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", strategies().names())
def test_a_built_in_strategy_keeps_to_the_contract(name: str, check: Any) -> None:
    check(partial(strategies().get(name), **OPTIONS.get(name, {})))


class Reckless:
    """Takes back what it likes, whatever the integration can do, and something else each time."""

    name = "reckless"

    def __init__(self, **options: Any) -> None:
        self.plans = 0

    def plan(self, situation: Situation) -> Plan:
        self.plans += 1
        situation.ledger.rewind(0)
        situation.ledger.begin("book", {"seat": self.plans}, step=0)
        rewind = Rewind(to_step=99, by="fork")
        return Plan(strategy="other", tier=Tier.FORK, actions=(rewind,), step=self.plans)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_strategy_that_keeps_to_nothing_is_found_out(check: Any) -> None:
    with pytest.raises(AssertionError):
        check(Reckless)


def test_the_suite_plans_in_every_capability() -> None:
    seen = {here.can for here in situations()}
    assert Capabilities(tell=False, stop=False) in seen
    assert len(seen) > 20
