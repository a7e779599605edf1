"""Procedures that `recovery.py` compares; each plays a run within a budget of model calls and steps.

All procedures start with the same game, agent and random numbers. An attempt is the number of turns that the
game allows. A budget of N attempts limits two counts separately: calls of the agent's model (including turns
that a guard refuses before they run) and steps of the environment. At the end of an attempt each procedure
learns whether the game is won, as in AgentDebug's evaluation (arXiv 2509.25370). No procedure learns of an
injected error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from agentguard.guard import Guard
from agentguard.recover.actions import Reject, Restart, Rewind, SendMessage, Stop
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.plan import RecoveryPlan
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Step, Trajectory

CAN = Capabilities(reject=True, truncate=True, fork=True, restart=True)
UNLIMITED = RecoveryBudget(rollbacks=None, rollbacks_per_step=None, hints=None, extra_tokens=None)
LADDER = ("rollback", "restart")
"""Settings that docs/recovery.md recommends for an environment with rollback and restart. The benchmark
limits the turns, so the guard's own budget has no limit.
"""


class Playable(Protocol):
    """An agent in an environment, scripted or a chat model: the operations for a procedure."""

    @property
    def trajectory(self) -> Trajectory: ...
    @property
    def done(self) -> bool: ...
    @property
    def won(self) -> bool: ...
    @property
    def struck(self) -> tuple[int, ...]:
        """Return the steps of the current branch with an injected error; only for the count of hits."""
        ...

    def think(self) -> Step: ...
    def act(self) -> Step: ...
    def refuse(self, correction: str) -> None: ...
    def truncate(self, to_step: int, correction: str) -> None: ...
    def correct(self, correction: str) -> None: ...
    def copy(self) -> Self: ...


@dataclass
class Attempted:
    """Result of one game under one procedure.

    Attributes:
        calls, steps: calls of the agent's model and steps of the environment.
        line: steps of the final branch.
        aimed: rollbacks to a step; ``hit``: to a step with an injected error; ``reached``: to such a step or
        to one
            before it, so that the rollback removed an injected error.
        online: recoveries while the run was in progress.
    """

    won: bool = False
    calls: int = 0
    steps: int = 0
    line: int = 0
    aimed: int = 0
    hit: int = 0
    reached: int = 0
    online: int = 0
    triggers: list[str] = field(default_factory=list)

    @property
    def turns(self) -> int:
        """Return the cost: calls or steps, whichever number is higher."""
        return max(self.calls, self.steps)

    @property
    def wasted(self) -> int:
        """Return the number of turns outside the final branch."""
        return self.turns - self.line


class Budgeted:
    """A run with a limit of model calls and of steps."""

    def __init__(self, run: Playable, turns: int, result: Attempted | None = None) -> None:
        self.run, self.most = run, turns
        self.result = result or Attempted()

    @property
    def left(self) -> int:
        return self.most - self.result.turns

    def play(self) -> None:
        while not self.run.done and self.left > 0:
            self.think()
            self.act()

    def think(self) -> Step:
        self.result.calls += 1
        return self.run.think()

    def act(self) -> Step:
        self.result.steps += 1
        return self.run.act()

    def back(self, step: int, correction: str) -> None:
        self.result.aimed += 1
        self.result.hit += step in self.run.struck
        self.result.reached += any(at >= step for at in self.run.struck)
        self.run.truncate(step, correction)

    @property
    def over(self) -> bool:
        return self.run.won or self.left <= 0

    def copy(self) -> Budgeted:
        held = replace(self.result, triggers=list(self.result.triggers))
        return Budgeted(self.run.copy(), self.most, held)

    def finish(self) -> Attempted:
        self.result.won = self.run.won
        self.result.line = len(self.run.trajectory.steps)
        return self.result


Arm = Callable[[Budgeted, Guard], None]


def none(play: Budgeted, guard: Guard) -> None:
    """Play one attempt without a recovery."""
    del guard
    play.play()


def plain_retry(play: Budgeted, guard: Guard) -> None:
    """Restart until the game is won: other random numbers, no hint."""
    del guard
    play.play()
    while not play.over:
        play.run.truncate(0, "")
        play.play()


def restart(play: Budgeted, guard: Guard) -> None:
    """Restart with the error added to the task: the acceptance-test loop (Wang, 2024)."""
    play.play()
    while not play.over:
        held = guard.diagnose(play.run.trajectory).hypotheses
        play.run.truncate(0, held[0].correction if held else "The last attempt failed.")
        play.play()


def agentdebug(play: Budgeted, guard: Guard) -> None:
    """Roll back to the root cause after the end, with its correction (arXiv 2509.25370, stage 3)."""
    play.play()
    while not play.over:
        held = guard.diagnose(play.run.trajectory).hypotheses
        play.back(held[0].step if held else 0, held[0].correction if held else "The last attempt failed.")
        play.play()


def agentguard(play: Budgeted, guard: Guard) -> None:
    """Run the guard in the loop: it acts on findings during the run, and on a rejected end."""
    run = play.run
    meta = replace(run.trajectory, steps=(), branches=())
    with guard.override(accept=lambda _: run.won or "the task is not done"):
        session = guard.session(meta, CAN)
    while not play.over:
        plan = session.end() if run.done else session.check_boundary()
        if plan is not None:
            _carry_out(play, plan, session)
        elif run.done:
            return
        if not run.done and play.left > 0:
            _turn(play, session)


def _turn(play: Budgeted, session: Session) -> None:
    """Play one turn as every integration does: the guard checks it, the model repeats a refused turn."""
    while True:
        refused = session.propose(play.think())
        if refused is None:
            session.commit(play.act())
            return
        play.result.triggers.append(session.recoveries[-1].trigger)
        play.result.online += 1
        play.result.aimed += 1
        hit = len(play.run.trajectory.steps) in play.run.struck
        play.result.hit += hit
        play.result.reached += hit
        play.run.refuse(_join_messages(refused))
        if play.left <= 0:
            return


def _carry_out(play: Budgeted, plan: RecoveryPlan, session: Session) -> None:
    play.result.triggers.append(session.recoveries[-1].trigger)
    play.result.online += not play.run.done
    for action in plan.actions:
        if isinstance(action, Rewind):
            play.back(action.to_step, _join_messages(plan))
            return
        if isinstance(action, Restart):
            play.run.truncate(0, action.note)
            return
        if isinstance(action, Stop | Reject):
            return
    play.run.correct(_join_messages(plan))


def _join_messages(plan: RecoveryPlan) -> str:
    return " ".join(action.text for action in plan.actions if isinstance(action, SendMessage))


ARMS: dict[str, Arm] = {
    "none": none,
    "plain_retry": plain_retry,
    "restart": restart,
    "agentdebug": agentdebug,
    "agentguard": agentguard,
}
UNTOLD = frozenset({"none", "plain_retry"})
"""Procedures without hints: their result does not depend on the agent's reaction to hints."""
ALIKE = frozenset({"none", "plain_retry", "restart", "agentdebug"})
"""Procedures that act only after the first attempt has ended: they share it."""


def make_guard(**changes: Any) -> Guard:
    """Return the guard of all procedures: all detectors with their defaults, and the embedded judge."""
    settings: dict[str, Any] = {"on_fail": LADDER, "budget": UNLIMITED, "max_hypotheses": 5}
    return Guard(recover=RecoveryPolicy(**(settings | changes)))
