"""Branches of a run, current and abandoned, each with all steps from the start of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agentguard.trajectory.model import Branch, Step, Trajectory
from agentguard_server.viewer.data.run_data import RunData
from agentguard_server.viewer.data.stored_recovery import StoredRecovery

CURRENT_BRANCH = ""
"""Id of the current branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchView:
    """Branch of a run for display.

    Attributes:
        id: id of the branch; empty for the current branch.
        number: 0 for the current branch; abandoned branches count from 1 in order of abandonment.
        steps: all steps from the start of the run.
        owner_ids: for each step the id of the branch on which it was recorded.
        fork_step: first step that differs from the parent; 0 for the current branch.
        parent_id: id of the branch that continued instead.
        reason: why the branch was abandoned.
        recovery: the recovery that abandoned it, if known.
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
        """Return the steps recorded on this branch, without those of its parent."""
        return self.steps[self.fork_step :]

    @property
    def name(self) -> str:
        """Return the name of the branch on the page."""
        return f"branch {self.number}" if self.number else "current branch"


@dataclass(frozen=True, slots=True)
class BranchViews:
    """All branches of a run by id, the current one first."""

    by_id: Mapping[str, BranchView]

    @property
    def current(self) -> BranchView:
        """Return the current branch."""
        return self.by_id[CURRENT_BRANCH]

    @property
    def abandoned(self) -> tuple[BranchView, ...]:
        """Return the abandoned branches in order of abandonment."""
        return tuple(branch for branch in self.by_id.values() if branch.number)

    def __iter__(self) -> Iterator[BranchView]:
        return iter(self.by_id.values())

    def find_by_recovery(self, recovery: StoredRecovery) -> BranchView:
        """Return the branch that a recovery abandoned, else the current branch."""
        matches = (branch for branch in self.abandoned if branch.recovery is recovery)
        return next(matches, self.current)


def build_branches(data: RunData) -> BranchViews:
    """Build the branches of a run."""
    run = data.run
    views = {
        CURRENT_BRANCH: BranchView(
            id=CURRENT_BRANCH, number=0, steps=run.steps, owner_ids=(CURRENT_BRANCH,) * len(run.steps)
        )
    }
    branches_by_id = {branch.id: branch for branch in run.branches if branch.id}
    recoveries_by_branch = _match_recoveries(run, data.recoveries)
    for number, branch in enumerate(branches_by_id.values(), 1):
        steps, owners = _trace_path(branch, run, branches_by_id)
        views[branch.id] = BranchView(
            id=branch.id,
            number=number,
            steps=steps,
            owner_ids=owners,
            fork_step=len(steps) - len(branch.steps),
            parent_id=branch.parent if branch.parent in branches_by_id else CURRENT_BRANCH,
            reason=branch.reason,
            recovery=recoveries_by_branch.get(branch.id),
        )
    return BranchViews(views)


def _trace_path(
    branch: Branch, run: Trajectory, branches_by_id: Mapping[str, Branch]
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Return the steps from the start of the run to the end of a branch, and the branch of each step."""
    chain, ids = [branch], {branch.id}
    while (parent := branches_by_id.get(chain[-1].parent or "")) is not None and parent.id not in ids:
        chain.append(parent)
        ids.add(parent.id)
    steps: tuple[Step, ...] = run.steps
    owners: tuple[str, ...] = (CURRENT_BRANCH,) * len(steps)
    for ancestor in reversed(chain):
        keep = max(0, ancestor.fork_step)
        steps = (*steps[:keep], *ancestor.steps)
        owners = (*owners[:keep], *(ancestor.id,) * len(ancestor.steps))
    return steps, owners


def _match_recoveries(run: Trajectory, recoveries: tuple[StoredRecovery, ...]) -> dict[str, StoredRecovery]:
    """Return the recovery of each branch; both are in order of time and match by fork step and reason."""
    unmatched_branches = list(run.branches)
    recoveries_by_branch: dict[str, StoredRecovery] = {}
    for recovery in recoveries:
        candidates = [branch for branch in unmatched_branches if branch.fork_step == recovery.resume_step]
        same_reason = [branch for branch in candidates if branch.reason == recovery.reason]
        for branch in (same_reason or candidates)[:1]:
            unmatched_branches.remove(branch)
            recoveries_by_branch[branch.id] = recovery
    return recoveries_by_branch
