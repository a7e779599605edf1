"""One run, read once for all that is shown of it: the page, its fragments, the export."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentguard.detect.base import Finding
from agentguard_server.viewer.bundle import Bundle
from agentguard_server.viewer.run.diff import Parting, partings
from agentguard_server.viewer.run.head import Head, head_of
from agentguard_server.viewer.run.ledger import Entry, ledger_of
from agentguard_server.viewer.run.lines import LIVE, Line, Lines, lines_of
from agentguard_server.viewer.run.marks import Quotes
from agentguard_server.viewer.run.passage import Fold
from agentguard_server.viewer.run.scores import Score, grouped, score
from agentguard_server.viewer.run.spread import Spread, Trace, spread
from agentguard_server.viewer.run.strip import Axis, Badge, Beside, Strip, strip_of
from agentguard_server.viewer.run.turns import Reading, Turn, error_of, turns


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A run as it is shown.

    Attributes:
        bundle: what it was made from.
        lines: the live line and those that were left.
        quotes: all quotes, numbered.
        head: what went wrong.
        scores: the findings.
        ledger: what tools did to the world.
        partings: branches beside the lines that went on.
        spread: how the values of the root cause went on; None without a root cause.
        reading: what turns are read with.
    """

    bundle: Bundle
    lines: Lines
    quotes: Quotes
    head: Head
    scores: tuple[Score, ...]
    ledger: tuple[Entry, ...]
    partings: tuple[Parting, ...]
    spread: Spread | None
    reading: Reading
    _badges: dict[str, dict[int, frozenset[Badge]]] = field(default_factory=dict)

    @classmethod
    def of(cls, bundle: Bundle, *, fold: Fold | None = None) -> View:
        """Read a bundle."""
        lines, quotes = lines_of(bundle), Quotes()
        head = head_of(bundle, lines, quotes)
        live = lines.live
        scores = tuple(
            score(
                finding,
                bundle.finding_ids.get((finding.detector, finding.step), ""),
                quotes.add(finding.evidence, live.steps, live.owners),
                again,
            )
            for finding, again in grouped(bundle.findings)
        )
        for recovery in bundle.recoveries:
            acted = lines.of(recovery)
            quotes.add(recovery.evidence, acted.steps, acted.owners)
        ledger = ledger_of(bundle, lines)
        traced = _traced(bundle, lines, head)
        reading = Reading(
            quotes=quotes,
            findings=_by_step(bundle.findings),
            effects={(one.line, one.step, one.call): one for one in ledger if one.line is not None},
            ranks=_ranks(head),
            uses=_uses(traced, lines, head),
            fold=fold or Fold(),
            sure=head.state != "unsure",
        )
        return cls(
            bundle=bundle,
            lines=lines,
            quotes=quotes,
            head=head,
            scores=scores,
            ledger=ledger,
            partings=partings(lines),
            spread=traced,
            reading=reading,
        )

    def line(self, id: str) -> Line | None:
        """A line by its id; empty for the live one."""
        return self.lines.by_id.get(id)

    def turns(self, line: Line, begin: int, end: int, *, prefix: str = "") -> tuple[Turn, ...]:
        """Turns of a line."""
        return turns(self.reading, line, begin, end, prefix=prefix)

    def root(self, line: Line) -> int | None:
        """The root-cause step, if it stands on this line."""
        cause = self.head.cause
        if cause is None or not cause.there or cause.step >= len(line.steps):
            return None
        return cause.step if line.owners[cause.step] == cause.line else None

    def forks(self, line: Line) -> Mapping[int, tuple[Line, ...]]:
        """Where lines were left for this one, by step."""
        found: dict[int, list[Line]] = defaultdict(list)
        for branch in self.lines.branches:
            parent = self.lines.by_id[branch.parent]
            here = parent.id == line.id or (branch.fork < line.fork and parent.id in line.owners)
            if here and branch.id != line.id:
                found[branch.fork].append(branch)
        return {step: tuple(left) for step, left in found.items()}

    def strip(self, line: Line, axis: Axis | None) -> Strip:
        """The strip of a line."""
        left = () if line.number else self.lines.branches
        beside = [Beside(line=one, root=self.root(one)) for one in left]
        return strip_of(line, self.badges(line), root=self.root(line), axis=axis, beside=beside)

    def badges(self, line: Line) -> dict[int, frozenset[Badge]]:
        """What is worth seeing on a line, by step."""
        if line.id not in self._badges:
            self._badges[line.id] = self._seen(line)
        return self._badges[line.id]

    def _seen(self, line: Line) -> dict[int, frozenset[Badge]]:
        found: dict[int, set[Badge]] = defaultdict(set)
        for place, (step, owner) in enumerate(zip(line.steps, line.owners, strict=True)):
            if any(error_of(seen) for seen in step.observations):
                found[place].add("error")
            if owner == LIVE and place in self.reading.findings:
                found[place].add("finding")
            if (owner, place) in self.reading.uses:
                found[place].add("use")
        for owner, place, _ in self.reading.effects:
            if place < len(line.owners) and line.owners[place] == owner:
                found[place].add("effect")
        for place in self.forks(line):
            found[place].add("rollback")
        return {place: frozenset(badges) for place, badges in found.items() if place < len(line.steps)}


def _by_step(findings: tuple[Finding, ...]) -> dict[int, tuple[Finding, ...]]:
    found: dict[int, list[Finding]] = defaultdict(list)
    for finding in findings:
        found[finding.step].append(finding)
    return {step: tuple(sorted(here, key=lambda one: -one.probability)) for step, here in found.items()}


def _ranks(head: Head) -> dict[tuple[str, int], int]:
    """The root cause is first, whichever line it stands on; other hypotheses keep their ranks."""
    ranks: dict[tuple[str, int], int] = {}
    taken = head.cause is not None and head.recovery is not None
    if head.cause is not None and head.cause.there:
        ranks[head.cause.line, head.cause.step] = 1
    for cause in head.causes if head.state != "fine" else ():
        if cause.there and not (taken and cause.rank == 1):
            ranks.setdefault((cause.line, cause.step), cause.rank)
    return ranks


def _traced(bundle: Bundle, lines: Lines, head: Head) -> Spread | None:
    cause = head.cause
    if cause is None or not cause.there:
        return None
    # A step of a branch is followed along that branch; what the live line did later did not come from it.
    line = lines.by_id[cause.line]
    if head.recovery is not None:
        line = lines.of(head.recovery)
    return spread(bundle.run, line.steps, cause.step)


def _uses(traced: Spread | None, lines: Lines, head: Head) -> dict[tuple[str, int], tuple[Trace, ...]]:
    if traced is None or head.cause is None:
        return {}
    line = lines.of(head.recovery) if head.recovery is not None else lines.by_id[head.cause.line]
    found: dict[tuple[str, int], list[Trace]] = defaultdict(list)
    for trace in traced.traces:
        for step in trace.uses:
            found[line.owners[step], step].append(trace)
    return {place: tuple(traces) for place, traces in found.items()}
