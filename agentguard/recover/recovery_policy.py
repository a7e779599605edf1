"""Recovery policy: escalation policies, budget, thresholds and verification of the recoveries of a guard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentguard.errors import AgentGuardError, ConfigError
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.escalation_planner import EscalationPlanner
from agentguard.recover.outcome_verification import OutcomeVerification
from agentguard.recover.plan import REPEATED_CALL_TRIGGER
from agentguard.recover.selective_redundancy import REDUNDANCY_TRIGGER, EscalationLevel, SelectiveRedundancy
from agentguard.recover.strategy import RecoveryStrategy, adapt_strategy, strategies

DEFAULT_ESCALATION: tuple[EscalationLevel, ...] = ("hint", "rollback", "escalate", {"stop": {"patience": 12}})
"""Default escalation policy; a persistent failure ends the run after a bounded number of turns."""

EFFECT_TRIGGER = "effect"
"""Name of the escalation policy for suspicious calls of undeclared and destructive tools."""
EFFECT_ESCALATION: tuple[EscalationLevel, ...] = ("reprompt", "escalate", "stop")
"""Default escalation policy of `EFFECT_TRIGGER`; no level runs the call."""

MALFORMED_CALL_TRIGGER = "malformed_call"
"""Name of the escalation policy for calls of declared destructive tools that violate a JSON Schema."""
MALFORMED_CALL_ESCALATION: tuple[EscalationLevel, ...] = ({"reprompt": {"times": 5}}, "escalate", "stop")
"""Default escalation policy of `MALFORMED_CALL_TRIGGER`; a model corrects a type more often than a value."""

REPEATED_CALL_ESCALATION: tuple[EscalationLevel, ...] = ("reprompt", "escalate")
"""Default escalation policy of `REPEATED_CALL_TRIGGER`; after its last level the call runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """Settings of the recoveries of a guard.

    Attributes:
        on_fail: escalation policy of all detectors that have none in ``escalations``.
        escalations: escalation policy by detector name, or by one of these names: ``"acceptance"`` for the
            acceptance test, ``"effect"`` for suspicious calls of undeclared and destructive tools,
            ``"repeated_call"`` for their repetitions, ``"malformed_call"`` for arguments of destructive tools
            that violate a schema.
        budget: limits of the recoveries of one run.
        verification: verification of recovery outcomes.
        threshold: probability from which a finding triggers a recovery, in (0, 1].
        effect_threshold: probability from which a finding stops a call of an undeclared or destructive tool
            before it runs, in (0, 1].
        max_hypotheses: maximum number of hypotheses of a diagnosis that the planner tries.
        on_guard_error: ``"fail_open"`` continues the run and ``"fail_closed"`` stops it if a part of the
            guard fails.
        redundancy: selection of turns on which candidates vote before their tools run, without a finding;
            None disables it.
    """

    on_fail: EscalationLevel | Sequence[EscalationLevel] = DEFAULT_ESCALATION
    escalations: Mapping[str, EscalationLevel | Sequence[EscalationLevel]] = field(default_factory=dict)
    budget: RecoveryBudget = field(default_factory=RecoveryBudget)
    verification: OutcomeVerification = field(default_factory=OutcomeVerification)
    threshold: float = 0.5
    effect_threshold: float = 0.3
    max_hypotheses: int = 3
    on_guard_error: Literal["fail_open", "fail_closed"] = "fail_open"
    redundancy: SelectiveRedundancy | None = None

    def build_planner(self) -> EscalationPlanner:
        """Build the planner with its strategies.

        Raises:
            ConfigError: a threshold is out of its range, or a level or one of its options is wrong.
            UnknownPlugin: no strategy has the name of a level.
        """
        if not 0 < self.threshold <= 1:
            raise ConfigError(f"recover: threshold is {self.threshold}, expected a number in (0, 1]")
        if not 0 < self.effect_threshold <= 1:
            raise ConfigError(
                f"recover: effect_threshold is {self.effect_threshold}, expected a number in (0, 1]"
            )
        levels = {
            EFFECT_TRIGGER: EFFECT_ESCALATION,
            MALFORMED_CALL_TRIGGER: MALFORMED_CALL_ESCALATION,
            REPEATED_CALL_TRIGGER: REPEATED_CALL_ESCALATION,
            **self.escalations,
        }
        escalations = {name: build_escalation(policy, trigger=name) for name, policy in levels.items()}
        if self.redundancy is not None:
            escalations[REDUNDANCY_TRIGGER] = build_escalation(
                self.redundancy.list_levels(), trigger=REDUNDANCY_TRIGGER
            )
        return EscalationPlanner(
            build_escalation(self.on_fail, trigger="all detectors"),
            escalations,
            max_hypotheses=self.max_hypotheses,
        )


def build_escalation(
    levels: EscalationLevel | Sequence[EscalationLevel], *, trigger: str
) -> tuple[RecoveryStrategy, ...]:
    """Build the strategies of an escalation policy.

    Args:
        levels: one level, or several, the mildest first. A level is the name of a strategy, or a mapping of
            one name to its options.
        trigger: name of the detector, for error messages.

    Raises:
        ConfigError: a level is neither a name nor a name with options, or an option is wrong.
        UnknownPlugin: no strategy has that name.
    """
    items = [levels] if isinstance(levels, str | Mapping) else list(levels)
    if not items:
        raise ConfigError(f"on_fail of {trigger}: name at least one strategy")
    return tuple(_build_strategy(level, trigger) for level in items)


def _build_strategy(level: object, trigger: str) -> RecoveryStrategy:
    name, options = _parse_level(level, trigger)
    factory = strategies().get(name)
    try:
        return adapt_strategy(factory(**options))
    except AgentGuardError:
        raise
    except Exception as error:  # the factory of a plug-in may raise anything for unexpected options
        raise ConfigError(
            f"on_fail of {trigger}: building {name!r} failed: {type(error).__name__}"
        ) from error


def _parse_level(level: object, trigger: str) -> tuple[str, dict[str, Any]]:
    if isinstance(level, str):
        return level, {}
    if isinstance(level, Mapping) and len(level) == 1:
        name, options = next(iter(level.items()))
        if isinstance(name, str) and (options is None or isinstance(options, Mapping)):
            return name, {str(key): value for key, value in (options or {}).items()}
    raise ConfigError(
        f"on_fail of {trigger}: expected the name of a strategy, or a mapping of one name to its options"
    )
