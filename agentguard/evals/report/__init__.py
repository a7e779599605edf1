"""HTML report of an evaluation; it opens from disk and needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from agentguard.evals.report.accuracy import render_accuracy
from agentguard.evals.report.breakdown import BreakdownRow, summarize_runs
from agentguard.evals.report.error_analysis import render_calibration, render_confusion, render_errors
from agentguard.evals.result import Evaluation, Setting
from agentguard.evals.runner import EvaluationPlan
from agentguard.evals.scoring import OutcomeScores
from agentguard.html_report.page import (
    format_percent,
    render_details,
    render_heading,
    render_page,
    render_paragraph,
    render_table,
)
from agentguard.quantity import format_quantity
from agentguard.version import __version__

_OUTCOMES = (
    *("method", "AUROC", "average precision", "Brier", "calibration error"),
    *("named on passed", "undecided"),
)
_RUNS = (
    *("run", "steps", "annotated", "agent", "named", "agent"),
    *("right in", "confidence", "verdict", "p(failed)"),
)


def write_report(path: Path, results: Sequence[Evaluation], *, plan: EvaluationPlan) -> None:
    """Write the report of ``results``, which share a data set and baselines, to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_report(results, plan=plan), encoding="utf-8")


def render_report(results: Sequence[Evaluation], *, plan: EvaluationPlan) -> str:
    """Return the report as one HTML document."""
    first = results[0]
    title = f"{', '.join(r.method for r in results)} on {first.dataset}"
    return render_page(
        title,
        [
            render_heading(1, title),
            render_paragraph(describe_setup(first, plan), "soft"),
            *_render_body(results, plan),
        ],
    )


def describe_setup(first: Evaluation, plan: EvaluationPlan) -> str:
    """Return a line that describes data and settings of the evaluation."""
    parts = [format_quantity(first.n, "annotated run")]
    if first.broken:
        parts.append(f"{format_quantity(first.broken, 'record')} not readable")
    if any(
        evaluation.setting is Setting.CROSS_VALIDATED for evaluation in (first, *first.baselines.values())
    ):
        parts.append(f"{plan.repeats} × {plan.folds} folds split by question, seed {plan.seed}")
    parts.append("with the gold answer" if plan.with_answer else "without the gold answer")
    if plan.shuffle_labels:
        parts.append("TRAINED ON SHUFFLED LABELS, as a check")
    parts.append(f"agentguard {__version__}")
    if first.checksum:
        parts.append(f"data {first.checksum[:16]}")
    return " · ".join(parts)


def _render_body(results: Sequence[Evaluation], plan: EvaluationPlan) -> Iterator[str]:
    yield from render_overall(results, plan)
    for result in results:
        yield from render_method(result)
        yield from _render_runs(result)


def render_overall(results: Sequence[Evaluation], plan: EvaluationPlan) -> Iterator[str]:
    """Yield the scores of all methods and baselines."""
    first = results[0]
    parts: list[str | None] = [*sorted(first.subsets)] or [None]
    for part in parts:
        yield from render_accuracy(results, part, plan)
    if first.outcome:
        yield from _render_outcomes(results)


def render_method(result: Evaluation) -> Iterator[str]:
    """Yield the errors and confusions of one method."""
    if result.localization:
        yield render_heading(2, f"Errors of {result.method}")
        yield from render_errors(result)
    yield render_heading(2, f"Confusions of {result.method}")
    yield from render_confusion(result)


def _render_outcomes(results: Sequence[Evaluation]) -> Iterator[str]:
    first = results[0].outcome
    if first is None:
        return
    yield render_heading(2, "Failed or passed")
    yield render_paragraph(f"{first.n_failed} of {format_quantity(first.n, 'run')} failed.", "soft")
    yield render_table(
        "outcomes", _OUTCOMES, [_build_outcome_row(r.method, r.outcome) for r in results if r.outcome]
    )
    if results[0].run_size_auroc is not None:
        yield render_paragraph(
            f"The number of steps alone reaches an AUROC of {results[0].run_size_auroc:.3f}."
        )
    for result in results:
        outcomes = {c.run: bool(c.failed) for c in result.cases if c.failed is not None}
        answers = [(outcomes[p.run], p.probability) for p in result.predictions if p.run in outcomes]
        scored_answers = [(failed, p) for failed, p in answers if p is not None]
        yield render_calibration(
            [f for f, _ in scored_answers],
            [p for _, p in scored_answers],
            f"{result.method}: probability of failure",
        )


def _build_outcome_row(method: str, scores: OutcomeScores) -> list[str]:
    return [
        method,
        *(f"{s.mean:.3f} ± {s.sd:.3f}" for s in (scores.auroc, scores.average_precision, scores.brier)),
        f"{scores.calibration_error:.3f}",
        f"{format_percent(scores.named_on_passed)} %",
        f"{format_percent(scores.undecided)} %",
    ]


def _render_runs(result: Evaluation) -> Iterator[str]:
    rows = [_build_run_row(row) for row in summarize_runs(result)]
    yield render_details(
        f"Every run: predictions of {result.method}", render_table("predictions", _RUNS, rows)
    )


def _build_run_row(row: BreakdownRow) -> list[str | tuple[str, str]]:
    sign = "" if row.right is None else "yes" if row.right >= 0.5 else "no"
    return [
        row.case.run,
        (str(row.case.length), "n"),
        (_format_or_dash(row.case.step), "n"),
        _format_or_dash(row.case.agent),
        (_format_or_dash(row.step), f"n {sign}"),
        _format_or_dash(row.agent),
        ("–" if row.right is None else f"{format_percent(row.right, 0)} %", "n"),
        (f"{row.confidence:.2f}", "n"),
        row.verdict,
        ("–" if row.probability is None else f"{row.probability:.2f}", "n"),
    ]


def _format_or_dash(value: object) -> str:
    return "–" if value is None else str(value)
