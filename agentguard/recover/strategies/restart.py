"""``restart``: restart the run with a different initial input."""

from __future__ import annotations

from agentguard.errors import ConfigError
from agentguard.recover.actions import Restart
from agentguard.recover.agent_messages import format_advice, format_effect_notes, to_sentence
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategies._plan import build_plan, reject_unknown_options
from agentguard.recover.strategy import BaseStrategy, RecoveryContext


class RestartStrategy(BaseStrategy):
    """Restart with another input, as in the acceptance-test loop (Wang, IFIP WG 10.4, 2024).

    A deterministic agent repeats its failure on the same input, so the correction is added to the task.

    Args:
        times: maximum number of restarts for the same trigger; the limits ``rollbacks`` and
            ``rollbacks_per_step`` of the budget also apply.

    Raises:
        ConfigError: ``times`` is not a whole number of at least 1, or an option does not exist.
    """

    name = "restart"

    def __init__(self, *, times: int = 1, **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise ConfigError(f"strategy 'restart': times is {times!r}, expected 1 or more")
        self.max_attempts = times

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Restart with a note on the failure, the correction and the remaining effects."""
        if not context.capabilities.restart:
            return None
        parts = [
            "[guard] An earlier attempt failed.",
            to_sentence(context.hypothesis.reason),
            format_advice(context.hypothesis),
            *format_effect_notes(context.ledger.list_active_since(0)),
        ]
        note = " ".join(part for part in parts if part)
        return build_plan(
            context, self.name, RecoveryTier.RESTART, Restart(note=note), undone=context.last_step + 1
        )
