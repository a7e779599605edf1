"""``rollback``: take the run back to before the step at fault and tell the agent what to do instead."""

from __future__ import annotations

from typing import Literal, get_args

from agentguard.errors import ConfigError
from agentguard.recover.base import Plan, Rewind, Situation, Tell, Tier
from agentguard.recover.strategies._plan import plan, reject
from agentguard.recover.strategies.reprompt import Reprompt
from agentguard.recover.wording import correction

Prefer = Literal["cheapest", "fork"]


class Rollback:
    """T0 where the last step is at fault and not committed, else T1 (truncate) or T2 (fork).

    Args:
        prefer: ``"cheapest"`` truncates the messages where it can; ``"fork"`` restores the saved state where
            it can, which also takes back what agents keep outside of their messages. Where no state was saved
            just before the step, the run goes back to the nearest one before it.

    Raises:
        ConfigError: an option does not exist or has another value.
    """

    name = "rollback"

    def __init__(self, *, prefer: Prefer = "cheapest", **unknown: object) -> None:
        reject(self.name, unknown)
        if prefer not in get_args(Prefer):
            raise ConfigError(f"strategy 'rollback': prefer is {prefer!r}, expected cheapest or fork")
        self.prefer = prefer
        self._reprompt = Reprompt()

    def plan(self, situation: Situation) -> Plan | None:
        """Rewind to before the step of the hypothesis; None if the integration can do neither."""
        if self.prefer == "cheapest" and (light := self._reprompt.plan(situation)) is not None:
            return plan(situation, self.name, Tier.REJECT, *light.actions, undone=1)
        rewind = self.rewind(situation)
        if rewind is None or not situation.can.tell:
            return None
        back, step = rewind.to_step, situation.hypothesis.step
        told = correction(situation.hypothesis, situation.ledger.since(back), further=step - back)
        tier = Tier.FORK if rewind.by == "fork" else Tier.TRUNCATE
        actions = (rewind, Tell(text=told))
        return plan(situation, self.name, tier, *actions, undone=situation.last + 1 - back)

    def rewind(self, situation: Situation) -> Rewind | None:
        """How to rewind, and how far: a fork goes to the nearest boundary whose state was saved."""
        can, step = situation.can, situation.hypothesis.step
        saved = situation.saved_before(step) if can.fork else None
        if saved is not None and (self.prefer == "fork" or not can.truncate):
            return Rewind(to_step=saved, by="fork")
        return Rewind(to_step=step, by="truncate") if can.truncate else None
