"""Text of one diagnosis on a terminal: verdict, step, reason, evidence and suggested fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agentguard.cli.terminal_text import extract_excerpt, to_one_line
from agentguard.detect.base import Evidence, Finding
from agentguard.detect.quotes import describe_field
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.localize.step_support import StepSupport, rate_first_hypothesis
from agentguard.quantity import format_quantity
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.trajectory.costs import compute_run_cost
from agentguard.trajectory.model import Source, Step, Trajectory
from agentguard.verdict import Verdict

_VERDICT_STYLES = {
    Verdict.FAILED: "bold white on red",
    Verdict.NO_FAILURE_FOUND: "bold black on green",
    Verdict.UNDECIDED: "bold black on yellow",
}
_STRONG_PROBABILITY = 0.5
_MAX_FINDINGS = 6  # maximum number of findings, unless all are requested
_MAX_TIMELINE_STEPS = 400  # a longer strip is unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisView:
    """Amount of output: number of alternative hypotheses; every finding with evidence if ``show_all``."""

    max_alternatives: int = 3
    show_all: bool = False


def render_diagnosis(
    console: Console, trajectory: Trajectory, diagnosis: Diagnosis, view: DiagnosisView
) -> None:
    """Print one full diagnosis."""
    parts: list[RenderableType] = []
    if len(trajectory.steps) <= _MAX_TIMELINE_STEPS:
        parts.append(_build_timeline(trajectory, diagnosis))
    support = rate_first_hypothesis(diagnosis)
    if support is not None:
        first_hypothesis, *alternatives = diagnosis.hypotheses
        parts.append(_build_root_cause(console, trajectory, first_hypothesis, support))
        if alternatives[: view.max_alternatives]:
            parts.append(_build_other_hypotheses(alternatives[: view.max_alternatives]))
    parts.extend(_build_findings(console, trajectory, diagnosis, full=view.show_all))
    remarks = _new_grid()
    for note in diagnosis.notes:
        remarks.add_row("note", Text(to_one_line(note, 300), "dim"))
    if usage := _format_judge_usage(diagnosis.usage):
        remarks.add_row("judge", Text(usage, "dim"))
    if remarks.row_count:
        parts.append(remarks)
    for failure in diagnosis.failures:
        place = "" if failure.step is None else f" at step {failure.step}"
        parts.append(Text(f"{failure.detector} failed{place}: {failure.error}", "yellow"))
    console.print(_build_header(trajectory, diagnosis))
    console.print(Padding(Group(*parts), (0, 0, 0, 2)))


def _build_header(trajectory: Trajectory, diagnosis: Diagnosis) -> RenderableType:
    label, style = diagnosis.verdict.label.upper(), _VERDICT_STYLES[diagnosis.verdict]
    agents = {s.agent for s in trajectory.steps if s.source is Source.AGENT}
    head = Text()
    head.append(f" {label} ", style)
    head.append(f"  {to_one_line(trajectory.id, 60)}", "bold")
    head.append(
        f"  {trajectory.format} · {format_quantity(len(trajectory.steps), 'step')} · {format_quantity(len(agents), 'agent')}"  # noqa: E501
        f"{_format_cost(trajectory)} · p(failed) {diagnosis.probability:.2f}"
        f"{' · ' * bool(diagnosis.basis.label)}{diagnosis.basis.label}",
        "dim",
    )
    task = Text(to_one_line(trajectory.task, 200), "italic")
    return Group(Text(), head, Padding(task, (0, 0, 0, 2)))


def _format_judge_usage(usage: Mapping[str, float]) -> str:
    """Return calls, cached answers, tokens and cost of the judge; empty without calls and cached answers."""
    calls, cached = int(usage.get("calls", 0)), int(usage.get("cached_answers", 0))
    if not calls and not cached:
        return ""
    tokens = int(usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0))
    cost = f", ${usage['cost_usd']:.4g}" if "cost_usd" in usage else ""
    counts = f"{format_quantity(calls, 'call')}, {format_quantity(cached, 'answer')} from the cache"
    return f"{counts}, {tokens:,} tokens{cost}"


def _format_cost(trajectory: Trajectory) -> str:
    """Return the recorded or computed cost of a run; empty if none is known."""
    cost = compute_run_cost(trajectory)
    if cost.cost_usd is None:
        return ""
    return f" · {'at least ' * bool(cost.unpriced_steps)}${cost.cost_usd:.4g}"


def _build_timeline(trajectory: Trajectory, diagnosis: Diagnosis) -> Text:
    """Build a mark for each step: ● root cause, ! strong finding, else its kind; yellow if weak."""
    worst: dict[int, float] = {}
    for finding in diagnosis.findings:
        worst[finding.step] = max(worst.get(finding.step, 0.0), finding.probability)
    first = diagnosis.hypotheses[0] if diagnosis.hypotheses else None
    has_cause = rate_first_hypothesis(diagnosis) is StepSupport.ROOT_CAUSE
    cause = first.step if first and has_cause else None
    has_strong_findings = any(value >= _STRONG_PROBABILITY for step, value in worst.items() if step != cause)
    strip = Text("steps  ", "dim")
    for step in trajectory.steps:
        if step.index == cause:
            strip.append("●", "bold red")
        elif worst.get(step.index, 0.0) >= _STRONG_PROBABILITY:
            strip.append("!", "yellow")
        else:
            strip.append(
                "▁" if step.source is Source.AGENT else "░", "dim yellow" if step.index in worst else "dim"
            )
    legend = ["● root cause"] * (cause is not None) + ["! finding"] * has_strong_findings
    return strip.append("".join(f"   {one}" for one in legend), "dim")


def _build_root_cause(
    console: Console, trajectory: Trajectory, first: Hypothesis, support: StepSupport
) -> RenderableType:
    grid = _new_grid()
    description = Text()
    description.append(
        _format_step(trajectory, first.step), "bold red" if support is StepSupport.ROOT_CAUSE else "bold"
    )
    description.append(f" · {to_one_line(first.agent, 40)}" + (f" · {first.module}" if first.module else ""))
    description.append(f" · p(step) {first.probability:.2f}", "dim")
    grid.add_row(support.value, description)
    if first.codes:
        grid.add_row("kind", _format_codes(first.codes))
    if first.detectors and support is not StepSupport.CANDIDATE:
        grid.add_row("detector", Text(", ".join(first.detectors)))
    if first.reason and support is not StepSupport.CANDIDATE:
        grid.add_row("reason", Text(to_one_line(first.reason, 400)))
    width = max(40, min(console.width, 160) - 19)
    for evidence in first.evidence[:3]:
        grid.add_row("evidence", _format_quote(trajectory, evidence, limit=2 * width))
    if first.correction:
        grid.add_row("suggested fix", Text(to_one_line(first.correction, 500), "green"))
    return grid


def _build_other_hypotheses(others: Iterable[Hypothesis]) -> RenderableType:
    grid = _new_grid()
    for i, hypothesis in enumerate(others):
        line = Text(f"step {hypothesis.step} · {to_one_line(hypothesis.agent, 40)}")
        if hypothesis.codes:
            line.append(f" · {_get_code_title(hypothesis.codes[0])}")
        line.append(f" · p {hypothesis.probability:.2f}", "dim")
        grid.add_row("candidates" if i == 0 else "", line)
    return grid


def _build_findings(
    console: Console, trajectory: Trajectory, diagnosis: Diagnosis, *, full: bool
) -> Iterator[RenderableType]:
    strong = [f for f in diagnosis.findings if f.probability >= _STRONG_PROBABILITY]
    shown_findings = list(diagnosis.findings) if full else strong[:_MAX_FINDINGS]
    if shown_findings:
        table = _new_grid()
        for i, finding in enumerate(shown_findings):
            table.add_row("findings" if i == 0 else "", _format_finding(finding))
            if full and finding.evidence:
                table.add_row(
                    "", _format_quote(trajectory, finding.evidence[0], limit=max(40, console.width - 19))
                )
        yield table
    hidden = len(diagnosis.findings) - len(shown_findings)
    if hidden:
        table = _new_grid()
        noun = "more finding" if shown_findings else "weak finding"
        text = f"{format_quantity(hidden, noun)}; --verbose shows all"
        table.add_row("" if shown_findings else "findings", Text(text, "dim"))
        yield table


def _format_finding(finding: Finding) -> Text:
    line = Text(f"step {finding.step} · {finding.detector} · ")
    line.append(to_one_line(finding.message, 200))
    line.append(f" · p {finding.probability:.2f}", "dim")
    return line


def _format_quote(trajectory: Trajectory, evidence: Evidence, *, limit: int) -> Text:
    line = Text(f"step {evidence.step} ", "dim")
    if 0 <= evidence.step < len(trajectory.steps):
        step = trajectory.steps[evidence.step]
        line = Text(f"step {evidence.step}, {to_one_line(describe_field(step, evidence.field), 60)} ", "dim")
        text = step.text(evidence.field)
        before, quote, after = extract_excerpt(text, evidence.start, evidence.end, limit=limit)
    else:
        before, quote, after = "", to_one_line(evidence.quote, limit), ""
    line.append(f"“{before}", "dim").append(quote, "yellow").append(f"{after}”", "dim")
    return line


def _format_codes(codes: Sequence[str]) -> Text:
    line = Text(_get_code_title(codes[0]), "bold")
    line.append(f"  {', '.join(codes[:4])}", "dim")
    return line


def _get_code_title(code: str) -> str:
    """Return the title of a code; the code itself if no known taxonomy contains it."""
    return TaxonomyCatalog.load().get_title(code)


def _format_step(trajectory: Trajectory, index: int) -> str:
    step: Step | None = trajectory.steps[index] if 0 <= index < len(trajectory.steps) else None
    if step is not None and step.source_index is not None and step.source_index != index:
        return f"step {index} (record {step.source_index} of the file)"
    return f"step {index}"


def _new_grid() -> Table:
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_column(style="dim", min_width=13, no_wrap=True)
    grid.add_column(overflow="fold")
    return grid
