"""Attempt to create a failed run: a twin that wins, and the same run with one error.

Both runs share the game, the seed, the agent's character, its slips and the transient outages. The error is
the only difference: if the twin wins and the run does not, the error is the cause.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentguard_lab.textworld.error_process import ErrorProcess, Injection, Probe
from agentguard_lab.textworld.errors.catalogue import get_errors
from agentguard_lab.textworld.game_cache import GameLibrary
from agentguard_lab.textworld.outages import Outage, ToolOutage, create_outage, generate_transient_outages
from agentguard_lab.textworld.run import TextWorldRun
from agentguard_lab.textworld.scenarios import Scenario

TRANSIENT_OUTAGE_RATE = 0.02
"""Transient outages per turn, in every run."""
SYSTEM_PREFIX = "system"
_LONG_OUTAGE_TURNS = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedRun:
    """A run with an injected error.

    Attributes:
        run: the run at its end.
        code, variant, reason: code, variant and description of the error.
        step: index of the step of the error.
        twin_steps: number of steps of the winning twin.
    """

    run: TextWorldRun
    code: str
    variant: str
    reason: str
    step: int
    twin_steps: int


class TwinRun:
    """The twin of a seed, and the runs derived from it.

    Args:
        scenario: the game.
        games: cache of the games.
        seed: seed of the agent.
    """

    def __init__(self, scenario: Scenario, games: GameLibrary, seed: int) -> None:
        self.scenario, self.games, self.seed = scenario, games, seed
        self._outages = generate_transient_outages(seed, scenario.max_turns, rate=TRANSIENT_OUTAGE_RATE)
        self._probe = Probe()
        self.twin = self._create_run(self._probe, self._outages).play()

    def generate_injected_runs(self, code: str, *, tries: int) -> Iterator[InjectedRun]:
        """Yield runs with an error of ``code``, at up to ``tries`` places drawn from the seed.

        Call it only if the twin has won.
        """
        rng = random.Random(f"place:{code}:{self.seed}")  # noqa: S311
        if code.startswith(SYSTEM_PREFIX):
            injected_run = self._inject_system_error(code, rng)
            if injected_run is not None:
                yield injected_run
            return
        places = [
            (name, turn)
            for name, turns in sorted(self._probe.possible.items())
            if get_errors()[name].code == code
            for turn in turns
        ]
        for name, turn in rng.sample(places, min(tries, len(places))):
            yield self._inject_error(name, turn)

    def _inject_error(self, name: str, turn: int) -> InjectedRun:
        run = self._create_run(Injection(name=name, turn=turn), self._outages).play()
        error = get_errors()[name]
        return self._build_injected_run(run, error.code, error.variant, error.reason, turn - 1)

    def _inject_system_error(self, code: str, rng: random.Random) -> InjectedRun | None:
        length = len(self.twin.trajectory.steps)
        if length < 4:
            return None
        if code == "system.step_limit":
            scenario = self.scenario.limit_turns(rng.randint((length + 1) // 2, length - 1))
            run = self._create_run(ErrorProcess(), self._outages, scenario).play()
            return self._build_injected_run(
                run, code, "limit", "The turns allowed were used up.", len(run.trajectory.steps) - 1
            )
        turn = rng.randint(2, length)
        if code == "system.llm_limit":
            run = self._create_run(ErrorProcess(), replace(self._outages, cut_at=turn)).play()
            return self._build_injected_run(
                run, code, "cut", "The reply was cut off by a limit of its length.", turn - 1
            )
        run = self._create_run(ErrorProcess(), self._add_outage(self._draw_outage(code, turn, rng))).play()
        silent = code == "system.environment_error"
        reason = "The environment ceased to answer." if silent else "A tool ceased to work."
        return self._build_injected_run(run, code, "silent" if silent else "tool", reason, turn - 1)

    def _draw_outage(self, code: str, turn: int, rng: random.Random) -> Outage:
        silent = code == "system.environment_error"
        calls = self.twin.trajectory.steps[turn - 1].tool_calls
        tool = None if silent or not calls else calls[0].name
        return create_outage(
            rng, start=turn, length=rng.choice((6, 12, _LONG_OUTAGE_TURNS)), tool=tool, silent=silent
        )

    def _add_outage(self, one: Outage) -> ToolOutage:
        return replace(self._outages, outages=(one, *self._outages.outages))

    def _create_run(
        self, errors: ErrorProcess, trouble: ToolOutage, scenario: Scenario | None = None
    ) -> TextWorldRun:
        return TextWorldRun(
            scenario or self.scenario,
            self.games,
            seed=self.seed,
            errors=errors,
            trouble=trouble,
            history=False,
        )

    def _build_injected_run(
        self, run: TextWorldRun, code: str, variant: str, reason: str, step: int
    ) -> InjectedRun:
        return InjectedRun(
            run=run,
            code=code,
            variant=variant,
            reason=reason,
            step=step,
            twin_steps=len(self.twin.trajectory.steps),
        )
