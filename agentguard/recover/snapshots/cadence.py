"""How often to save the state: where its cost and the work that a failure undoes are least together.

With a snapshot that costs *C* seconds and failures *M* seconds apart, Young (1974, "A first order
approximation to the optimum checkpoint interval") saves every ``sqrt(2 C M)`` seconds; Daly (2006, "A higher
order estimate of the optimum checkpoint interval for restart dumps") adds the terms that matter where *C* is
not small beside *M*. A state can be saved only between turns, so the interval is a whole number of turns.

All of it is measured while the run goes on: the cost of a snapshot, the time that a turn takes (and would
take again), and how many turns lie between failures. A failure is whatever needs a saved state.
"""

from __future__ import annotations

import math

from agentguard.errors import ConfigError


def daly(cost: float, between: float) -> float:
    """The best interval between two snapshots, in the unit of its arguments.

    Args:
        cost: of one snapshot, 0 or more.
        between: mean time between failures, over 0.
    """
    if cost >= 2 * between:
        return between
    part = cost / (2 * between)
    return math.sqrt(2 * cost * between) * (1 + math.sqrt(part) / 3 + part / 9) - cost


class Cadence:
    """Says at which boundary to save. Time comes in as numbers of seconds; there is no clock in here.

    Args:
        turns_between: turns that are thought to lie between two failures before any was seen: it counts as
            one failure in so many turns.
        most: turns between two snapshots at most.
        free: seconds that count as no cost: a turn has a price in tokens, too, however little time it takes.
        weight: of the latest measurement in the moving averages, in (0, 1].

    Raises:
        ConfigError: one of them is out of its range.
    """

    def __init__(
        self, *, turns_between: float = 25.0, most: int = 32, free: float = 0.005, weight: float = 0.25
    ) -> None:
        if not (math.isfinite(turns_between) and turns_between > 0 and most >= 1 and 0 < weight <= 1):
            raise ConfigError("snapshots: turns_between is over 0, most at least 1, weight in (0, 1]")
        self._prior, self._most, self._free, self._weight = turns_between, most, free, weight
        self._cost: float | None = None
        self._turn: float | None = None
        self._turns = self._failures = 0
        self._since = 0

    @property
    def interval(self) -> int:
        """Turns from one snapshot to the next, as things stand; 1 saves at each boundary."""
        cost, turn = self._cost, self._turn
        if cost is None or turn is None or cost <= self._free:
            return 1
        if turn <= 0:
            return self._most
        best = daly(cost / turn, self.between)
        return min(self._most, max(1, round(best)))

    @property
    def between(self) -> float:
        """Turns between two failures, as it is held now: what was seen, and the prior as one failure more."""
        return (self._prior + self._turns) / (1 + self._failures)

    def due(self) -> bool:
        """Whether to save at this boundary."""
        return self._since >= self.interval

    def took(self, seconds: float) -> None:
        """A snapshot was made and took so long."""
        self._cost = self._mean(self._cost, seconds)
        self._since = 0

    def turned(self, seconds: float) -> None:
        """A turn went by and took so long."""
        self._turn = self._mean(self._turn, seconds)
        self._turns += 1
        self._since += 1

    def failed(self) -> None:
        """A saved state was needed; the run goes on from it."""
        self._failures += 1
        self._since = 0

    def _mean(self, so_far: float | None, new: float) -> float:
        new = max(0.0, new)
        return new if so_far is None else so_far + self._weight * (new - so_far)
