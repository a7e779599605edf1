"""``compensate``: undo what the tools did since the step at fault, then roll back."""

from __future__ import annotations

from agentguard.recover.base import Compensate, Plan, Situation, Tell, Tier
from agentguard.recover.ledger import Effect, EffectState
from agentguard.recover.strategies._plan import plan, reject
from agentguard.recover.strategies.rollback import Prefer, Rollback
from agentguard.recover.verify import resumed_from
from agentguard.recover.wording import correction


class CompensateEffects:
    """T3. Undoes the effects that have an undo, the latest first; the agent is told of those that stay.

    An effect in doubt is never undone: undoing what did not happen is an effect of its own.

    Args:
        prefer: as in `Rollback`.
    """

    name = "compensate"

    def __init__(self, *, prefer: Prefer = "cheapest", **unknown: object) -> None:
        reject(self.name, unknown)
        self._rollback = Rollback(prefer=prefer)

    def plan(self, situation: Situation) -> Plan | None:
        """Undo, then rewind; None if nothing can be undone or the integration cannot rewind."""
        under = self._rollback.plan(situation)
        if under is None or not situation.can.compensate:
            return None
        back = resumed_from(under, default=situation.hypothesis.step)
        since = situation.ledger.since(back)
        undone = tuple(effect for effect in reversed(since) if self._undoable(situation, effect))
        if not undone:
            return None
        kept = tuple(effect for effect in since if effect not in undone)
        further = situation.hypothesis.step - back
        told = Tell(text=correction(situation.hypothesis, kept, undone=undone, further=further))
        rest = tuple(action for action in under.actions if not isinstance(action, Tell))
        actions = (Compensate(effects=undone), *rest, told)
        return plan(situation, self.name, Tier.COMPENSATE, *actions, undone=under.undone)

    @staticmethod
    def _undoable(situation: Situation, effect: Effect) -> bool:
        known = situation.ledger.declared(effect.tool)
        return effect.state is EffectState.DONE and known.undo is not None
