"""A diagnosis as a person wants to see it: the verdict, the step, why, and what to do instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agentguard.cli.text import excerpt, one_line
from agentguard.detect.base import Evidence, Finding
from agentguard.localize.base import Diagnosis, Hypothesis, Verdict
from agentguard.taxonomy.load import Taxonomies
from agentguard.trajectory.model import Source, Step, Trajectory

_VERDICTS = {
    Verdict.FAILURE: ("FAILED", "bold white on red"),
    Verdict.NO_FAILURE: ("NO FAILURE", "bold black on green"),
    Verdict.ABSTAINED: ("UNDECIDED", "bold black on yellow"),
}
_STRONG = 0.5
_COLUMNS = {"run": 12, "steps": 5, "verdict": 10, "p": 4, "root cause": 12, "what": 8}  # least widths
_SHOWN = 6  # findings, unless all are asked for
_STRIP = 400  # steps; a longer strip tells nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How much to show: ``top`` further hypotheses; every finding with its evidence if ``full``."""

    top: int = 3
    full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the table of many runs keeps of one of them."""

    name: str
    steps: int
    verdict: Verdict
    probability: float
    cause: str = ""
    what: str = ""

    @classmethod
    def of(cls, trajectory: Trajectory, diagnosis: Diagnosis) -> Row:
        """Reduce a diagnosis to a line."""
        cause, what = "", ""
        if diagnosis.verdict is Verdict.FAILURE and diagnosis.hypotheses:
            first = diagnosis.hypotheses[0]
            cause = f"step {first.step} · {one_line(first.agent, 24)}"
            what = _title(first.codes[0]) if first.codes else one_line(first.reason, 60)
        return cls(
            name=one_line(trajectory.id, 40),
            steps=len(trajectory.steps),
            verdict=diagnosis.verdict,
            probability=diagnosis.probability,
            cause=cause,
            what=what,
        )


def render(console: Console, trajectory: Trajectory, diagnosis: Diagnosis, view: View) -> None:
    """Print one diagnosis whole."""
    parts: list[RenderableType] = []
    if len(trajectory.steps) <= _STRIP:
        parts.append(_strip(trajectory, diagnosis))
    if diagnosis.hypotheses and diagnosis.verdict is not Verdict.NO_FAILURE:
        first, *others = diagnosis.hypotheses
        parts.append(_root_cause(console, trajectory, first, diagnosis.verdict))
        if others[: view.top]:
            parts.append(_others(others[: view.top]))
    parts.extend(_findings(console, trajectory, diagnosis, full=view.full))
    parts.extend(Text(f"note         {one_line(note, 300)}", "dim") for note in diagnosis.notes)
    for failure in diagnosis.failures:
        where = "" if failure.step is None else f" at step {failure.step}"
        parts.append(Text(f"{failure.detector} failed{where}: {failure.error}", "yellow"))
    console.print(_head(trajectory, diagnosis))
    console.print(Padding(Group(*parts), (0, 0, 0, 2)))


def summary(rows: Sequence[Row]) -> RenderableType:
    """A table with a line a run, for several runs at once."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, width in _COLUMNS.items():
        justify: Literal["right", "left"] = "right" if name in ("steps", "p") else "left"
        table.add_column(name, justify=justify, min_width=width, no_wrap=True)
    for row in rows:
        label, style = _VERDICTS[row.verdict]
        verdict = Text(label.lower(), style.rsplit(" ", 1)[-1])
        table.add_row(
            Text(row.name), str(row.steps), verdict, f"{row.probability:.2f}", Text(row.cause), Text(row.what)
        )
    counts = Counter(row.verdict for row in rows)
    tally = ", ".join(f"{counts[v]} {_VERDICTS[v][0].lower()}" for v in Verdict if counts[v])
    return Group(table, Text(f"\n{len(rows)} runs: {tally}", style="bold"))


def _head(trajectory: Trajectory, diagnosis: Diagnosis) -> RenderableType:
    label, style = _VERDICTS[diagnosis.verdict]
    agents = {s.agent for s in trajectory.steps if s.source is Source.AGENT}
    head = Text()
    head.append(f" {label} ", style)
    head.append(f"  {one_line(trajectory.id, 60)}", "bold")
    head.append(
        f"  {trajectory.format} · {_plural(len(trajectory.steps), 'step')} · {_plural(len(agents), 'agent')}"
        f" · p(failed) {diagnosis.probability:.2f}",
        "dim",
    )
    task = Text(f"  {one_line(trajectory.task, 200)}", "italic") if trajectory.task.strip() else Text("")
    return Group(Text(), head, task)


def _strip(trajectory: Trajectory, diagnosis: Diagnosis) -> Text:
    """One mark a step: ● root cause, ! strong finding, · weak finding, and the kind of step else."""
    worst: dict[int, float] = {}
    for finding in diagnosis.findings:
        worst[finding.step] = max(worst.get(finding.step, 0.0), finding.probability)
    failed = diagnosis.verdict is Verdict.FAILURE and bool(diagnosis.hypotheses)
    cause = diagnosis.hypotheses[0].step if failed else None
    strip = Text("steps  ", "dim")
    for step in trajectory.steps:
        if step.index == cause:
            strip.append("●", "bold red")
        elif worst.get(step.index, 0.0) >= _STRONG:
            strip.append("!", "yellow")
        else:
            strip.append(
                "▁" if step.source is Source.AGENT else "░", "dim yellow" if step.index in worst else "dim"
            )
    return strip


def _root_cause(
    console: Console, trajectory: Trajectory, first: Hypothesis, verdict: Verdict
) -> RenderableType:
    grid = _grid()
    name = "root cause" if verdict is Verdict.FAILURE else "likeliest"
    where = Text()
    where.append(_place(trajectory, first.step), "bold red" if verdict is Verdict.FAILURE else "bold")
    where.append(f" · {one_line(first.agent, 40)}" + (f" · {first.module}" if first.module else ""))
    where.append(f" · p {first.probability:.2f}", "dim")
    grid.add_row(name, where)
    if first.codes:
        grid.add_row("what", _codes(first.codes))
    if first.reason:
        grid.add_row("why", Text(one_line(first.reason, 400)))
    width = max(40, min(console.width, 160) - 16)
    for evidence in first.evidence[:3]:
        grid.add_row("evidence", _quote(trajectory, evidence, limit=2 * width))
    if first.correction:
        grid.add_row("instead", Text(one_line(first.correction, 500), "green"))
    return grid


def _others(others: Iterable[Hypothesis]) -> RenderableType:
    grid = _grid()
    for i, hypothesis in enumerate(others):
        line = Text(f"step {hypothesis.step} · {one_line(hypothesis.agent, 40)}")
        if hypothesis.codes:
            line.append(f" · {_title(hypothesis.codes[0])}")
        line.append(f" · p {hypothesis.probability:.2f}", "dim")
        grid.add_row("or else" if i == 0 else "", line)
    return grid


def _findings(
    console: Console, trajectory: Trajectory, diagnosis: Diagnosis, *, full: bool
) -> Iterator[RenderableType]:
    strong = [f for f in diagnosis.findings if f.probability >= _STRONG]
    shown = list(diagnosis.findings) if full else strong[:_SHOWN]
    if shown:
        table = _grid()
        for i, finding in enumerate(shown):
            table.add_row("findings" if i == 0 else "", _finding(finding))
            if full and finding.evidence:
                table.add_row("", _quote(trajectory, finding.evidence[0], limit=max(40, console.width - 16)))
        yield table
    hidden = len(diagnosis.findings) - len(shown)
    if hidden:
        yield Text(f"{'':13}{_plural(hidden, 'more finding')}; --full shows all", "dim")


def _finding(finding: Finding) -> Text:
    line = Text(f"step {finding.step} · {finding.detector} · ")
    line.append(one_line(finding.message, 200))
    line.append(f" · p {finding.probability:.2f}", "dim")
    return line


def _quote(trajectory: Trajectory, evidence: Evidence, *, limit: int) -> Text:
    line = Text(f"step {evidence.step} ", "dim")
    if 0 <= evidence.step < len(trajectory.steps):
        text = trajectory.steps[evidence.step].text(evidence.field)
        before, quote, after = excerpt(text, evidence.start, evidence.end, limit=limit)
    else:
        before, quote, after = "", one_line(evidence.quote, limit), ""
    line.append(f"“{before}", "dim").append(quote, "yellow").append(f"{after}”", "dim")
    return line


def _codes(codes: Sequence[str]) -> Text:
    line = Text(_title(codes[0]), "bold")
    line.append(f"  {', '.join(codes[:4])}", "dim")
    return line


def _title(code: str) -> str:
    """A code's title; the code itself where no taxonomy at hand has it (a user's own detector)."""
    return Taxonomies.load().title(code)


def _place(trajectory: Trajectory, index: int) -> str:
    step: Step | None = trajectory.steps[index] if 0 <= index < len(trajectory.steps) else None
    if step is not None and step.source_index is not None and step.source_index != index:
        return f"step {index} (record {step.source_index} of the file)"
    return f"step {index}"


def _grid() -> Table:
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_column(style="dim", min_width=10, no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
