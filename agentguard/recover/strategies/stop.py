"""``stop``: end the run; usually the last level of an escalation policy."""

from __future__ import annotations

from agentguard.errors import ConfigError
from agentguard.recover.actions import Stop
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategies._plan import build_plan, reject_unknown_options
from agentguard.recover.strategy import BaseStrategy, RecoveryContext


class StopStrategy(BaseStrategy):
    """Strategy that ends the run and gives the reason.

    Args:
        patience: number of turns that the agent may take after the first recovery from the same failure,
            including turns that were rolled back; 0 stops the run at once.

    Raises:
        ConfigError: ``patience`` is not a whole number of at least 0, or an option does not exist.
    """

    name = "stop"

    def __init__(self, *, patience: int = 0, **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 0:
            raise ConfigError(f"strategy 'stop': patience is {patience!r}, expected 0 or more")
        self.patience = patience

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Stop the run; None if the integration cannot, or before ``patience`` turns have passed."""
        if not context.capabilities.stop or _count_turns_since_recovery(context) < self.patience:
            return None
        failure = context.hypothesis.reason or "a failure without a correction"
        reason = f"step {context.last_step}: {failure}"
        return build_plan(context, self.name, RecoveryTier.STOP, Stop(reason=reason))


def _count_turns_since_recovery(context: RecoveryContext) -> int:
    """Return the number of steps since the first recovery from a failure with one of the same codes."""
    codes = set(context.hypothesis.codes)
    past = context.past_recoveries
    first = next((index for index, one in enumerate(past) if codes & set(one.plan.codes)), None)
    if first is None:
        return 0
    return len(context.run.steps) - past[first].at_step + sum(one.plan.undone for one in past[first:])
