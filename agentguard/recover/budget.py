"""Budget of the recoveries of one run: rollbacks, hints, tokens, model calls and time.

A run cannot raise its own limits. So the cost is bounded even if the text of an agent triggers recoveries
again and again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from agentguard.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryBudget:
    """Limits of the recoveries of one run; None means unlimited.

    Attributes:
        rollbacks: number of rollbacks, including restarts.
        rollbacks_per_step: number of rollbacks to the same step.
        hints: number of hints.
        extra_tokens: tokens of recoveries, including repeated turns.
        extra_calls: model calls of recoveries.
        seconds: wall time of recoveries.
        resamples: number of further candidates in votes.
        repairs: number of repairs.

    Raises:
        ConfigError: a limit is negative or not a number.
    """

    rollbacks: int | None = 3
    rollbacks_per_step: int | None = 1
    hints: int | None = 3
    extra_tokens: int | None = 20_000
    extra_calls: int | None = None
    seconds: float | None = None
    resamples: int | None = 50
    repairs: int | None = 20

    def __post_init__(self) -> None:
        for one in fields(self):
            limit = getattr(self, one.name)
            is_integer = one.name != "seconds"
            if limit is None:
                continue
            if isinstance(limit, bool) or not isinstance(limit, int if is_integer else int | float):
                raise ConfigError(
                    f"budget {one.name}: {limit!r} is not a {'whole ' if is_integer else ''}number"
                )
            if limit < 0 or not math.isfinite(limit):
                raise ConfigError(f"budget {one.name}: {limit!r} is out of range, expected 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUsage:
    """Cost of the recoveries of one run so far."""

    rollbacks: int = 0
    hints: int = 0
    tokens: int = 0
    calls: int = 0
    seconds: float = 0.0
    samples: int = 0
    repairs: int = 0


@dataclass(slots=True, eq=False)
class BudgetAccount:
    """Budget account of one run; thread-safe.

    Attributes:
        budget: limits of the run.
        usage: cost of the recoveries so far; only the account changes it.
    """

    budget: RecoveryBudget = field(default_factory=RecoveryBudget)
    usage: BudgetUsage = field(default_factory=BudgetUsage, init=False)
    _rollbacks_by_step: dict[int, int] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def restore(self, usage: BudgetUsage, rollbacks_by_step: Mapping[int, int]) -> None:
        """Restore the usage of a run whose process died.

        Args:
            usage: total usage.
            rollbacks_by_step: number of rollbacks to each step.
        """
        with self._lock:
            self.usage, self._rollbacks_by_step = usage, dict(rollbacks_by_step)

    def count_rollbacks_to(self, step: int) -> int:
        """Return the number of rollbacks to ``step``."""
        return self._rollbacks_by_step.get(step, 0)

    def find_exceeded_limit(
        self, *, rollback_to: int | None = None, hint: bool = False, samples: int = 0, repair: bool = False
    ) -> str | None:
        """Return the name of the limit that an operation would exceed; None if it is within the budget.

        Args:
            rollback_to: index of the step of a rollback; None without a rollback.
            hint: True for a hint.
            samples: number of further candidates of a vote.
            repair: True for a repair.
        """
        spent, budget = self.usage, self.budget
        used: list[tuple[str, float, float | None]] = [
            ("extra_tokens", spent.tokens, budget.extra_tokens),
            ("extra_calls", spent.calls, budget.extra_calls),
            ("seconds", spent.seconds, budget.seconds),
        ]
        if hint:
            used.append(("hints", spent.hints, budget.hints))
        if repair:
            used.append(("repairs", spent.repairs, budget.repairs))
        if samples:  # the limits must admit all candidates, since a partial vote decides nothing
            used.append(("resamples", spent.samples + samples - 1, budget.resamples))
            used.append(("extra_calls", spent.calls + samples - 1, budget.extra_calls))
        if rollback_to is not None:
            used.append(("rollbacks", spent.rollbacks, budget.rollbacks))
            used.append(
                ("rollbacks_per_step", self.count_rollbacks_to(rollback_to), budget.rollbacks_per_step)
            )
        return next((name for name, so_far, limit in used if limit is not None and so_far >= limit), None)

    def spend(
        self, *, rollback_to: int | None = None, hint: bool = False, samples: int = 0, repair: bool = False
    ) -> str | None:
        """Count a rollback, a hint or a repair, unless it would exceed a limit; then return the limit's name.

        The arguments are those of `find_exceeded_limit`. `charge` counts the samples, since their number is
        known only after the vote.
        """
        with self._lock:
            refused = self.find_exceeded_limit(
                rollback_to=rollback_to, hint=hint, samples=samples, repair=repair
            )
            if refused is None:
                now = self.usage
                self.usage = replace(
                    now,
                    rollbacks=now.rollbacks + (rollback_to is not None),
                    hints=now.hints + hint,
                    repairs=now.repairs + repair,
                )
                if rollback_to is not None:
                    self._rollbacks_by_step[rollback_to] = self.count_rollbacks_to(rollback_to) + 1
            return refused

    def charge(self, *, tokens: int = 0, calls: int = 0, seconds: float = 0.0, samples: int = 0) -> None:
        """Add the actual cost of a recovery, also beyond the limits; negative values count as 0."""
        with self._lock:
            now = self.usage
            self.usage = replace(
                now,
                tokens=now.tokens + max(0, tokens),
                calls=now.calls + max(0, calls),
                seconds=now.seconds + max(0.0, seconds),
                samples=now.samples + max(0, samples),
            )
