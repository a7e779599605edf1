"""``reprompt``, ``rollback`` and ``compensate``: undo the faulty step and send the agent a correction."""

from __future__ import annotations

from typing import Literal, get_args

from agentguard.errors import ConfigError
from agentguard.recover.actions import Compensate, Reject, Rewind, SendMessage
from agentguard.recover.agent_messages import format_correction, format_rejection
from agentguard.recover.effect_store import Effect
from agentguard.recover.outcome_verification import get_plan_resume_step
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategies._plan import build_plan, reject_unknown_options
from agentguard.recover.strategy import BaseStrategy, RecoveryContext


class RepromptStrategy(BaseStrategy):
    """Rejection of the uncommitted last step (T0): its tools have not run, so no effect must be undone.

    Args:
        times: number of consecutive answers to the same request that the strategy may reject; more than one
            takes precedence over the budget ``rollbacks_per_step``.

    Raises:
        ConfigError: ``times`` is not a whole number of at least 1, or an option does not exist.
    """

    name = "reprompt"

    def __init__(self, *, times: int = 1, **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise ConfigError(f"strategy 'reprompt': times is {times!r}, expected 1 or more")
        self.max_attempts = times

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Reject the last step and request another; None if it is committed or not the faulty step."""
        if context.is_committed or context.hypothesis.step != context.last_step:
            return None
        if not (context.capabilities.reject and context.capabilities.send_message):
            return None
        # The messages of the agent do not show the effects of abandoned branches, so the text lists them.
        text = format_rejection(context.hypothesis, context.ledger.list_active_since(context.last_step))
        return build_plan(context, self.name, RecoveryTier.REJECT, Reject(), SendMessage(text=text), undone=1)


RollbackPreference = Literal["cheapest", "fork"]


class RollbackStrategy(BaseStrategy):
    """Rollback: T0 (reject) for an uncommitted last step, otherwise T1 (truncate) or T2 (fork).

    Args:
        prefer: ``"cheapest"`` truncates the messages if possible. ``"fork"`` restores the saved state if
            possible, so that state outside the messages is rolled back, too. Without a saved state before the
            step itself, a fork restores the nearest earlier one.

    Raises:
        ConfigError: an option does not exist or has another value.
    """

    name = "rollback"

    def __init__(self, *, prefer: RollbackPreference = "cheapest", **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)
        if prefer not in get_args(RollbackPreference):
            raise ConfigError(f"strategy 'rollback': prefer is {prefer!r}, expected cheapest or fork")
        self.prefer = prefer
        self._reprompt = RepromptStrategy()

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Roll back to the step of the hypothesis; None if the integration can neither truncate nor fork."""
        if self.prefer == "cheapest" and (light := self._reprompt.plan(context)) is not None:
            return build_plan(context, self.name, RecoveryTier.REJECT, *light.actions, undone=1)
        rewind = self.build_rewind(context)
        if rewind is None or not context.capabilities.send_message:
            return None
        back, step = rewind.to_step, context.hypothesis.step
        text = format_correction(
            context.hypothesis,
            context.ledger.list_active_since(back),
            extra_steps=step - back,
            attempt=context.run.steps[step],
        )
        tier = RecoveryTier.FORK if rewind.by == "fork" else RecoveryTier.TRUNCATE
        actions = (rewind, SendMessage(text=text))
        return build_plan(context, self.name, tier, *actions, undone=context.last_step + 1 - back)

    def build_rewind(self, context: RecoveryContext) -> Rewind | None:
        """Return the rewind action; a fork restores the nearest saved state at or before the step.

        Return None if the integration can neither truncate nor fork.
        """
        can, step = context.capabilities, context.hypothesis.step
        saved = context.find_restorable_step(step) if can.fork else None
        if saved is not None and (self.prefer == "fork" or not can.truncate):
            return Rewind(to_step=saved, by="fork")
        return Rewind(to_step=step, by="truncate") if can.truncate else None


class CompensateStrategy(BaseStrategy):
    """Rollback with compensation (T3): undo functions run in reverse order of the effects.

    A message to the agent lists the effects that remain. An effect with unknown outcome is never undone: the
    undo of an effect that did not occur would be a new effect.

    Args:
        prefer: as in `RollbackStrategy`.
    """

    name = "compensate"

    def __init__(self, *, prefer: RollbackPreference = "cheapest", **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)
        self._rollback = RollbackStrategy(prefer=prefer)

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Undo effects, then roll back; None if there is no effect to undo or the integration cannot."""
        rollback = self._rollback.plan(context)
        if rollback is None or not context.capabilities.compensate:
            return None
        back = get_plan_resume_step(rollback, default=context.hypothesis.step)
        since = context.ledger.list_active_since(back)
        undone = tuple(effect for effect in reversed(since) if self._is_undoable(context, effect))
        if not undone:
            return None
        remaining = tuple(effect for effect in since if effect not in undone)
        message = SendMessage(
            text=format_correction(
                context.hypothesis,
                remaining,
                undone=undone,
                extra_steps=context.hypothesis.step - back,
                attempt=context.run.steps[context.hypothesis.step],
            )
        )
        rest = tuple(action for action in rollback.actions if not isinstance(action, SendMessage))
        actions = (Compensate(effects=undone), *rest, message)
        return build_plan(context, self.name, RecoveryTier.COMPENSATE, *actions, undone=rollback.undone)

    @staticmethod
    def _is_undoable(context: RecoveryContext, effect: Effect) -> bool:
        declared = context.ledger.get_tool_effect(effect.tool)
        return effect.is_done and declared.undo is not None
