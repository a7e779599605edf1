"""The scripted agent of `recovery.py`: its errors, and its assumed reaction to corrections."""

from __future__ import annotations

from agentguard_lab.textworld.default_rates import AGENT_ERRORS
from agentguard_lab.textworld.error_process import Rates
from agentguard_lab.textworld.game_cache import GameLibrary
from agentguard_lab.textworld.run import TextWorldRun
from agentguard_lab.textworld.scenarios import Scenario

from agentguard.trajectory.model import Step, Trajectory

ACCEPTANCE_RATES = {"half": 0.5, "always": 1.0, "never": 0.0}
"""Share of the corrections that the agent follows, under each assumption."""


class Scripted:
    """The scripted agent in a game, with an assumed reaction to corrections.

    Args:
        seed: seed of its character and its random numbers.
        acceptance_rate: share of the corrections that the agent follows.
        rate: errors per turn, over all kinds.
    """

    def __init__(
        self, given: Scenario, games: GameLibrary, *, seed: int, acceptance_rate: float, rate: float
    ) -> None:
        weights = {code: weight for code, weight in AGENT_ERRORS.items() if not code.startswith("system")}
        total = sum(weights.values())
        rates = Rates(rates={code: rate * weight / total for code, weight in weights.items()})
        self.acceptance_rate = acceptance_rate
        self._run = TextWorldRun(given, games, seed=seed, errors=rates)
        self._struck: tuple[int, ...] = ()

    @property
    def trajectory(self) -> Trajectory:
        return self._run.trajectory

    @property
    def done(self) -> bool:
        return self._run.done

    @property
    def won(self) -> bool:
        return self._run.won

    @property
    def struck(self) -> tuple[int, ...]:
        return self._struck

    def think(self) -> Step:
        before = len(self._run.errors.occurrences)
        step = self._run.think()
        if len(self._run.errors.occurrences) > before:
            self._struck = (*self._struck, step.index)
        return step

    def act(self) -> Step:
        return self._run.act()

    def refuse(self, correction: str) -> None:
        self._struck = tuple(step for step in self._struck if step < len(self._run.trajectory.steps))
        self._run.refuse(correction, acceptance_rate=self.acceptance_rate)

    def truncate(self, to_step: int, correction: str) -> None:
        self._struck = tuple(step for step in self._struck if step < to_step)
        self._run.truncate(to_step, correction, acceptance_rate=self.acceptance_rate)

    def correct(self, correction: str) -> None:
        self._run.correct(correction, acceptance_rate=self.acceptance_rate)

    def copy(self) -> Scripted:
        made = Scripted.__new__(Scripted)
        made.acceptance_rate, made._run, made._struck = self.acceptance_rate, self._run.copy(), self._struck
        return made

    def with_acceptance_rate(self, share: float) -> Scripted:
        """Return a copy of the run at the same point, under another assumption."""
        made = self.copy()
        made.acceptance_rate = share
        return made
