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

Make = Callable[..., RecoveryStrategy]

NEEDED: dict[type, tuple[str, ...]] = {
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


def situations() -> Iterator[RecoveryContext]:
    """Situations to plan in: each step at fault, committed or not, with every capability, one, and none."""
    everything = Capabilities(**dict.fromkeys(_NAMES, True))
    nothing = Capabilities(**dict.fromkeys(_NAMES, False))
    lacking = [Capabilities(**{name: name != one for name in _NAMES}) for one in _NAMES]
    having = [Capabilities(**{name: name == one for name in _NAMES}) for one in _NAMES]
    for can in (everything, nothing, *lacking, *having):
        for step in range(_TURNS):
            for committed in (True, False):
                yield situation(step, can=can, committed=committed)


def situation(step: int, *, can: Capabilities, committed: bool) -> RecoveryContext:
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
        run=_run(committed=committed),
        diagnosis=diagnosis,
        capabilities=can,
        account=BudgetAccount(),
        ledger=ledger,
        is_committed=committed,
    )


def it_plans_what_the_integration_can_do(make: Make) -> None:
    """No action is planned that the integration is not capable of."""
    for here, plan in _plans(make):
        for action in plan.actions:
            needed = NEEDED[type(action)]
            assert set(needed) & set(here.capabilities.names()), (
                f"{action} was planned without {' or '.join(needed)}"
            )


def it_plans_data(make: Make) -> None:
    """A plan names its strategy, its step and its reason, and says what it takes back."""
    for here, plan in _plans(make):
        assert plan.strategy == make().name
        assert 0 <= plan.step <= here.last_step
        assert 0 <= plan.undone <= here.last_step + 1
        assert plan.reason
        assert plan.actions
        assert all(type(action) in NEEDED for action in plan.actions)


def it_plans_the_same_twice(make: Make) -> None:
    """The same situation gives the same plan, from the same strategy and from another one made alike."""
    one, other = make(), make()
    for here in situations():
        assert one.plan(here) == one.plan(here) == other.plan(here)


def it_only_looks(make: Make) -> None:
    """Planning changes nothing: neither the ledger nor what may still be spent nor the run."""
    strategy = make()
    for here in situations():
        before = here.ledger.effects(), here.account.usage, here.run
        strategy.plan(here)
        assert (here.ledger.effects(), here.account.usage, here.run) == before


def it_takes_back_no_turn_that_is_not_there(make: Make) -> None:
    """A rewind goes to a step of the live line, and what is undone are effects that stand."""
    for here, plan in _plans(make):
        for action in plan.actions:
            if isinstance(action, actions.Rewind):
                assert 0 <= action.to_step <= here.last_step
            if isinstance(action, actions.Compensate):
                assert all(effect in here.ledger.list_active() for effect in action.effects)
            if isinstance(action, actions.Reject):
                assert not here.is_committed, "what is committed cannot be refused any more"


def it_refuses_options_that_do_not_exist(make: Make) -> None:
    """An unknown option is an error of this package's own when the strategy is made."""
    said = ""
    try:
        make(no_such_option=1)
    except AgentGuardError as error:
        said = str(error)
    assert "no_such_option" in said, "an option that does not exist was taken, or not named"


CHECKS: tuple[Callable[[Make], None], ...] = (
    it_plans_what_the_integration_can_do,
    it_plans_data,
    it_plans_the_same_twice,
    it_only_looks,
    it_takes_back_no_turn_that_is_not_there,
    it_refuses_options_that_do_not_exist,
)
"""The suite."""


def _plans(make: Make) -> Iterator[tuple[RecoveryContext, RecoveryPlan]]:
    strategy = make()
    for here in situations():
        plan = strategy.plan(here)
        if plan is not None:
            yield here, plan


def _run(*, committed: bool) -> Trajectory:
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
