"""Selective redundancy: candidates vote only on the turns in which an error costs most.

Several candidates for each turn would multiply the cost of a run. Most turns only read, and a later step
shows their errors. So by default candidates vote only on turns whose calls have effects. The policy may add
uncertain turns: those with a probable finding below the threshold of a recovery.
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
        effects: effect classes of calls that start a vote; an undeclared tool counts as destructive.
        uncertainty_threshold: probability of a finding on the turn, or on the turn before it, from which
            candidates vote although it is below the policy's threshold; None disables this criterion.
        ask_localizer: True to use the localizer's probability of a failure, too, as uncertainty of a turn. It
            takes milliseconds per turn.
        candidates, quorum: number of candidates, and number of those that must agree; see ``vote``.
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
            raise ConfigError(f"redundancy: effects has {', '.join(sorted(unknown))}, expected {known}")
        if self.uncertainty_threshold is not None and not 0 < self.uncertainty_threshold < 1:
            raise ConfigError(
                f"redundancy: uncertainty_threshold is {self.uncertainty_threshold}, expected (0, 1)"
            )
        if not self.effects and self.uncertainty_threshold is None:
            raise ConfigError("redundancy: no turn is selected; set effects or uncertainty_threshold")
        if self.ask_localizer and self.uncertainty_threshold is None:
            raise ConfigError("redundancy: ask_localizer needs uncertainty_threshold")

    def list_levels(self) -> tuple[EscalationLevel, ...]:
        """Return the escalation policy: the strategy of the vote, then the levels of ``on_fail``."""
        levels = [self.on_fail] if isinstance(self.on_fail, str | Mapping) else list(self.on_fail)
        return (self._build_sampling_level(), *levels)

    def explain(self, turn: Step, ledger: EffectLedger, uncertainty: float) -> str | None:
        """Return the reason for a vote on a turn as a sentence; None if there is no vote.

        Args:
            turn: turn whose tools have not run.
            ledger: ledger with the declared effects of the tools.
            uncertainty: the highest probability of an error in the turn.
        """
        for call in turn.tool_calls:
            effect = ledger.get_tool_effect(call.name).effect
            if effect in self.effects:
                return f"{call.name} has the effect {effect.value!r}, so its calls are put to a vote."
        if self.uncertainty_threshold is not None and uncertainty >= self.uncertainty_threshold:
            return f"The turn is uncertain (probability of an error {uncertainty:.2f})."
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
