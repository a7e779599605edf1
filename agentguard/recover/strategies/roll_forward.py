"""``roll_forward``: repair the error and continue; no work is lost and no model is called."""

from __future__ import annotations

from agentguard.errors import ConfigError
from agentguard.recover.actions import Repair, SendMessage
from agentguard.recover.agent_messages import format_repaired_call
from agentguard.recover.call_repair import apply_repairs, repair_turn
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategies._plan import build_plan, reject_unknown_options
from agentguard.recover.strategy import BaseStrategy, RecoveryContext, RepairFunction


class RollForwardStrategy(BaseStrategy):
    """Forward error recovery (Randell, Lee and Treleaven 1978; Anderson and Lee 1981).

    It repairs three kinds of errors whose correction is certain:

    - calls that violate their tool's schema and have exactly one valid reading, before they run
      (`agentguard.recover.call_repair`);
    - broken results (an error, empty or cut off) of a tool declared ``read``: the guard retries the call, and
      the new result replaces the first;
    - errors that a function of the user repairs: ``Guard(repair=...)``, or the option ``repair``.

    Args:
        acts_from: probability of a finding from which the strategy acts on a turn, even below the policy's
            threshold. A schema violation is certain; only its severity is uncertain.
        calls: True to repair calls.
        reads: True to retry failed reads.
        repair: function of the run and the hypothesis. It returns the field of the step and the new text, or
            None. A policy file cannot set it.

    Raises:
        ConfigError: an option does not exist or is out of its range.
    """

    name = "roll_forward"

    def __init__(
        self,
        *,
        acts_from: float = 0.3,
        calls: bool = True,
        reads: bool = True,
        repair: RepairFunction | None = None,
        **unknown: object,
    ) -> None:
        reject_unknown_options(self.name, unknown)
        if isinstance(acts_from, bool) or not isinstance(acts_from, int | float) or not 0 < acts_from <= 1:
            raise ConfigError(f"strategy 'roll_forward': acts_from is {acts_from!r}, expected (0, 1]")
        if repair is not None and not callable(repair):
            raise ConfigError("strategy 'roll_forward': repair is not a function")
        self.min_confidence, self.repairs_calls, self.retries_reads = float(acts_from), calls, reads
        self.repair = repair

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Repair the step; None if the correct value is unknown."""
        if not context.capabilities.repair:
            return None
        user_plan = self._plan_user_repair(context)
        if user_plan is not None:
            return user_plan
        if not self.repairs_calls or context.is_committed or context.hypothesis.step != context.last_step:
            return None
        repaired = repair_turn(context.run.steps[context.last_step], context.run)
        if repaired is None:
            return None
        repairs, changes = repaired
        messages = (
            (SendMessage(text=format_repaired_call(changes)),) if context.capabilities.send_message else ()
        )
        return build_plan(context, self.name, RecoveryTier.REPAIR, *repairs, *messages)

    def _plan_user_repair(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Return a plan with the repair by the user's function; None if it has none for this field."""
        function = self.repair or context.repair_function
        repaired = None if function is None else function(context.run, context.hypothesis)
        if repaired is None:
            return None
        step = context.hypothesis.step
        field, text = repaired
        is_uncommitted = not context.is_committed and step == context.last_step
        if is_uncommitted == field.startswith("observations"):
            return None  # in a committed turn only results can change; an uncommitted turn has none
        repair = Repair(step=step, field=field, text=text)
        apply_repairs(context.run.steps[step], (repair,))  # raises if the repair is invalid
        message = f"[guard] {field} of your step {step} was wrong and has been corrected."
        return self._build_plan(context, repair, message=message)

    def _build_plan(self, context: RecoveryContext, *repairs: Repair, message: str) -> RecoveryPlan:
        messages = (SendMessage(text=message),) if context.capabilities.send_message else ()
        return build_plan(context, self.name, RecoveryTier.REPAIR, *repairs, *messages)
