"""What a user decides about recovery: ladders (``on_fail``, strategies from the mildest on) and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentguard.errors import AgentGuardError, ConfigError
from agentguard.recover.base import Strategy, strategies
from agentguard.recover.budget import Budget
from agentguard.recover.planner import Planner
from agentguard.recover.protect import PROTECTION, Protect, Rung
from agentguard.recover.verify import Verification

DEFAULT_LADDER: tuple[Rung, ...] = ("nudge", "rollback")
"""What is done where a policy says nothing: neither rung can end a run that would have passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recover:
    """How a guard recovers.

    Attributes:
        on_fail: the ladder of all detectors that have none of their own.
        ladders: detector name (or ``"acceptance"``) to its own ladder.
        budget: what recoveries of one run may cost.
        verification: how their outcome is judged.
        threshold: probability from which a finding sets off a recovery, in (0, 1].
        top_k: hypotheses of one diagnosis that may be acted on.
        on_error: whether a run goes on (``"open"``) or is stopped (``"closed"``) when a part of the guard
            fails.
        protect: turns on which candidates vote before their tools run, though nothing was found; None for
            none.
    """

    on_fail: Rung | Sequence[Rung] = DEFAULT_LADDER
    ladders: Mapping[str, Rung | Sequence[Rung]] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    verification: Verification = field(default_factory=Verification)
    threshold: float = 0.5
    top_k: int = 3
    on_error: Literal["open", "closed"] = "open"
    protect: Protect | None = None

    def planner(self) -> Planner:
        """Make the strategies. Raises ConfigError or UnknownPlugin if a ladder cannot be made."""
        if not 0 < self.threshold <= 1:
            raise ConfigError(f"recover: threshold is {self.threshold}, expected a number in (0, 1]")
        own = {name: ladder(rungs, of=name) for name, rungs in self.ladders.items()}
        if self.protect is not None:
            own[PROTECTION] = ladder(self.protect.rungs(), of=PROTECTION)
        return Planner(ladder(self.on_fail, of="all detectors"), own, top_k=self.top_k)


def ladder(rungs: Rung | Sequence[Rung], *, of: str) -> tuple[Strategy, ...]:
    """Make the strategies of a ladder.

    Args:
        rungs: one rung, or several from the mildest on.
        of: whose ladder it is, for messages: a detector's name.

    Raises:
        ConfigError: a rung is neither a name nor a name with options, or an option is wrong.
        UnknownPlugin: no strategy has that name.
    """
    several = [rungs] if isinstance(rungs, str | Mapping) else list(rungs)
    if not several:
        raise ConfigError(f"on_fail of {of}: name at least one strategy")
    return tuple(_made(rung, of) for rung in several)


def _made(rung: object, of: str) -> Strategy:
    name, options = _split(rung, of)
    factory = strategies().get(name)
    try:
        return factory(**options)
    except AgentGuardError:
        raise
    except Exception as error:  # a third party's factory may raise anything on options it does not expect
        raise ConfigError(f"on_fail of {of}: {name!r} cannot be made: {type(error).__name__}") from error


def _split(rung: object, of: str) -> tuple[str, dict[str, Any]]:
    if isinstance(rung, str):
        return rung, {}
    if isinstance(rung, Mapping) and len(rung) == 1:
        name, options = next(iter(rung.items()))
        if isinstance(name, str) and (options is None or isinstance(options, Mapping)):
            return name, {str(key): value for key, value in (options or {}).items()}
    raise ConfigError(f"on_fail of {of}: a rung is a strategy's name, or one name with its options")
