"""Contract of recovery strategies; each check takes a factory or the class of the strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields

from agentguard.errors import AgentGuardError
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.recover import actions
from agentguard.recover.budget import BudgetAccount
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.recover.plan import RecoveryPlan
from agentguard.recover.strategy import RecoveryContext, RecoveryStrategy, SimpleStrategy, adapt_strategy
from agentguard.recover.tool_effects import EffectClass, ToolEffect
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory
from agentguard.verdict import Verdict

StrategyFactory = Callable[..., RecoveryStrategy | SimpleStrategy]

REQUIRED_CAPABILITIES: dict[type, tuple[str, ...]] = {
    actions.SendMessage: ("send_message",),
    actions.Reject: ("reject",),
    actions.Rewind: ("truncate", "fork"),
    actions.Compensate: ("compensate",),
    actions.DisableTools: ("disable_tools",),
    actions.Restart: ("restart",),
    actions.Repair: ("repair",),
    actions.Sample: ("sample",),
    actions.Escalate: ("escalate",),
    actions.Stop: ("stop",),
}
"""Capabilities for each action; the integration needs at least one of them to execute it."""

_TURNS = 4
_NAMES = tuple(one.name for one in fields(Capabilities))


def build_situations() -> Iterator[RecoveryContext]:
    """Yield a situation for each cause, committed or not, and all, all but one, one or no capabilities."""
    everything = Capabilities(**dict.fromkeys(_NAMES, True))
    nothing = Capabilities(**dict.fromkeys(_NAMES, False))
    lacking = [Capabilities(**{name: name != one for name in _NAMES}) for one in _NAMES]
    having = [Capabilities(**{name: name == one for name in _NAMES}) for one in _NAMES]
    for capabilities in (everything, nothing, *lacking, *having):
        for step in range(_TURNS):
            for committed in (True, False):
                yield build_situation(step, capabilities=capabilities, committed=committed)


def build_situation(step: int, *, capabilities: Capabilities, committed: bool) -> RecoveryContext:
    """Return the situation of a run of four turns, three with a booked seat; ``step`` is its root cause."""
    hypotheses = tuple(
        Hypothesis(
            step=one,
            agent="clerk",
            probability=0.6 if one == step else 0.1,
            reason="The seat is not the requested one.",
            correction="Book the requested seat.",
        )
        for one in dict.fromkeys((step, 0))
    )
    diagnosis = Diagnosis(
        trajectory_id="run", method="test", verdict=Verdict.FAILED, probability=0.9, hypotheses=hypotheses
    )
    ledger = EffectLedger(tools={"book": ToolEffect(effect=EffectClass.WRITE, undo=lambda **_: None)})
    for turn in range(_TURNS - 1):
        ledger.mark_done(ledger.claim_call("book", {"seat": turn}, step=turn).effect, f"seat {turn} is yours")
    return RecoveryContext(
        run=_build_run(committed=committed),
        diagnosis=diagnosis,
        capabilities=capabilities,
        account=BudgetAccount(),
        ledger=ledger,
        is_committed=committed,
    )


def check_actions_supported(factory: StrategyFactory) -> None:
    """Check that a plan contains only actions that the integration supports."""
    for situation, plan in _build_plans(factory):
        for action in plan.actions:
            required = REQUIRED_CAPABILITIES[type(action)]
            assert set(required) & set(situation.capabilities.names()), (
                f"the plan contains {action}, which needs {' or '.join(required)}"
            )


def check_plan_complete(factory: StrategyFactory) -> None:
    """Check that a plan names its strategy, step, reason and number of undone steps."""
    for situation, plan in _build_plans(factory):
        assert plan.strategy == factory().name
        assert 0 <= plan.step <= situation.last_step
        assert 0 <= plan.undone <= situation.last_step + 1
        assert plan.reason
        assert plan.actions
        assert all(type(action) in REQUIRED_CAPABILITIES for action in plan.actions)


def check_deterministic(factory: StrategyFactory) -> None:
    """Check that two instances return the same plan for the same situation, at every call."""
    one, other = factory(), factory()
    for situation in build_situations():
        assert one.plan(situation) == one.plan(situation) == other.plan(situation)


def check_no_side_effects(factory: StrategyFactory) -> None:
    """Check that planning changes neither the ledger nor the budget nor the run."""
    strategy = factory()
    for situation in build_situations():
        before = situation.ledger.effects(), situation.account.usage, situation.run
        strategy.plan(situation)
        assert (situation.ledger.effects(), situation.account.usage, situation.run) == before


def check_rollback_targets(factory: StrategyFactory) -> None:
    """Check that a rewind targets a step of the current branch, and that compensated effects are active."""
    for situation, plan in _build_plans(factory):
        for action in plan.actions:
            if isinstance(action, actions.Rewind):
                assert 0 <= action.to_step <= situation.last_step
            if isinstance(action, actions.Compensate):
                assert all(effect in situation.ledger.list_active() for effect in action.effects)
            if isinstance(action, actions.Reject):
                assert not situation.is_committed, "the plan rejects a committed turn"


def check_unknown_options_rejected(factory: StrategyFactory) -> None:
    """Check that an unknown option raises an AgentGuardError when the strategy is created."""
    message = ""
    try:
        factory(no_such_option=1)
    except AgentGuardError as error:
        message = str(error)
    assert "no_such_option" in message, (
        "the strategy accepted an unknown option, or the error does not name it"
    )


def check_optional_members(factory: StrategyFactory) -> None:
    """Check that the optional members of `RecoveryStrategy` have values of their types and ranges."""
    strategy = adapt_strategy(factory())
    assert 0 < strategy.min_confidence <= 1, "min_confidence is not in (0, 1]"
    assert strategy.max_attempts >= 1, "max_attempts is less than 1"
    assert strategy.sample is None or isinstance(strategy.sample, actions.Sample)
    assert isinstance(strategy.repairs_calls, bool)
    assert isinstance(strategy.retries_reads, bool)
    assert isinstance(strategy.accept(_build_run(committed=False)), bool | str)


CHECKS: tuple[Callable[[StrategyFactory], None], ...] = (
    check_actions_supported,
    check_plan_complete,
    check_deterministic,
    check_no_side_effects,
    check_rollback_targets,
    check_unknown_options_rejected,
    check_optional_members,
)
"""All checks of the contract."""


def _build_plans(factory: StrategyFactory) -> Iterator[tuple[RecoveryContext, RecoveryPlan]]:
    strategy = factory()
    for situation in build_situations():
        plan = strategy.plan(situation)
        if plan is not None:
            yield situation, plan


def _build_run(*, committed: bool) -> Trajectory:
    seat = {"type": "object", "properties": {"seat": {"type": "integer"}}, "required": ["seat"]}
    steps = tuple(
        Step(
            index=turn,
            source=Source.AGENT,
            agent="clerk",
            content=f"turn {turn}",
            tool_calls=(ToolCall(id=f"c{turn}", name="book", arguments={"seat": turn}),),
            observations=(Observation(content=f"seat {turn} is yours", call_id=f"c{turn}", tool="book"),)
            if committed or turn < _TURNS - 1
            else (),
            model="small",
        )
        for turn in range(_TURNS)
    )
    tools = (ToolSpec(name="book", parameters=seat),)
    return Trajectory(id="run", format="event_log", task="Book a seat.", steps=steps, tools=tools)
