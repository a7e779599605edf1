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
        quotes: all quotes, numbered.
        header: header of the page.
        scored_findings: rows of the table of findings.
        ledger: side effects of tool calls.
        branch_diffs: comparisons of abandoned branches with their replacements.
        propagation: propagation of the root cause's values; None without a root cause.
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
        lines, quotes = build_branches(data), QuoteIndex()
        head = build_header(data, lines, quotes)
        live = lines.current
        scores = tuple(
            score_finding(
                finding,
                data.finding_ids.get((finding.detector, finding.step), ""),
                quotes.add(finding.evidence, live.steps, live.owner_ids),
                again,
            )
            for finding, again in group_findings(data.findings)
        )
        for recovery in data.recoveries:
            acted = lines.find_by_recovery(recovery)
            quotes.add(recovery.evidence, acted.steps, acted.owner_ids)
        ledger = build_ledger(data, lines)
        traced = _trace_root_cause(data, lines, head)
        reading = TurnContext(
            quotes=quotes,
            findings=_group_by_step(data.findings),
            effects={(one.branch_id, one.step, one.call): one for one in ledger if one.branch_id is not None},
            ranks=_rank_steps(head),
            uses=_group_uses(traced, lines, head),
            fold=fold or FoldOptions(),
            is_cause_certain=head.is_cause_certain,
            has_likely_cause=head.has_likely_cause,
        )
        return cls(
            data=data,
            branches=lines,
            quotes=quotes,
            header=head,
            scored_findings=scores,
            ledger=ledger,
            branch_diffs=diff_branches(lines),
            propagation=traced,
            turn_context=reading,
        )

    def get_branch(self, id: str) -> BranchView | None:
        """Return a branch by its id, or None; the id of the current branch is empty."""
        return self.branches.by_id.get(id)

    def build_turns(
        self, branch: BranchView, begin: int, end: int, *, prefix: str = ""
    ) -> tuple[TurnView, ...]:
        """Build turns of a branch."""
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

    def group_forks(self, line: BranchView) -> Mapping[int, tuple[BranchView, ...]]:
        """Return the branches that were abandoned in favour of this one, by fork step."""
        forks: dict[int, list[BranchView]] = defaultdict(list)
        for branch in self.branches.abandoned:
            parent = self.branches.by_id[branch.parent_id]
            is_visible = parent.id == line.id or (
                branch.fork_step < line.fork_step and parent.id in line.owner_ids
            )
            if is_visible and branch.id != line.id:
                forks[branch.fork_step].append(branch)
        return {step: tuple(branches) for step, branches in forks.items()}

    @property
    def last_step(self) -> OutlineRow | None:
        """Return the line of the last step of the current branch; None if the run has no step."""
        branch = self.branches.current
        if not branch.steps:
            return None
        place = len(branch.steps) - 1
        badges = self.get_badges(branch).get(place, frozenset())
        return build_outline_row(
            branch.steps[place], place, badges, is_root=place == self.find_root_step(branch)
        )

    def strip(self, branch: BranchView, axis: Axis | None) -> Timeline:
        """Build the timeline of a branch."""
        abandoned = () if branch.number else self.branches.abandoned
        beside = [
            LaneSource(branch=abandoned_branch, root=self.find_root_step(abandoned_branch))
            for abandoned_branch in abandoned
        ]
        return build_timeline(
            branch, self.get_badges(branch), root=self.find_root_step(branch), axis=axis, lanes=beside
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
        step: tuple(sorted(here, key=lambda one: -one.probability)) for step, here in findings_by_step.items()
    }


def _rank_steps(header: RunHeader) -> dict[tuple[str, int], int]:
    """Rank the root cause first, on any branch; other hypotheses keep their ranks."""
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
    # Trace along the branch of the step, as later steps of the current branch did not use its values.
    line = branches.by_id[cause.branch_id]
    if header.recovery is not None:
        line = branches.find_by_recovery(header.recovery)
    return trace_propagation(data.run, line.steps, cause.step)


def _group_uses(
    propagation: ErrorPropagation | None, branches: BranchViews, header: RunHeader
) -> dict[tuple[str, int], tuple[ValueTrace, ...]]:
    if propagation is None or header.cause is None:
        return {}
    line = (
        branches.find_by_recovery(header.recovery)
        if header.recovery is not None
        else branches.by_id[header.cause.branch_id]
    )
    uses: dict[tuple[str, int], list[ValueTrace]] = defaultdict(list)
    for trace in propagation.traces:
        for step in trace.uses:
            uses[line.owner_ids[step], step].append(trace)
    return {place: tuple(traces) for place, traces in uses.items()}
