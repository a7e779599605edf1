"""Contract of every strategy, built in or installed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agentguard.errors import AgentGuardError
from agentguard.recover.actions import (
    Compensate,
    DisableTools,
    Escalate,
    Reject,
    Repair,
    Restart,
    Rewind,
    Sample,
    SendMessage,
    Stop,
)
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.recover.escalation_planner import compute_plan_cost
from agentguard.recover.plan import Recovery, RecoveryPlan, RecoveryTier
from agentguard.recover.recovery_rows import decode_recovery, encode_recovery
from agentguard.recover.strategy import RecoveryContext, strategies
from agentguard.trajectory.model import ToolCall
from tests.unit.recover.situations import TOOLS, run, situation
from tests.unit.recover.test_strategies import made

NAMES = strategies().names()
NEEDS: dict[type, str] = {
    SendMessage: "send_message",
    Reject: "reject",
    Compensate: "compensate",
    DisableTools: "disable_tools",
    Restart: "restart",
    Repair: "repair",
    Sample: "sample",
    Escalate: "escalate",
    Stop: "stop",
}

STORED_TAGS: dict[type, str] = {SendMessage: "Tell", DisableTools: "Withhold", Escalate: "HandOver"}
"""Actions whose stored tag is not the name of their class."""

flags = st.fixed_dictionaries({one.name: st.booleans() for one in fields(Capabilities)})


@st.composite
def situations(draw: st.DrawFn) -> RecoveryContext:
    """Generate a run of any length with a suspected step, with or without effects after it."""
    length = draw(st.integers(1, 7))
    step = draw(st.integers(0, length - 1))
    ledger = EffectLedger(tools=TOOLS)
    for at in draw(st.sets(st.integers(0, length - 1), max_size=3)):
        ledger.mark_done(ledger.claim_call("book", {"seat": at}, step=at).effect, "yours")
    trajectory = run(length)
    if draw(st.booleans()):
        call = ToolCall(id="c", name=draw(st.sampled_from(["book", "Book", "fly"])), arguments={"seat": "4"})
        last = replace(trajectory.steps[-1], tool_calls=(call,))
        trajectory = replace(trajectory, steps=(*trajectory.steps[:-1], last))
    return situation(
        step,
        run=trajectory,
        capabilities=Capabilities(**draw(flags)),
        ledger=ledger,
        is_committed=draw(st.booleans()),
    )


def needs(plan: RecoveryPlan) -> set[str]:
    """Return the capabilities that an integration needs to execute a plan."""
    return {NEEDS[type(a)] for a in plan.actions if type(a) in NEEDS} | {
        a.by for a in plan.actions if isinstance(a, Rewind)
    }


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(here=situations())
def test_plan_is_complete_and_needs_only_available_capabilities(name: str, here: RecoveryContext) -> None:
    plan = made(name).plan(here)
    if plan is None:
        return
    assert plan.strategy == name
    assert plan.actions
    assert plan.tier in RecoveryTier
    assert 0 <= plan.step <= here.last_step
    assert 0 <= plan.undone <= here.last_step + 1
    assert needs(plan) <= set(here.capabilities.names())
    assert (plan.reason, plan.codes) == (here.hypothesis.reason, here.hypothesis.codes)
    for action in plan.actions:
        if isinstance(action, Rewind):
            assert 0 <= action.to_step <= plan.step
        if isinstance(action, Repair):
            assert action.step == plan.step
        if isinstance(action, Sample):
            assert 1 <= action.quorum <= action.n
            assert len(action.build_variants()) == action.n - 1


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(here=situations())
def test_plan_is_data_and_deterministic(name: str, here: RecoveryContext) -> None:
    plan = made(name).plan(here)
    assert plan == made(name).plan(here)
    if plan is not None:
        data = encode_recovery(Recovery(run="r", id=0, plan=plan, trigger="t", at_step=1))
        assert decode_recovery(data).plan == plan


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(here=situations())
def test_planning_spends_no_budget_and_changes_nothing(name: str, here: RecoveryContext) -> None:
    before: tuple[Any, ...] = (here.account.usage, here.ledger.effects(), here.run)
    plan = made(name).plan(here)
    assert (here.account.usage, here.ledger.effects(), here.run) == before
    if plan is not None:
        assert here.account.find_exceeded_limit(**compute_plan_cost(plan)) is None, (
            "a fresh budget allows any one plan"
        )


@pytest.mark.parametrize("name", NAMES)
def test_invalid_option_error_names_strategy(name: str) -> None:
    with pytest.raises(AgentGuardError, match=name):
        made(name, no_such_option=1)
