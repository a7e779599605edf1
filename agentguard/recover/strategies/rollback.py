"""``rollback``: take the run back to before the step at fault and tell the agent what to do instead."""

from __future__ import annotations

from typing import Literal, get_args

from agentguard.errors import ConfigError
from agentguard.recover.actions import Compensate, Reject, Rewind, SendMessage
from agentguard.recover.agent_messages import format_correction
from agentguard.recover.base_strategy import BaseStrategy
from agentguard.recover.effect_ledger import Effect, EffectState
from agentguard.recover.outcome_verification import get_plan_resume_step
from agentguard.recover.plan import RecoveryPlan, RecoveryTier
from agentguard.recover.strategies._plan import build_plan, reject_unknown_options
from agentguard.recover.strategy import RecoveryContext


class RepromptStrategy(BaseStrategy):
    """T0: no tool has run yet, so nothing has to be undone. Only for a fault of the last step."""

    name = "reprompt"

    def __init__(self, **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Reject the last step and ask again; None where it is committed or not the one at fault."""
        if context.is_committed or context.hypothesis.step != context.last_step:
            return None
        if not (context.capabilities.reject and context.capabilities.send_message):
            return None
        # Effects of lines that were left stay out of the agent's sight: they are told here, too.
        told = format_correction(context.hypothesis, context.ledger.list_active_since(context.last_step))
        return build_plan(context, self.name, RecoveryTier.REJECT, Reject(), SendMessage(text=told), undone=1)


RollbackPreference = Literal["cheapest", "fork"]


class RollbackStrategy(BaseStrategy):
    """T0 where the last step is at fault and not committed, else T1 (truncate) or T2 (fork).

    Args:
        prefer: ``"cheapest"`` truncates the messages where it can; ``"fork"`` restores the saved state where
            it can, which also takes back what agents keep outside of their messages. Where no state was saved
            just before the step, the run goes back to the nearest one before it.

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
        """Rewind to before the step of the hypothesis; None if the integration can do neither."""
        if self.prefer == "cheapest" and (light := self._reprompt.plan(context)) is not None:
            return build_plan(context, self.name, RecoveryTier.REJECT, *light.actions, undone=1)
        rewind = self.build_rewind(context)
        if rewind is None or not context.capabilities.send_message:
            return None
        back, step = rewind.to_step, context.hypothesis.step
        told = format_correction(
            context.hypothesis, context.ledger.list_active_since(back), extra_steps=step - back
        )
        tier = RecoveryTier.FORK if rewind.by == "fork" else RecoveryTier.TRUNCATE
        actions = (rewind, SendMessage(text=told))
        return build_plan(context, self.name, tier, *actions, undone=context.last_step + 1 - back)

    def build_rewind(self, context: RecoveryContext) -> Rewind | None:
        """How to rewind, and how far: a fork goes to the nearest boundary whose state was saved."""
        can, step = context.capabilities, context.hypothesis.step
        saved = context.find_restorable_step(step) if can.fork else None
        if saved is not None and (self.prefer == "fork" or not can.truncate):
            return Rewind(to_step=saved, by="fork")
        return Rewind(to_step=step, by="truncate") if can.truncate else None


class CompensateStrategy(BaseStrategy):
    """T3. Undoes the effects that have an undo, the latest first; the agent is told of those that stay.

    An effect in doubt is never undone: undoing what did not happen is an effect of its own.

    Args:
        prefer: as in `RollbackStrategy`.
    """

    name = "compensate"

    def __init__(self, *, prefer: RollbackPreference = "cheapest", **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)
        self._rollback = RollbackStrategy(prefer=prefer)

    def plan(self, context: RecoveryContext) -> RecoveryPlan | None:
        """Undo, then rewind; None if nothing can be undone or the integration cannot rewind."""
        under = self._rollback.plan(context)
        if under is None or not context.capabilities.compensate:
            return None
        back = get_plan_resume_step(under, default=context.hypothesis.step)
        since = context.ledger.list_active_since(back)
        undone = tuple(effect for effect in reversed(since) if self._is_undoable(context, effect))
        if not undone:
            return None
        kept = tuple(effect for effect in since if effect not in undone)
        further = context.hypothesis.step - back
        told = SendMessage(
            text=format_correction(context.hypothesis, kept, undone=undone, extra_steps=further)
        )
        rest = tuple(action for action in under.actions if not isinstance(action, SendMessage))
        actions = (Compensate(effects=undone), *rest, told)
        return build_plan(context, self.name, RecoveryTier.COMPENSATE, *actions, undone=under.undone)

    @staticmethod
    def _is_undoable(context: RecoveryContext, effect: Effect) -> bool:
        known = context.ledger.get_tool_effect(effect.tool)
        return effect.state is EffectState.DONE and known.undo is not None
