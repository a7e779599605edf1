"""Run of the scripted agent in a game: stepped, saved, forked, rolled back and corrected."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from agentguard.errors import ConfigError
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory
from agentguard_lab.textworld import tools
from agentguard_lab.textworld.agent import Agent, AgentTurn
from agentguard_lab.textworld.belief_state import Memory
from agentguard_lab.textworld.error_process import ErrorProcess
from agentguard_lab.textworld.game_cache import GameLibrary
from agentguard_lab.textworld.outages import ToolOutage
from agentguard_lab.textworld.scenarios import Scenario

AGENT = "player"
FORMAT = "event_log"
_EPOCH = 1_767_225_600.0  # 2026-01-01: a fixed clock, so that the same seed writes the same bytes
_SYSTEM = (
    "You play a text game through tools and see it only through them. In each turn, say what you "
    "recall, what the last "
    "result meant and what you plan, then call a tool. Answer without a call when the task is "
    "done or cannot be done."
)
_CARE = 3
"""Number of turns in which an accepted correction makes the agent careful."""

Ending = Literal["", "won", "lost", "answer", "turn_limit", "cut_off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of a run between two steps. Restoring is exact, because the game replays the commands."""

    steps: tuple[Step, ...]
    commands: tuple[str, ...]
    agent: Agent
    ending: Ending
    trouble: ToolOutage


class TextWorldRun:
    """One run, advanced by `step`.

    Args:
        scenario: the game and the task.
        games: the cache of compiled games.
        seed: seed of the agent's wording and choices.
        errors: process that injects errors; none by default. Detectors have no access to it.
        trouble: faults outside the agent; none by default.
        history: whether to keep the state before each step, which `truncate` needs.

    Raises:
        MissingExtra: TextWorld is not installed.

    Attributes:
        agent: state of the agent.
        errors: the error process; its ``occurrences`` lists the injected errors, for the evaluator only.
        ending: kind of the end; empty while the run continues.
    """

    def __init__(
        self,
        scenario: Scenario,
        games: GameLibrary,
        *,
        seed: int,
        errors: ErrorProcess | None = None,
        trouble: ToolOutage | None = None,
        history: bool = True,
    ) -> None:
        self.scenario, self.seed = scenario, seed
        self.errors = errors or ErrorProcess()
        self.trouble = trouble or ToolOutage()
        self.ending: Ending = ""
        self._offered = tools.KITCHEN if scenario.task.cook else tools.HOUSE
        self._world = games.get_world(scenario, self._offered)
        self._steps: list[Step] = []
        self._typed: tuple[str, ...] = ()
        self._corrections = 0
        self.agent = build_agent(scenario, seed)
        self._history, self._before = history, list[Snapshot]()
        self._turn: AgentTurn | None = None

    @property
    def done(self) -> bool:
        """Return whether the run has ended."""
        return bool(self.ending)

    @property
    def won(self) -> bool:
        """Return whether the game reports the task as done."""
        return self.ending == "won"

    @property
    def trajectory(self) -> Trajectory:
        """The run so far."""
        return Trajectory(
            id=f"{self.scenario.id}-{self.seed}",
            format=FORMAT,
            task=self.scenario.text,
            steps=tuple(self._steps),
            tools=tool_specs(self._offered),
            system_prompts={AGENT: _SYSTEM},
            extra={"environment": "textworld", "max_turns": self.scenario.max_turns},
        )

    def step(self) -> Step:
        """Take one turn of the agent and execute its calls. Raises ConfigError if the run has ended."""
        self.think()
        return self.act()

    def think(self) -> Step:
        """Return the next turn of the agent before its calls are executed; call `act` or `refuse` next.

        Raises:
            ConfigError: the run has ended.
        """
        if self.done:
            raise ConfigError("the run has ended")
        if self._history:
            self._before.append(self.snapshot())
        turn = self.agent.take_turn(self.errors)
        if self.trouble.is_cut(self.agent.turns):
            turn = self.trouble.cut(turn)
        self._turn = turn
        return _step(len(self._steps), turn)

    def act(self) -> Step:
        """Execute the calls of the turn and return the step. Raises ConfigError without a turn."""
        turn, self._turn = self._turn, None
        if turn is None:
            raise ConfigError("there is no turn to carry out: think first")
        self._world.restore(self._typed)  # another run may have used this game since the last step
        results = [self._call(name, raw) for name, raw in turn.calls]
        self._typed = tuple(self._world.commands)
        step = _step(len(self._steps), turn, results)
        self._steps.append(step)
        self.agent.observe(results)
        self._end(turn)
        return step

    def refuse(self, correction: str, *, acceptance_rate: float = 1.0) -> bool:
        """Drop the pending turn and give the agent the reason, with the model of `truncate`."""
        self._turn = None
        return self.truncate(len(self._steps), correction, acceptance_rate=acceptance_rate)

    def copy(self) -> TextWorldRun:
        """Return an independent copy of the run at the same point."""
        duplicate = copy.copy(self)
        duplicate._steps, duplicate._before = list(self._steps), list(self._before)
        duplicate.agent, duplicate.errors = (
            self.agent.snapshot(),
            replace(self.errors, occurrences=list(self.errors.occurrences)),
        )
        return duplicate

    def play(self) -> Self:
        """Take steps until the run ends."""
        while not self.done:
            self.step()
        return self

    def snapshot(self) -> Snapshot:
        """Return the current state; it can be restored any number of times, in this run or in a fork."""
        return Snapshot(
            steps=tuple(self._steps),
            commands=self._typed,
            agent=self.agent.snapshot(),
            ending=self.ending,
            trouble=self.trouble,
        )

    def restore(self, saved: Snapshot) -> None:
        """Set a saved state."""
        self._steps, self._typed = list(saved.steps), saved.commands
        self.agent = saved.agent.snapshot()
        self.ending, self.trouble = saved.ending, saved.trouble
        del self._before[len(self._steps) :]

    def truncate(
        self, to_step: int, correction: str = "", *, acceptance_rate: float = 1.0, world: bool = True
    ) -> bool:
        """Roll the run back to before step ``to_step`` and give the agent ``correction``.

        Model of a corrected agent: it accepts the correction with probability ``acceptance_rate`` (from 0 to
        1). The draw depends on the run's seed and the number of corrections so far. In the agent's next three
        turns no error is injected. The agent drops its fixed intents, looks around, checks its inventory, and
        checks every failure. Wrong beliefs from before ``to_step`` remain unless these checks contradict
        them. Without an accepted correction, the agent repeats the turn with new random numbers: the same
        errors may occur again, at the same rates.

        Args:
            to_step: index of the first step to remove.
            correction: message to the agent; empty for a plain retry.
            world: whether to roll back the game too (a fork of its state); otherwise only the agent's memory.

        Returns:
            Whether the agent accepted the correction.

        Raises:
            ConfigError: the step does not exist, or no history is kept.
        """
        if not 0 <= to_step < len(self._before):
            raise ConfigError(f"no state is kept of step {to_step}; the run has {len(self._steps)} steps")
        typed = self._typed
        self.restore(self._before[to_step])
        if not world:
            self._typed = typed
            self._world.restore(typed)
            self._end_if_over()
        return self.correct(correction, acceptance_rate=acceptance_rate)

    def correct(self, correction: str, *, acceptance_rate: float = 1.0) -> bool:
        """Give the agent a message before its next turn; return whether it accepts, as in `truncate`."""
        self._corrections += 1
        self.agent.stream = self._corrections  # not the saved number plus one, which may already be in use
        # The recorded figures depend on this seed.
        draw = random.Random(f"heeds:{self.seed}:{self._corrections}").random()  # noqa: S311
        is_accepted = bool(correction) and draw < acceptance_rate
        if is_accepted:
            self.agent.accept_correction(_CARE)
        if self.ending == "answer":  # the agent learns that it is not done, and the game continues
            self.ending = ""
        return is_accepted

    def _call(self, name: str, raw: str) -> str:
        failure = self.trouble.get_failure(name, self.agent.turns)
        return self._world.call(name, raw) if failure is None else failure

    def _end(self, turn: AgentTurn) -> None:
        self._end_if_over()
        if not self.ending and not turn.calls:
            self.ending = "cut_off" if self.trouble.is_cut(self.agent.turns) else "answer"
        elif not self.ending and self.agent.turns >= self.scenario.max_turns:
            self.ending = "turn_limit"

    def _end_if_over(self) -> None:
        if self._world.over:
            self.ending = "won" if self._world.won else "lost"


def build_agent(scenario: Scenario, seed: int) -> Agent:
    """Return the agent of a seed, with drawn care, brevity and order of exits."""
    rng = random.Random(f"character:{seed}")  # noqa: S311
    compass = tuple(rng.sample(("north", "south", "east", "west"), 4))
    return Agent(
        task=scenario.task,
        seed=seed,
        care=rng.uniform(0.05, 0.6),
        terse=rng.random(),
        memory=Memory(compass=compass),
    )


def tool_specs(offered: tuple[str, ...]) -> tuple[ToolSpec, ...]:
    """Return the definitions of the tools that the agent is offered."""
    functions = [schema["function"] for schema in tools.build_schemas(offered)]
    return tuple(
        ToolSpec(name=f["name"], description=f["description"], parameters=f["parameters"]) for f in functions
    )


def _step(index: int, turn: AgentTurn, results: Sequence[str] = ()) -> Step:
    """Return the step of a turn, without results if its calls were not executed yet."""
    calls, observations = [], []
    for position, (name, raw) in enumerate(turn.calls):
        call = f"call_{index:03d}_{position}"
        calls.append(ToolCall(id=call, name=name, arguments=tools.parse_arguments(raw), raw_arguments=raw))
        for text in results[position : position + 1]:
            failed = text.startswith("Error:") or None
            observations.append(Observation(content=text, call_id=call, tool=name, is_error=failed))
    return Step(
        index=index,
        source=Source.AGENT,
        agent=AGENT,
        content=turn.text,
        modules=turn.modules,
        tool_calls=tuple(calls),
        observations=tuple(observations),
        started_at=_EPOCH + 60 * index,
        ended_at=_EPOCH + 60 * index + 30,
    )
