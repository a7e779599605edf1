"""What recoveries of one run may cost: rollbacks in all and at a step, tokens, model calls, time.

Agent text that triggers recovery again and again must run out of budget and not of money; that is why
nothing here can be raised from within a run.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from agentguard.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryBudget:
    """Limits of one run; None is no limit.

    Attributes:
        rollbacks: times the run may be taken back, restarts among them.
        per_step: times it may be taken back to one and the same step.
        nudges: hints that may be given.
        extra_tokens: tokens that recoveries may cost, re-asked turns included.
        extra_calls: model calls that recoveries may cost.
        seconds: wall time that recoveries may take.
        samples: further candidates of turns that may be asked for, where candidates vote.
        repairs: repairs that may be made.

    Raises:
        ConfigError: a limit is negative or no number.
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
            whole = one.name != "seconds"
            if limit is None:
                continue
            if isinstance(limit, bool) or not isinstance(limit, int if whole else int | float):
                raise ConfigError(f"budget {one.name}: {limit!r} is no {'whole ' if whole else ''}number")
            if limit < 0 or not math.isfinite(limit):
                raise ConfigError(f"budget {one.name}: {limit!r} is out of range, expected 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUsage:
    """What recoveries of one run have cost so far."""

    rollbacks: int = 0
    nudges: int = 0
    tokens: int = 0
    calls: int = 0
    seconds: float = 0.0
    samples: int = 0
    repairs: int = 0


class BudgetAccount:
    """Keeps what one run has spent; thread-safe. A refusal names the limit, and spends nothing."""

    def __init__(self, budget: RecoveryBudget | None = None) -> None:
        self.budget = budget or RecoveryBudget()
        self._lock = threading.Lock()
        self._usage = BudgetUsage()
        self._rollbacks_by_step: dict[int, int] = {}

    @property
    def usage(self) -> BudgetUsage:
        """What has been spent so far."""
        return self._usage

    def restore(self, usage: BudgetUsage, rollbacks_by_step: Mapping[int, int]) -> None:
        """Go on from what a run had spent when its process died.

        Args:
            spent: in all.
            by_step: step to how often the run was taken back to it.
        """
        with self._lock:
            self._usage, self._rollbacks_by_step = usage, dict(rollbacks_by_step)

    def count_rollbacks_to(self, step: int) -> int:
        """How often the run was taken back to ``step``."""
        return self._rollbacks_by_step.get(step, 0)

    def find_exceeded_limit(
        self, *, rollback_to: int | None = None, nudge: bool = False, samples: int = 0, repair: bool = False
    ) -> str | None:
        """Name of the limit that forbids it, None if it may be done."""
        spent, budget = self._usage, self.budget
        used: list[tuple[str, float, float | None]] = [
            ("extra_tokens", spent.tokens, budget.extra_tokens),
            ("extra_calls", spent.calls, budget.extra_calls),
            ("seconds", spent.seconds, budget.seconds),
        ]
        if nudge:
            used.append(("hints", spent.nudges, budget.hints))
        if repair:
            used.append(("repairs", spent.repairs, budget.repairs))
        if samples:  # all of them must be within the limits: half a vote decides nothing
            used.append(("resamples", spent.samples + samples - 1, budget.resamples))
            used.append(("extra_calls", spent.calls + samples - 1, budget.extra_calls))
        if rollback_to is not None:
            used.append(("rollbacks", spent.rollbacks, budget.rollbacks))
            used.append(
                ("rollbacks_per_step", self.count_rollbacks_to(rollback_to), budget.rollbacks_per_step)
            )
        return next((name for name, so_far, limit in used if limit is not None and so_far >= limit), None)

    def spend(
        self, *, rollback_to: int | None = None, nudge: bool = False, samples: int = 0, repair: bool = False
    ) -> str | None:
        """Spend a rollback, a nudge or a repair. Returns the limit that forbids it, None if it was taken.

        Samples are not spent here but by `charge`: how many are asked for is known only then.
        """
        with self._lock:
            refused = self.find_exceeded_limit(
                rollback_to=rollback_to, nudge=nudge, samples=samples, repair=repair
            )
            if refused is None:
                now = self._usage
                self._usage = replace(
                    now,
                    rollbacks=now.rollbacks + (rollback_to is not None),
                    nudges=now.nudges + nudge,
                    repairs=now.repairs + repair,
                )
                if rollback_to is not None:
                    self._rollbacks_by_step[rollback_to] = self.count_rollbacks_to(rollback_to) + 1
            return refused

    def charge(self, *, tokens: int = 0, calls: int = 0, seconds: float = 0.0, samples: int = 0) -> None:
        """Add what a recovery turned out to cost; never refuses, since it has been spent already."""
        with self._lock:
            now = self._usage
            self._usage = replace(
                now,
                tokens=now.tokens + max(0, tokens),
                calls=now.calls + max(0, calls),
                seconds=now.seconds + max(0.0, seconds),
                samples=now.samples + max(0, samples),
            )
