"""``restart``: begin the run again with a different initial input."""

from __future__ import annotations

from agentguard.errors import ConfigError
from agentguard.recover.actions import Restart
from agentguard.recover.agent_messages import format_advice, format_effects, to_sentence
from agentguard.recover.base_strategy import BaseStrategy
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategies._plan import build_plan, reject_unknown_options
from agentguard.recover.strategy import RecoveryContext


class RestartStrategy(BaseStrategy):
    """The acceptance-test loop's step: re-execution with another input (Wang, IFIP WG 10.4, 2024).

    A deterministic agent repeats its failure on the same input, so what went wrong is added to the task.

    Args:
        times: that a run may be begun again for one and the same reason; the budgets ``rollbacks`` and
            ``per_step`` must allow as many.

    Raises:
        ConfigError: ``times`` is no whole number of at least 1, or an option does not exist.
    """

    name = "restart"

    def __init__(self, *, times: int = 1, **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise ConfigError(f"strategy 'restart': times is {times!r}, expected 1 or more")
        self.max_attempts = times

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Restart with the correction as a note; effects that stand are told."""
        if not context.capabilities.restart:
            return None
        reason = to_sentence(context.hypothesis.reason)
        note = f"[guard] An earlier attempt failed. {reason} {format_advice(context.hypothesis)}"
        done = context.ledger.list_active_since(0)
        if done:
            note += f" These calls have already taken effect; do not repeat them: {format_effects(done)}."
        return build_plan(
            context, self.name, RecoveryTier.RESTART, Restart(note=note), undone=context.last_step + 1
        )
