"""The lines of a run: the live one and those that were left, each as the whole path of steps to its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agentguard.trajectory.model import Branch, Step, Trajectory
from agentguard_server.viewer.data.recovery import StoredRecovery
from agentguard_server.viewer.data.run_data import RunData

CURRENT_BRANCH = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchView:
    """One line.

    Attributes:
        id: of the branch; empty for the live line.
        number: 0 for the live line, then branches in the order in which they were left.
        steps: from the beginning of the run.
        owners: for each step the id of the line it was recorded on.
        fork: where it parts from its parent; 0 for the live line.
        parent: id of the line that went on in its place.
        reason: why it was left.
        recovery: what left it, if that is known.
    """

    id: str
    number: int
    steps: tuple[Step, ...]
    owner_ids: tuple[str, ...]
    fork_step: int = 0
    parent_id: str = CURRENT_BRANCH
    reason: str = ""
    recovery: StoredRecovery | None = None

    @property
    def own_steps(self) -> tuple[Step, ...]:
        """The steps recorded on it, without those it shares with its parent."""
        return self.steps[self.fork_step :]

    @property
    def name(self) -> str:
        """What it is called on the page."""
        return f"branch {self.number}" if self.number else "live line"


@dataclass(frozen=True, slots=True)
class BranchViews:
    """All lines of a run by id, the live one first."""

    by_id: Mapping[str, BranchView]

    @property
    def current(self) -> BranchView:
        """The line the run ended on."""
        return self.by_id[CURRENT_BRANCH]

    @property
    def abandoned(self) -> tuple[BranchView, ...]:
        """The lines that were left, in that order."""
        return tuple(line for line in self.by_id.values() if line.number)

    def __iter__(self) -> Iterator[BranchView]:
        return iter(self.by_id.values())

    def find_by_recovery(self, recovery: StoredRecovery) -> BranchView:
        """The line a recovery acted on: the branch it left, or the live line."""
        left = (line for line in self.abandoned if line.recovery is recovery)
        return next(left, self.current)


def build_branches(data: RunData) -> BranchViews:
    """Put the lines of a run together."""
    run = data.run
    found = {
        CURRENT_BRANCH: BranchView(
            id=CURRENT_BRANCH, number=0, steps=run.steps, owner_ids=(CURRENT_BRANCH,) * len(run.steps)
        )
    }
    named = {branch.id: branch for branch in run.branches if branch.id}
    why = _match_recoveries(run, data.recoveries)
    for number, branch in enumerate(named.values(), 1):
        steps, owners = _trace_path(branch, run, named)
        found[branch.id] = BranchView(
            id=branch.id,
            number=number,
            steps=steps,
            owner_ids=owners,
            fork_step=len(steps) - len(branch.steps),
            parent_id=branch.parent if branch.parent in named else CURRENT_BRANCH,
            reason=branch.reason,
            recovery=why.get(branch.id),
        )
    return BranchViews(found)


def _trace_path(
    branch: Branch, run: Trajectory, named: Mapping[str, Branch]
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    chain, seen = [branch], {branch.id}
    while (above := named.get(chain[-1].parent or "")) is not None and above.id not in seen:
        chain.append(above)
        seen.add(above.id)
    steps: tuple[Step, ...] = run.steps
    owners: tuple[str, ...] = (CURRENT_BRANCH,) * len(steps)
    for one in reversed(chain):
        keep = max(0, one.fork_step)
        steps = (*steps[:keep], *one.steps)
        owners = (*owners[:keep], *(one.id,) * len(one.steps))
    return steps, owners


def _match_recoveries(run: Trajectory, recoveries: tuple[StoredRecovery, ...]) -> dict[str, StoredRecovery]:
    """Branch to the recovery that left it: both are in order of time, and agree on place and reason."""
    free = list(run.branches)
    found: dict[str, StoredRecovery] = {}
    for recovery in recoveries:
        here = [branch for branch in free if branch.fork_step == recovery.resume_step]
        same = [branch for branch in here if branch.reason == recovery.reason]
        for branch in (same or here)[:1]:
            free.remove(branch)
            found[branch.id] = recovery
    return found
