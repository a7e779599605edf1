"""Selective protection: candidates vote only on the turns where an error would cost most.

To ask several times for each turn multiplies the cost of a run. Most turns read, and a wrong one shows soon;
so by default only those are protected whose calls have effects. Turns that are in doubt may be added:
something was found that is likely, and not likely enough to act on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.recover.tool_effects import EffectClass
from agentguard.trajectory.model import Step

REDUNDANCY_TRIGGER = "protection"
"""The trigger's name where a turn is protected, and nothing was found."""

EscalationLevel = str | Mapping[str, Any]

_HARMFUL_EFFECTS = (EffectClass.WRITE, EffectClass.DESTRUCTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveRedundancy:
    """Which turns are protected, and how.

    Attributes:
        effects: effects of a turn's calls that protect it; a tool that nothing is declared of is destructive.
        doubt: probability from which, up to the policy's threshold, a finding on the turn, or on the turn
            before it, puts it in doubt; None protects none for doubt.
        judge: let the guard's localizer judge each turn, too: its probability that the run fails counts as
            doubt. That costs milliseconds a turn.
        n, quorum: candidates, and how many must agree; see ``vote``.
        models: other models that vote; see ``n_version``.
        by: another strategy that samples, as a rung, e.g. ``{"recovery_block": {"models": ["large"]}}``; then
            n, quorum and models are not used.
        on_fail: the ladder that is taken where the candidates do not agree. When nothing on it can be done,
            the turn that most of them agree on is let through.

    Raises:
        ConfigError: nothing would be protected, or there is no such effect.
    """

    effects: Sequence[str] = _HARMFUL_EFFECTS
    uncertainty_threshold: float | None = None
    ask_localizer: bool = False
    candidates: int = 3
    quorum: int | None = None
    models: Sequence[str] = ()
    strategy: EscalationLevel | None = None
    on_fail: EscalationLevel | Sequence[EscalationLevel] = ("reprompt",)

    def __post_init__(self) -> None:
        unknown = set(self.effects) - set(EffectClass)
        if unknown:
            known = ", ".join(EffectClass)
            raise ConfigError(f"protect: effects has {', '.join(sorted(unknown))}, expected {known}")
        if self.uncertainty_threshold is not None and not 0 < self.uncertainty_threshold < 1:
            raise ConfigError(f"protect: doubt is {self.uncertainty_threshold}, expected a number in (0, 1)")
        if not self.effects and self.uncertainty_threshold is None:
            raise ConfigError("protect: name effects or a doubt, or nothing is protected")
        if self.ask_localizer and self.uncertainty_threshold is None:
            raise ConfigError("protect: the judge needs a doubt, the probability from which it counts")

    def list_levels(self) -> tuple[EscalationLevel, ...]:
        """The ladder of protected turns: how they are protected, then what is done without agreement."""
        several = [self.on_fail] if isinstance(self.on_fail, str | Mapping) else list(self.on_fail)
        return (self._build_sampling_level(), *several)

    def explain(self, turn: Step, ledger: EffectLedger, uncertainty: float) -> str | None:
        """Why a turn is protected, in a sentence; None if it is not.

        Args:
            turn: whose tools have not run.
            ledger: what is declared of the tools.
            doubt: the highest probability that something is wrong with it.
        """
        for call in turn.tool_calls:
            effect = ledger.get_tool_effect(call.name).effect
            if effect in self.effects:
                return f"A call of {call.name} is {effect.value}, which is protected."
        if self.uncertainty_threshold is not None and uncertainty >= self.uncertainty_threshold:
            return f"The turn is in doubt (p={uncertainty:.2f})."
        return None

    def _build_sampling_level(self) -> EscalationLevel:
        if self.strategy is not None:
            return self.strategy
        quorum = {} if self.quorum is None else {"quorum": self.quorum}
        if self.models:
            return {"n_version": {"models": tuple(self.models), **quorum}}
        return {"vote": {"n": self.candidates, **quorum}}


def build_redundancy_finding(turn: Step, reason: str) -> Finding:
    """That a turn is protected, as what sets off an election."""
    return Finding(detector=REDUNDANCY_TRIGGER, step=turn.index, codes=(), probability=1.0, message=reason)
