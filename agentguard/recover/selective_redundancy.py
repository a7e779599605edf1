"""Selective redundancy: candidates vote only on the turns where an error would cost most.

Several candidates for each turn would multiply the cost of a run. Most turns only read, and their errors show
soon. So by default candidates vote only on turns whose calls have effects. The policy may add uncertain
turns: those with a finding that is probable, but below the threshold of a recovery.
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
"""Trigger name of a vote that selective redundancy starts without a finding."""

EscalationLevel = str | Mapping[str, Any]

_HARMFUL_EFFECTS = (EffectClass.WRITE, EffectClass.DESTRUCTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveRedundancy:
    """Selection of the turns on which candidates vote, and the strategy of the vote.

    Attributes:
        effects: effect classes of calls that start a vote; an undeclared tool is destructive.
        uncertainty_threshold: probability of a finding on the turn, or on the turn before it, from which
            candidates vote although it is below the policy's threshold; None disables this criterion.
        ask_localizer: also use the localizer's probability that the run fails as uncertainty. That costs
            milliseconds per turn.
        candidates, quorum: number of candidates, and how many must agree; see ``vote``.
        models: other models that vote; see ``n_version``.
        strategy: another strategy that requests candidates, as an escalation level, for example
            ``{"recovery_block": {"models": ["large"]}}``; it replaces candidates, quorum and models.
        on_fail: escalation policy if the candidates do not agree. If none of its levels has a plan, the turn
            of the largest group is accepted.

    Raises:
        ConfigError: no turn would be selected, or an effect is unknown.
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
            raise ConfigError("protect: name effects or a doubt, otherwise nothing is protected")
        if self.ask_localizer and self.uncertainty_threshold is None:
            raise ConfigError("protect: the judge needs a doubt, the probability from which it counts")

    def list_levels(self) -> tuple[EscalationLevel, ...]:
        """Return the escalation policy: the strategy of the vote, then the levels of ``on_fail``."""
        several = [self.on_fail] if isinstance(self.on_fail, str | Mapping) else list(self.on_fail)
        return (self._build_sampling_level(), *several)

    def explain(self, turn: Step, ledger: EffectLedger, uncertainty: float) -> str | None:
        """Return why candidates vote on a turn, as a sentence; None if they do not.

        Args:
            turn: turn whose tools have not run.
            ledger: ledger with the declared effects of the tools.
            uncertainty: the highest probability of an error in the turn.
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
    """Build the finding that triggers a vote under selective redundancy."""
    return Finding(detector=REDUNDANCY_TRIGGER, step=turn.index, codes=(), probability=1.0, message=reason)
