"""Online injection, after CORRECT-Error (arXiv 2509.24088): TextWorld runs with one error at a known step.

A scripted agent plays generated games. The generator injects one error of AgentErrorTaxonomy (arXiv
2509.25370) into a run that would win. The agent then continues with its beliefs, and the game answers, until
the run ends. A run is labelled as failed, with that error as root cause, only if it fails and its twin
without the error wins. Runs that recover from the error are labelled as passed, with the error recorded.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentguard.errors import ConfigError
from agentguard.trajectory.model import Annotation, Record, RootCause
from agentguard_lab.textworld.default_rates import AGENT_ERRORS, CAREFUL_SHARE, DIFFICULTIES
from agentguard_lab.textworld.game_cache import GameLibrary
from agentguard_lab.textworld.run import AGENT, TextWorldRun
from agentguard_lab.textworld.scenarios import Difficulty, Scenario, build_scenario
from agentguard_lab.textworld.twin_run import InjectedRun, TwinRun

INJECTED, GENERATED = "injected", "generated"
RUNS_PER_GAME = 15
"""Maximum number of runs of one game; they form one group, which no split divides."""
_TRIES_PER_TWIN = 3
_TWINS_PER_GAME = 36
_MAX_LOST_TWINS = 3
_TAXONOMY = "agent_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """Settings of the generator.

    Attributes:
        failed, passed: number of failed and passed runs.
        seed: the same seed gives the same runs, in the same order.
        difficulty: of all games; None for a mix.
        rates: weight of each code.
    """

    failed: int
    passed: int
    seed: int
    difficulty: str | None = None
    rates: Mapping[str, float] = field(default_factory=lambda: AGENT_ERRORS)


def generate(
    *,
    failed: int,
    passed: int,
    seed: int,
    difficulty: str | None = None,
    progress: Callable[[int], None] | None = None,
    excluded: Callable[[Record], None] | None = None,
) -> Iterator[Record]:
    """Yield annotated runs, failed and passed ones in a mixed order.

    Args:
        failed, passed: number of failed and passed runs.
        seed: the same seed gives the same runs.
        difficulty: ``easy``, ``medium`` or ``hard``; None for a mix.
        progress: called with the number of runs yielded so far.
        excluded: called with runs that failed without an injected error; they are never yielded.

    Raises:
        ConfigError: a number is negative, or the difficulty is unknown.
        MissingExtra: TextWorld is not installed.
    """
    if failed < 0 or passed < 0:
        raise ConfigError("the numbers of runs cannot be negative")
    if difficulty is not None and difficulty not in tuple(Difficulty):
        raise ConfigError(f"no difficulty {difficulty}; there are {', '.join(Difficulty)}")
    plan = GenerationPlan(failed=failed, passed=passed, seed=seed, difficulty=difficulty)
    return _count_records(RunGenerator(plan, apart=excluded).records(), progress)


def _count_records(records: Iterator[Record], progress: Callable[[int], None] | None) -> Iterator[Record]:
    for count, record in enumerate(records, 1):
        yield record
        if progress:
            progress(count)


class RunGenerator:
    """Generator of the runs of a plan. ``natural`` counts twins by difficulty and success.

    Args:
        plan: the settings.
        games: folder for compiled games; a temporary one if None.
        apart: called with runs that failed without an injected error.
    """

    def __init__(
        self,
        plan: GenerationPlan,
        *,
        games: Path | None = None,
        apart: Callable[[Record], None] | None = None,
    ) -> None:
        self.plan = plan
        self.natural: dict[tuple[str, bool], int] = {}
        self._games, self._excluded = games, apart
        self._failed = self._passed = self._recovered = 0
        self._draw = random.Random(f"generate:{plan.seed}")  # noqa: S311  (a data set, not a secret)
        self._code = self._draw_code()

    def records(self) -> Iterator[Record]:
        """Yield the runs, game by game."""
        with GameLibrary(self._games, max_open=1) as library:
            number = 0
            while not self._is_complete():
                yield from self._generate_game(self._build_scenario(number), library)
                library.trim()
                number += 1

    def _build_scenario(self, number: int) -> Scenario:
        rng = random.Random(f"game:{self.plan.seed}:{number}")  # noqa: S311
        level = self.plan.difficulty or rng.choices(list(DIFFICULTIES), list(DIFFICULTIES.values()))[0]
        return build_scenario(rng.randrange(10**9), level)

    def _generate_game(self, game: Scenario, library: GameLibrary) -> Iterator[Record]:
        record_count = win_count = 0
        for index in range(_TWINS_PER_GAME):
            is_hopeless = (
                index - win_count >= _MAX_LOST_TWINS and not win_count
            )  # the agent never wins this game
            if record_count >= RUNS_PER_GAME or is_hopeless or self._is_complete():
                return
            attempt = TwinRun(game, library, _derive_seed(self.plan.seed, game.id, index))
            self._count_twin(game, attempt.twin)
            if not attempt.twin.won:
                continue
            win_count += 1
            record = self._generate_passed(attempt) if self._is_pass_due() else self._generate_failed(attempt)
            if record is not None:
                record_count += 1
                yield record

    def _is_pass_due(self) -> bool:
        """Return whether the next run must be a passed one, so that both kinds alternate in proportion."""
        plan = self.plan
        return self._passed * (plan.failed or 1) < self._failed * plan.passed or self._failed >= plan.failed

    def _generate_passed(self, attempt: TwinRun) -> Record | None:
        if self._passed >= self.plan.passed:
            return None
        self._passed += 1
        return _build_record(attempt.twin, Annotation(failed=False, extra={"origin": GENERATED}))

    def _generate_failed(self, attempt: TwinRun) -> Record | None:
        for injected_run in attempt.generate_injected_runs(self._code, tries=_TRIES_PER_TWIN):
            if not injected_run.run.won:
                self._failed += 1
                self._code = self._draw_code()
                return _build_record(injected_run.run, _build_failed_record(injected_run))
            if self._may_recover():
                self._passed += 1
                self._recovered += 1
                extra = {
                    "origin": INJECTED,
                    INJECTED: _describe_injection(injected_run) | {"recovered": True},
                }
                return _build_record(injected_run.run, Annotation(failed=False, extra=extra))
        return None

    def _may_recover(self) -> bool:
        has_capacity = self._passed < self.plan.passed
        return has_capacity and self._recovered < CAREFUL_SHARE * min(self.plan.passed, self._passed + 1)

    def _draw_code(self) -> str:
        return self._draw.choices(list(self.plan.rates), list(self.plan.rates.values()))[0]

    def _count_twin(self, game: Scenario, twin: TextWorldRun) -> None:
        key = (str(game.difficulty), twin.won)
        self.natural[key] = self.natural.get(key, 0) + 1
        if not twin.won and self._excluded:
            self._excluded(_build_record(twin, Annotation(failed=True, extra={"origin": GENERATED})))

    def _is_complete(self) -> bool:
        return self._failed >= self.plan.failed and self._passed >= self.plan.passed


def _derive_seed(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6])


def _build_failed_record(injected_run: InjectedRun) -> Annotation:
    cause = RootCause(
        step=injected_run.step,
        agent=AGENT,
        module=injected_run.code.partition(".")[0],
        codes=(f"{_TAXONOMY}:{injected_run.code}",),
        reason=injected_run.reason,
    )
    extra = {"origin": INJECTED, INJECTED: _describe_injection(injected_run)}
    return Annotation(failed=True, root_cause=cause, failures=(cause,), extra=extra)


def _describe_injection(injected_run: InjectedRun) -> dict[str, Any]:
    return {
        "code": injected_run.code,
        "variant": injected_run.variant,
        "step": injected_run.step,
        "ending": injected_run.run.ending,
        "twin_steps": injected_run.twin_steps,
    }


def _build_record(run: TextWorldRun, annotation: Annotation) -> Record:
    """Return the record of a run, under an id without meaning and in the group of its game."""
    game = run.scenario
    name = hashlib.sha256(f"{game.id}:{run.seed}".encode()).hexdigest()[:16]
    extra = {**annotation.extra, "game": game.id, "difficulty": str(game.difficulty)}
    return Record(
        trajectory=replace(run.trajectory, id=f"tw-{name}"),
        annotation=replace(annotation, group=game.id, extra=extra),
    )
