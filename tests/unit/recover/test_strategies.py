"""Plan, required capabilities and hint of each strategy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentguard.errors import ConfigError
from agentguard.recover.actions import (
    Compensate,
    DisableTools,
    Escalate,
    Reject,
    Restart,
    Rewind,
    SendMessage,
    Stop,
)
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.recover.plan import RecoveryTier
from agentguard.recover.strategy import strategies
from tests.unit.recover.situations import ALL, TOOLS, run, situation

OPTIONS = {
    "n_version": {"models": ["large"]},
    "roll_forward": {"repair": lambda run, held: ("content", "turn five")},
}
NEEDS = {
    "hint": ("send_message",),
    "reprompt": ("reject", "send_message"),
    "rollback": ("send_message",),
    "compensate": ("compensate", "send_message"),
    "disable_tool": ("disable_tools", "send_message"),
    "restart": ("restart",),
    "roll_forward": ("repair",),
    "vote": ("sample",),
    "n_version": ("sample",),
    "recovery_block": ("sample",),
    "escalate": ("escalate",),
    "stop": ("stop",),
}


def made(name: str, **options: object):
    return strategies().get(name)(**(OPTIONS.get(name, {}) | options))


def booked(*steps: int) -> EffectLedger:
    ledger = EffectLedger(tools=TOOLS)
    for step in steps:
        ledger.mark_done(ledger.claim_call("book", {"seat": step}, step=step).effect, f"seat {step} is yours")
    return ledger


def told(plan) -> str:
    return " ".join(action.text for action in plan.actions if isinstance(action, SendMessage))


def test_tests_cover_every_built_in_strategy() -> None:
    assert set(strategies().names()) == set(NEEDS)


@pytest.mark.parametrize(("name", "needs"), NEEDS.items())
def test_plan_requires_capabilities_of_the_integration(name: str, needs: tuple[str, ...]) -> None:
    here = situation(5, is_committed=False, ledger=booked(5))
    assert made(name).plan(here) is not None
    for need in needs:
        assert made(name).plan(replace(here, capabilities=replace(ALL, **{need: False}))) is None


@pytest.mark.parametrize("name", NEEDS)
def test_unknown_option_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="colour"):
        made(name, colour="red")


@pytest.mark.parametrize("name", NEEDS)
def test_plan_names_step_reason_and_codes(name: str) -> None:
    here = situation(5, 1, is_committed=False, ledger=booked(5))
    plan = made(name).plan(here)
    assert (plan.strategy, plan.step, plan.hypothesis) == (name, 5, 0)
    assert plan.reason == here.hypothesis.reason
    assert plan.codes == here.hypothesis.codes


def test_hint_removes_nothing() -> None:
    plan = made("hint").plan(situation(2))
    assert (plan.tier, plan.undone) == (RecoveryTier.HINT, 0)
    assert "Take the seat that was asked for (2)." in told(plan)


def test_reprompt_requires_uncommitted_answer() -> None:
    plan = made("reprompt").plan(situation(5, is_committed=False))
    assert isinstance(plan.actions[0], Reject)
    assert made("reprompt").plan(situation(5, is_committed=True)) is None
    assert made("reprompt").plan(situation(4, is_committed=False)) is None


@pytest.mark.parametrize(
    ("can", "prefer", "tier", "by"),
    [
        (ALL, "cheapest", RecoveryTier.TRUNCATE, "truncate"),
        (ALL, "fork", RecoveryTier.FORK, "fork"),
        (replace(ALL, truncate=False), "cheapest", RecoveryTier.FORK, "fork"),
        (replace(ALL, fork=False), "fork", RecoveryTier.TRUNCATE, "truncate"),
    ],
)
def test_rollback_uses_the_available_tier(
    can: Capabilities, prefer: str, tier: RecoveryTier, by: str
) -> None:
    plan = made("rollback", prefer=prefer).plan(situation(2, capabilities=can))
    assert (plan.tier, plan.actions[0], plan.undone) == (tier, Rewind(to_step=2, by=by), 4)


def test_rollback_rejects_uncommitted_turn() -> None:
    plan = made("rollback").plan(situation(5, is_committed=False))
    assert (plan.tier, plan.strategy) == (RecoveryTier.REJECT, "rollback")


def test_rollback_hint_lists_executed_effects() -> None:
    text = told(made("rollback").plan(situation(2, ledger=booked(1, 3))))
    assert "seat 3 is yours" in text
    assert "seat 1 is yours" not in text, "the call of step 1 stays in the agent's view"


def test_unknown_effect_is_named_and_never_undone() -> None:
    ledger = booked(3)
    ledger.claim_call("book", {"seat": 9}, step=4)
    plan = made("compensate").plan(situation(2, ledger=ledger))
    undone = plan.actions[0]
    assert isinstance(undone, Compensate)
    assert [effect.arguments["seat"] for effect in undone.effects] == [3]
    assert "whose outcome is unknown" in told(plan)


def test_latest_effect_is_undone_first_and_irreversible_ones_are_named() -> None:
    ledger = booked(2, 4)
    ledger.mark_done(ledger.claim_call("mail", {"to": "all"}, step=3).effect, "sent")
    plan = made("compensate").plan(situation(2, ledger=ledger))
    undone, rewind, tell = plan.actions
    assert [effect.arguments["seat"] for effect in undone.effects] == [4, 2]
    assert isinstance(rewind, Rewind)
    assert "do not repeat them: mail" in tell.text
    assert "were undone: book" in tell.text


def test_compensate_without_effects_gives_no_plan() -> None:
    assert made("compensate").plan(situation(2, ledger=booked(0, 1))) is None


def test_disable_tool_disables_the_tool_of_the_step() -> None:
    plan = made("disable_tool").plan(situation(2))
    assert plan.actions[0] == DisableTools(tools=("book",))
    assert made("disable_tool", keep=["book"]).plan(situation(2)) is None


def test_last_tool_is_not_disabled() -> None:
    bare = replace(run(), tools=run().tools[:1])
    assert made("disable_tool").plan(situation(2, run=bare)) is None


def test_restart_changes_the_task_and_lists_remaining_effects() -> None:
    plan = made("restart").plan(situation(2, ledger=booked(0)))
    (restart,) = plan.actions
    assert isinstance(restart, Restart)
    assert "Take the seat" in restart.note
    assert "seat 0 is yours" in restart.note
    assert plan.undone == 6


def test_escalation_contains_all_known_facts() -> None:
    (action,) = made("escalate").plan(situation(2, ledger=booked(1))).actions
    assert isinstance(action, Escalate)
    for part in ("Step 2", "clerk", "not the one that was asked for", "seat 1 is yours"):
        assert part in action.question


def test_stop_contains_its_reason() -> None:
    (action,) = made("stop").plan(situation(2)).actions
    assert isinstance(action, Stop)
    assert "not the one that was asked for" in action.reason
