"""The procedures that `recovery.py` compares; each plays a run within a budget of turns.

All see the same game, agent and random numbers up to the first thing they do. A turn is one call of the
agent's model and one step of the environment. At the end of an attempt each is told whether the game is won,
as in AgentDebug's evaluation (arXiv 2509.25370); no procedure is told of an injected error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from agentguard.guard import Guard
from agentguard.live.session import Session
from agentguard.recover.base import Capabilities, Plan, Restart, Rewind, Stop, Tell
from agentguard.recover.budget import Budget
from agentguard.recover.policy import Recover
from agentguard.trajectory.model import Step, Trajectory

CAN = Capabilities(truncate=True, fork=True, restart=True)
UNLIMITED = Budget(rollbacks=None, per_step=2, nudges=None, extra_tokens=None)
LADDER = ("rollback", "reexecute")
"""The turns are the budget here; a step is gone back to twice at most before the next hypothesis is tried."""


class Playable(Protocol):
    """An agent in an environment, scripted or a chat model: what a procedure may do with it."""

    @property
    def trajectory(self) -> Trajectory: ...
    @property
    def done(self) -> bool: ...
    @property
    def won(self) -> bool: ...
    @property
    def struck(self) -> tuple[int, ...]:
        """Steps of the live line at which an error was injected; for the count of hits alone."""
        ...

    def step(self) -> Step: ...
    def truncate(self, to_step: int, correction: str) -> None: ...
    def correct(self, correction: str) -> None: ...


@dataclass
class Attempted:
    """What became of one game under one procedure."""

    won: bool = False
    turns: int = 0
    line: int = 0
    aimed: int = 0
    hit: int = 0
    online: int = 0
    triggers: list[str] = field(default_factory=list)

    @property
    def wasted(self) -> int:
        """Turns that are not on the line that the run ended with."""
        return self.turns - self.line


class Budgeted:
    """A run that may take so many turns."""

    def __init__(self, run: Playable, turns: int) -> None:
        self.run, self.left, self.result = run, turns, Attempted()

    def play(self) -> None:
        while not self.run.done and self.left:
            self.turn()

    def turn(self) -> Step:
        self.left -= 1
        self.result.turns += 1
        return self.run.step()

    def back(self, step: int, correction: str) -> None:
        self.result.aimed += 1
        self.result.hit += step in self.run.struck
        self.run.truncate(step, correction)

    @property
    def over(self) -> bool:
        return self.run.won or not self.left

    def finish(self) -> Attempted:
        self.result.won = self.run.won
        self.result.line = len(self.run.trajectory.steps)
        return self.result


Arm = Callable[[Budgeted, Guard], None]


def none(play: Budgeted, guard: Guard) -> None:
    """One attempt, come what may."""
    del guard
    play.play()


def plain_retry(play: Budgeted, guard: Guard) -> None:
    """From the start again, until it is won: other random numbers, nothing said."""
    del guard
    play.play()
    while not play.over:
        play.run.truncate(0, "")
        play.play()


def reexecute(play: Budgeted, guard: Guard) -> None:
    """From the start again with what went wrong added to the task: the acceptance-test loop (Wang, 2024)."""
    play.play()
    while not play.over:
        held = guard.diagnose(play.run.trajectory).hypotheses
        play.run.truncate(0, held[0].correction if held else "The last attempt failed.")
        play.play()


def agentdebug(play: Budgeted, guard: Guard) -> None:
    """After the end: the root cause, and on from there with its correction (arXiv 2509.25370, stage 3)."""
    play.play()
    while not play.over:
        held = guard.diagnose(play.run.trajectory).hypotheses
        play.back(held[0].step if held else 0, held[0].correction if held else "The last attempt failed.")
        play.play()


def agentguard(play: Budgeted, guard: Guard) -> None:
    """The guard in the loop: it acts on what it finds while the run goes on, and on a refused end."""
    run = play.run
    meta = replace(run.trajectory, steps=(), branches=())
    with guard.override(accept=lambda _: run.won or "the task is not done"):
        session = guard.session(meta, CAN)
    while not play.over:
        plan = session.end() if run.done else session.boundary()
        if plan is not None:
            _carry_out(play, plan, session)
        elif run.done:
            return
        if not run.done and play.left:
            session.commit(play.turn())


def _carry_out(play: Budgeted, plan: Plan, session: Session) -> None:
    play.result.triggers.append(session.recoveries[-1].trigger)
    play.result.online += not play.run.done
    told = " ".join(action.text for action in plan.actions if isinstance(action, Tell))
    for action in plan.actions:
        if isinstance(action, Rewind):
            play.back(action.to_step, told)
            return
        if isinstance(action, Restart):
            play.run.truncate(0, action.note)
            return
        if isinstance(action, Stop):
            return
    play.run.correct(told)


ARMS: dict[str, Arm] = {
    "none": none,
    "plain_retry": plain_retry,
    "reexecute": reexecute,
    "agentdebug": agentdebug,
    "agentguard": agentguard,
}


def make_guard(**changes: Any) -> Guard:
    """The guard of all procedures: all detectors with their defaults, the embedded judge."""
    settings: dict[str, Any] = {"on_fail": LADDER, "budget": UNLIMITED, "top_k": 5}
    return Guard(recover=Recover(**(settings | changes)))
