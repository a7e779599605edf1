"""Page model of a run, shared by the page, its fragments and the export."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentguard.detect.base import Finding
from agentguard_server.viewer.data.run_data import RunData
from agentguard_server.viewer.run.branch_diff import BranchDiff, diff_branches
from agentguard_server.viewer.run.branches import CURRENT_BRANCH, BranchView, BranchViews, build_branches
from agentguard_server.viewer.run.conversation import TurnContext, TurnView, build_turns, describe_error
from agentguard_server.viewer.run.effect_ledger import EffectEntry, build_ledger
from agentguard_server.viewer.run.error_propagation import ErrorPropagation, ValueTrace, trace_propagation
from agentguard_server.viewer.run.finding_table import ScoredFinding, group_findings, score_finding
from agentguard_server.viewer.run.folded_text import FoldOptions
from agentguard_server.viewer.run.header import RunHeader, build_header
from agentguard_server.viewer.run.highlights import QuoteIndex
from agentguard_server.viewer.run.outline import OutlineRow, build_outline_row
from agentguard_server.viewer.run.timeline import Axis, Badge, LaneSource, Timeline, build_timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPageModel:
    """Run for display.

    Attributes:
        data: data of the run.
        branches: the current branch and the abandoned ones.
        quotes: all quotes with their numbers.
        header: header of the page.
        scored_findings: rows of the table of findings.
        ledger: side effects of tool calls.
        branch_diffs: comparisons of abandoned branches with their replacements.
        propagation: propagation of the values of the root cause; None without a root cause.
        turn_context: data from which turns are built.
    """

    data: RunData
    branches: BranchViews
    quotes: QuoteIndex
    header: RunHeader
    scored_findings: tuple[ScoredFinding, ...]
    ledger: tuple[EffectEntry, ...]
    branch_diffs: tuple[BranchDiff, ...]
    propagation: ErrorPropagation | None
    turn_context: TurnContext
    _badges: dict[str, dict[int, frozenset[Badge]]] = field(default_factory=dict)

    @classmethod
    def from_run_data(cls, data: RunData, *, fold: FoldOptions | None = None) -> RunPageModel:
        """Build the page model from the data of a run."""
        branches, quotes = build_branches(data), QuoteIndex()
        header = build_header(data, branches, quotes)
        current = branches.current
        scored_findings = tuple(
            score_finding(
                finding,
                data.finding_ids.get((finding.detector, finding.step), ""),
                quotes.add(finding.evidence, current.steps, current.owner_ids),
                repeated_steps,
            )
            for finding, repeated_steps in group_findings(data.findings)
        )
        for recovery in data.recoveries:
            branch = branches.find_by_recovery(recovery)
            quotes.add(recovery.evidence, branch.steps, branch.owner_ids)
        ledger = build_ledger(data, branches)
        propagation = _trace_root_cause(data, branches, header)
        turn_context = TurnContext(
            quotes=quotes,
            findings=_group_by_step(data.findings),
            effects={(one.branch_id, one.step, one.call): one for one in ledger if one.branch_id is not None},
            ranks=_rank_steps(header),
            uses=_group_uses(propagation, branches, header),
            fold=fold or FoldOptions(),
            is_cause_certain=header.is_cause_certain,
            has_likely_cause=header.has_likely_cause,
        )
        return cls(
            data=data,
            branches=branches,
            quotes=quotes,
            header=header,
            scored_findings=scored_findings,
            ledger=ledger,
            branch_diffs=diff_branches(branches),
            propagation=propagation,
            turn_context=turn_context,
        )

    def get_branch(self, id: str) -> BranchView | None:
        """Return a branch by its id, or None; the id of the current branch is empty."""
        return self.branches.by_id.get(id)

    def build_turns(
        self, branch: BranchView, begin: int, end: int, *, prefix: str = ""
    ) -> tuple[TurnView, ...]:
        """Build the turns from step ``begin`` up to ``end`` of a branch."""
        return build_turns(self.turn_context, branch, begin, end, prefix=prefix)

    def find_root_step(self, branch: BranchView) -> int | None:
        """Return the root-cause or likely step if it is on this branch; None if no step is likely."""
        cause = self.header.cause
        if (
            cause is None
            or not self.header.has_likely_cause
            or not cause.is_in_run
            or cause.step >= len(branch.steps)
        ):
            return None
        return cause.step if branch.owner_ids[cause.step] == cause.branch_id else None

    def group_forks(self, replacement: BranchView) -> Mapping[int, tuple[BranchView, ...]]:
        """Return the branches that were abandoned in favour of ``replacement``, by fork step."""
        forks: dict[int, list[BranchView]] = defaultdict(list)
        for branch in self.branches.abandoned:
            parent = self.branches.by_id[branch.parent_id]
            is_visible = parent.id == replacement.id or (
                branch.fork_step < replacement.fork_step and parent.id in replacement.owner_ids
            )
            if is_visible and branch.id != replacement.id:
                forks[branch.fork_step].append(branch)
        return {step: tuple(branches) for step, branches in forks.items()}

    @property
    def last_step(self) -> OutlineRow | None:
        """Return the outline row of the last step of the current branch; None if it has no step."""
        branch = self.branches.current
        if not branch.steps:
            return None
        place = len(branch.steps) - 1
        badges = self.get_badges(branch).get(place, frozenset())
        return build_outline_row(
            branch.steps[place], place, badges, is_root=place == self.find_root_step(branch)
        )

    def build_timeline(self, branch: BranchView, axis: Axis | None) -> Timeline:
        """Build the timeline of a branch; below the current branch, it has the abandoned ones."""
        abandoned = () if branch.number else self.branches.abandoned
        lanes = [LaneSource(branch=one, root=self.find_root_step(one)) for one in abandoned]
        return build_timeline(
            branch, self.get_badges(branch), root=self.find_root_step(branch), axis=axis, lanes=lanes
        )

    def get_badges(self, branch: BranchView) -> dict[int, frozenset[Badge]]:
        """Return the badges of a branch, by step."""
        if branch.id not in self._badges:
            self._badges[branch.id] = self._compute_badges(branch)
        return self._badges[branch.id]

    def _compute_badges(self, branch: BranchView) -> dict[int, frozenset[Badge]]:
        badges_by_place: dict[int, set[Badge]] = defaultdict(set)
        for place, (step, owner) in enumerate(zip(branch.steps, branch.owner_ids, strict=True)):
            if any(describe_error(observation) for observation in step.observations):
                badges_by_place[place].add("error")
            if owner == CURRENT_BRANCH and place in self.turn_context.findings:
                badges_by_place[place].add("finding")
            if (owner, place) in self.turn_context.uses:
                badges_by_place[place].add("use")
        for owner, place, _ in self.turn_context.effects:
            if place < len(branch.owner_ids) and branch.owner_ids[place] == owner:
                badges_by_place[place].add("effect")
        for place in self.group_forks(branch):
            badges_by_place[place].add("rollback")
        return {
            place: frozenset(badges) for place, badges in badges_by_place.items() if place < len(branch.steps)
        }


def _group_by_step(findings: tuple[Finding, ...]) -> dict[int, tuple[Finding, ...]]:
    findings_by_step: dict[int, list[Finding]] = defaultdict(list)
    for finding in findings:
        findings_by_step[finding.step].append(finding)
    return {
        step: tuple(sorted(step_findings, key=lambda one: -one.probability))
        for step, step_findings in findings_by_step.items()
    }


def _rank_steps(header: RunHeader) -> dict[tuple[str, int], int]:
    """Return the rank of each step, from 1: the root cause first, then the other hypotheses."""
    ranks: dict[tuple[str, int], int] = {}
    has_recovery_cause = header.cause is not None and header.recovery is not None
    if header.cause is not None and header.cause.is_in_run:
        ranks[header.cause.branch_id, header.cause.step] = 1
    for cause in header.causes if header.state != "fine" else ():
        if cause.is_in_run and not (has_recovery_cause and cause.rank == 1):
            ranks.setdefault((cause.branch_id, cause.step), cause.rank)
    return ranks


def _trace_root_cause(data: RunData, branches: BranchViews, header: RunHeader) -> ErrorPropagation | None:
    cause = header.cause
    if cause is None or not cause.is_in_run:
        return None
    return trace_propagation(data.run, _select_cause_branch(branches, header).steps, cause.step)


def _select_cause_branch(branches: BranchViews, header: RunHeader) -> BranchView:
    """Return the branch whose steps could use values of the root cause: the one that a recovery abandoned."""
    if header.recovery is not None:
        return branches.find_by_recovery(header.recovery)
    return branches.by_id[header.cause.branch_id] if header.cause is not None else branches.current


def _group_uses(
    propagation: ErrorPropagation | None, branches: BranchViews, header: RunHeader
) -> dict[tuple[str, int], tuple[ValueTrace, ...]]:
    if propagation is None:
        return {}
    branch = _select_cause_branch(branches, header)
    uses: dict[tuple[str, int], list[ValueTrace]] = defaultdict(list)
    for trace in propagation.traces:
        for step in trace.uses:
            uses[branch.owner_ids[step], step].append(trace)
    return {place: tuple(traces) for place, traces in uses.items()}
