"""One attempt to make a failed run: a twin that wins, the same run with one error, and what became of it.

The two runs share the game, the seed, the agent's character, its slips and the passing troubles, so that the
error is all that tells them apart: if the twin wins and the run does not, the error is the cause.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentguard.testing.textworld.errors import catalogue
from agentguard.testing.textworld.faults import Outage, Trouble, outage, passing
from agentguard.testing.textworld.generated import Scenario
from agentguard.testing.textworld.library import GameLibrary
from agentguard.testing.textworld.process import ErrorProcess, Injection, Probe
from agentguard.testing.textworld.run import TextWorldRun

PASSING_RATE = 0.02
"""Passing outages a turn, in every run."""
SYSTEM = "system"
_LONG = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A run in which an error struck.

    Attributes:
        run: the run, at its end.
        code, variant, reason: which error, and what it is.
        step: index of the step at which it struck.
        twin_steps: steps of the twin that won.
    """

    run: TextWorldRun
    code: str
    variant: str
    reason: str
    step: int
    twin_steps: int


class Attempt:
    """The twin of a seed, and the runs that can be made of it.

    Args:
        scenario: the game.
        games: where games are kept.
        seed: of the agent.
    """

    def __init__(self, scenario: Scenario, games: GameLibrary, seed: int) -> None:
        self.scenario, self.games, self.seed = scenario, games, seed
        self._trouble = passing(seed, scenario.max_turns, rate=PASSING_RATE)
        self._probe = Probe()
        self.twin = self._run(self._probe, self._trouble).play()

    def struck(self, code: str, *, tries: int) -> Iterator[Struck]:
        """Runs with an error of ``code``, at up to ``tries`` places drawn from the seed; the twin has won."""
        rng = random.Random(f"place:{code}:{self.seed}")  # noqa: S311
        if code.startswith(SYSTEM):
            made = self._system(code, rng)
            if made is not None:
                yield made
            return
        places = [
            (name, turn)
            for name, turns in sorted(self._probe.possible.items())
            if catalogue()[name].code == code
            for turn in turns
        ]
        for name, turn in rng.sample(places, min(tries, len(places))):
            yield self._injected(name, turn)

    def _injected(self, name: str, turn: int) -> Struck:
        run = self._run(Injection(name=name, turn=turn), self._trouble).play()
        error = catalogue()[name]
        return self._made(run, error.code, error.variant, error.reason, turn - 1)

    def _system(self, code: str, rng: random.Random) -> Struck | None:
        length = len(self.twin.trajectory.steps)
        if length < 4:
            return None
        if code == "system.step_limit":
            scenario = self.scenario.limited(rng.randint((length + 1) // 2, length - 1))
            run = self._run(ErrorProcess(), self._trouble, scenario).play()
            return self._made(
                run, code, "limit", "The turns allowed were used up.", len(run.trajectory.steps) - 1
            )
        turn = rng.randint(2, length)
        if code == "system.llm_limit":
            run = self._run(ErrorProcess(), replace(self._trouble, cut_at=turn)).play()
            return self._made(run, code, "cut", "The reply was cut off by a limit of its length.", turn - 1)
        run = self._run(ErrorProcess(), self._with(self._outage(code, turn, rng))).play()
        silent = code == "system.environment_error"
        reason = "The environment ceased to answer." if silent else "A tool ceased to work."
        return self._made(run, code, "silent" if silent else "tool", reason, turn - 1)

    def _outage(self, code: str, turn: int, rng: random.Random) -> Outage:
        silent = code == "system.environment_error"
        calls = self.twin.trajectory.steps[turn - 1].tool_calls
        tool = None if silent or not calls else calls[0].name
        return outage(rng, start=turn, length=rng.choice((6, 12, _LONG)), tool=tool, silent=silent)

    def _with(self, one: Outage) -> Trouble:
        return replace(self._trouble, outages=(one, *self._trouble.outages))

    def _run(self, errors: ErrorProcess, trouble: Trouble, scenario: Scenario | None = None) -> TextWorldRun:
        return TextWorldRun(
            scenario or self.scenario,
            self.games,
            seed=self.seed,
            errors=errors,
            trouble=trouble,
            history=False,
        )

    def _made(self, run: TextWorldRun, code: str, variant: str, reason: str, step: int) -> Struck:
        return Struck(
            run=run,
            code=code,
            variant=variant,
            reason=reason,
            step=step,
            twin_steps=len(self.twin.trajectory.steps),
        )
