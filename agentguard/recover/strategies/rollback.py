"""``rollback``: take the run back to before the step at fault and tell the agent what to do instead."""

from __future__ import annotations

from typing import Literal, get_args

from agentguard.errors import ConfigError
from agentguard.recover.base import Capabilities, Plan, Rewind, Situation, Tell, Tier
from agentguard.recover.strategies._plan import plan, reject
from agentguard.recover.strategies.reprompt import Reprompt
from agentguard.recover.wording import correction

Prefer = Literal["cheapest", "fork"]


class Rollback:
    """T0 where the last step is at fault and not committed, else T1 (truncate) or T2 (fork).

    Args:
        prefer: ``"cheapest"`` truncates the messages where it can; ``"fork"`` restores the saved state where
            it can, which also takes back what agents keep outside of their messages.

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
        by = self.by(situation.can)
        if by is None or not situation.can.tell:
            return None
        step = situation.hypothesis.step
        told = correction(situation.hypothesis, situation.ledger.since(step))
        tier = Tier.FORK if by == "fork" else Tier.TRUNCATE
        actions = (Rewind(to_step=step, by=by), Tell(text=told))
        return plan(situation, self.name, tier, *actions, undone=situation.last + 1 - step)

    def by(self, can: Capabilities) -> Literal["truncate", "fork"] | None:
        """How to rewind, of what the integration can do."""
        if can.fork and (self.prefer == "fork" or not can.truncate):
            return "fork"
        return "truncate" if can.truncate else None
