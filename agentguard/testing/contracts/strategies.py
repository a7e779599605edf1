"""What every strategy must keep to; a check takes what makes the strategy: its class, or a factory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields

from agentguard.errors import AgentGuardError
from agentguard.localize.base import Diagnosis, Hypothesis, Verdict
from agentguard.recover import strategy as actions
from agentguard.recover.budget import BudgetAccount
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.recover.strategy import Capabilities, RecoveryContext, RecoveryPlan, RecoveryStrategy
from agentguard.recover.tool_effects import EffectClass, ToolEffect
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory

StrategyFactory = Callable[..., RecoveryStrategy]

REQUIRED_CAPABILITIES: dict[type, tuple[str, ...]] = {
    actions.SendMessage: ("send_message",),
    actions.Reject: ("reject",),
    actions.Rewind: ("truncate", "fork"),
    actions.Compensate: ("compensate",),
    actions.DisableTools: ("disable_tools",),
    actions.Substitute: ("substitute",),
    actions.Restart: ("restart",),
    actions.Repair: ("repair",),
    actions.Sample: ("sample",),
    actions.Escalate: ("escalate",),
    actions.Stop: ("stop",),
}
"""What an integration must be capable of, one of them at least, to carry out an action."""

_TURNS = 4
_NAMES = tuple(one.name for one in fields(Capabilities))


def build_situations() -> Iterator[RecoveryContext]:
    """Situations to plan in: each step at fault, committed or not, with every capability, one, and none."""
    everything = Capabilities(**dict.fromkeys(_NAMES, True))
    nothing = Capabilities(**dict.fromkeys(_NAMES, False))
    lacking = [Capabilities(**{name: name != one for name in _NAMES}) for one in _NAMES]
    having = [Capabilities(**{name: name == one for name in _NAMES}) for one in _NAMES]
    for can in (everything, nothing, *lacking, *having):
        for step in range(_TURNS):
            for committed in (True, False):
                yield build_situation(step, capabilities=can, committed=committed)


def build_situation(step: int, *, capabilities: Capabilities, committed: bool) -> RecoveryContext:
    """A run of four turns, three of which booked a seat, where ``step`` is held to be at fault."""
    hypotheses = tuple(
        Hypothesis(
            step=one,
            agent="clerk",
            probability=0.6 if one == step else 0.1,
            reason="The seat is not the one that was asked for.",
            correction="Take the seat that was asked for.",
        )
        for one in dict.fromkeys((step, 0))
    )
    diagnosis = Diagnosis(
        trajectory_id="run", method="test", verdict=Verdict.FAILURE, probability=0.9, hypotheses=hypotheses
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
    """No action is planned that the integration is not capable of."""
    for here, plan in _build_plans(factory):
        for action in plan.actions:
            needed = REQUIRED_CAPABILITIES[type(action)]
            assert set(needed) & set(here.capabilities.names()), (
                f"{action} was planned without {' or '.join(needed)}"
            )


def check_plan_complete(factory: StrategyFactory) -> None:
    """A plan names its strategy, its step and its reason, and says what it takes back."""
    for here, plan in _build_plans(factory):
        assert plan.strategy == factory().name
        assert 0 <= plan.step <= here.last_step
        assert 0 <= plan.undone <= here.last_step + 1
        assert plan.reason
        assert plan.actions
        assert all(type(action) in REQUIRED_CAPABILITIES for action in plan.actions)


def check_deterministic(factory: StrategyFactory) -> None:
    """The same situation gives the same plan, from the same strategy and from another one made alike."""
    one, other = factory(), factory()
    for here in build_situations():
        assert one.plan(here) == one.plan(here) == other.plan(here)


def check_no_side_effects(factory: StrategyFactory) -> None:
    """Planning changes nothing: neither the ledger nor what may still be spent nor the run."""
    strategy = factory()
    for here in build_situations():
        before = here.ledger.effects(), here.account.usage, here.run
        strategy.plan(here)
        assert (here.ledger.effects(), here.account.usage, here.run) == before


def check_rollback_targets(factory: StrategyFactory) -> None:
    """A rewind goes to a step of the live line, and what is undone are effects that stand."""
    for here, plan in _build_plans(factory):
        for action in plan.actions:
            if isinstance(action, actions.Rewind):
                assert 0 <= action.to_step <= here.last_step
            if isinstance(action, actions.Compensate):
                assert all(effect in here.ledger.list_active() for effect in action.effects)
            if isinstance(action, actions.Reject):
                assert not here.is_committed, "what is committed cannot be refused any more"


def check_unknown_options_rejected(factory: StrategyFactory) -> None:
    """An unknown option is an error of this package's own when the strategy is made."""
    said = ""
    try:
        factory(no_such_option=1)
    except AgentGuardError as error:
        said = str(error)
    assert "no_such_option" in said, "an option that does not exist was taken, or not named"


CHECKS: tuple[Callable[[StrategyFactory], None], ...] = (
    check_actions_supported,
    check_plan_complete,
    check_deterministic,
    check_no_side_effects,
    check_rollback_targets,
    check_unknown_options_rejected,
)
"""The suite."""


def _build_plans(factory: StrategyFactory) -> Iterator[tuple[RecoveryContext, RecoveryPlan]]:
    strategy = factory()
    for here in build_situations():
        plan = strategy.plan(here)
        if plan is not None:
            yield here, plan


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
