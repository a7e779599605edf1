"""Accuracy part of a report: every method with intervals, and the published results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentguard.evals.published_results import PublishedResult, find_published_results
from agentguard.evals.result import Evaluation, Setting, has_training_data
from agentguard.evals.runner import EvaluationPlan
from agentguard.evals.scoring import LocalizationScores
from agentguard.html_report.page import (
    format_percent,
    render_details,
    render_facts,
    render_figure,
    render_heading,
    render_paragraph,
    render_table,
)
from agentguard.html_report.plots import IntervalRow, render_intervals
from agentguard.quantity import format_quantity

_SETTINGS = {
    Setting.UNTRAINED: "needs no training",
    Setting.AS_SHIPPED: "as shipped",
    Setting.TRAINING_DATA: "as shipped, scored on its training data",
    Setting.CROSS_VALIDATED: "trained, cross-validated by question",
    Setting.TRANSFER: "trained on another set",
}
_SCORES = ("95 %", "published scorer", "±1", "±3", "±5", "top 3", "top 5")
_HEAD = ("method", "setting", "agent", "step", *_SCORES)
_PUBLISHED_NOTE = (
    "Diamonds are published results as their authors report them: hollow for language models without "
    "training (zero-shot), dashed for methods that read labelled failures at run time, full for trained "
    "models. A method that was trained on labelled runs is not comparable with one that was not."
)


def render_accuracy(results: Sequence[Evaluation], part: str | None, plan: EvaluationPlan) -> Iterator[str]:
    """Yield the accuracy of every method on one part (all parts if None), as plots and as a table."""
    first = results[0]
    method_names = {result.method for result in results}
    candidates = [(r, _select_localization(r, part), True) for r in results]
    candidates += [
        (b, _select_localization(b, part), False)
        for label, b in first.baselines.items()
        if label not in method_names
    ]
    rows = [(r, scores, is_measured) for r, scores, is_measured in candidates if scores is not None]
    if not rows:
        return
    records = (
        ()
        if has_training_data(results)
        else find_published_results(
            first.dataset, part=part or _find_only_part(first), with_answer=plan.with_answer
        )
    )
    yield render_heading(2, f"Root causes: {part or first.dataset}")
    yield _render_headline(rows[0][1], rows[0][0])
    for name, title in (("step", "Step accuracy"), ("agent", "Agent accuracy")):
        marks = [
            *(
                _build_row(r, scores, name, is_measured)
                for r, scores, is_measured in rows
                if _select_score(scores, name) == _select_score(scores, name)
            )
        ]
        marks += [_build_published_row(r, name) for r in records if getattr(r, name) is not None]
        drawing = render_intervals(marks, title=title, description=f"{title} of each method, in per cent")
        yield render_heading(3, f"{title}, %")
        yield render_figure(
            drawing,
            f"Whiskers: 95 % Wilson intervals over {format_quantity(rows[0][1].n, 'run')}. "
            f"{_PUBLISHED_NOTE if records else ''}",
        )
    yield render_details("The same as a table", _render_accuracy_table(rows, records))


def _render_headline(scores: LocalizationScores, result: Evaluation) -> str:
    low, high = scores.wilson95["step"]
    facts = [
        ("step", format_percent(scores.step.mean), f"95 %: {format_percent(low)} to {format_percent(high)}"),
        ("agent", format_percent(scores.agent.mean), f"n = {scores.n_agent}"),
        (
            "within 1 / 3 / 5",
            " / ".join(format_percent(scores.within[k], 0) for k in ("1", "3", "5")),
            "steps off",
        ),
        (
            "top 3 / 5",
            " / ".join(format_percent(scores.top[k], 0) for k in ("3", "5")),
            "gold among the first",
        ),
        ("published scorer", format_percent(scores.published), "gold occurs as text in the prediction"),
    ]
    return render_paragraph(f"{result.method}: {_SETTINGS[result.setting]}", "soft") + render_facts(facts)


def _render_accuracy_table(
    rows: Sequence[tuple[Evaluation, LocalizationScores, bool]], records: Sequence[PublishedResult]
) -> str:
    lines: list[list[str]] = []
    for result, scores, _ in rows:
        low, high = scores.wilson95["step"]
        lines.append(
            [
                result.method,
                _SETTINGS[result.setting],
                f"{format_percent(scores.agent.mean)} ± {format_percent(scores.agent.sd)}",
                f"{format_percent(scores.step.mean)} ± {format_percent(scores.step.sd)}",
                f"{format_percent(low)}–{format_percent(high)}",
                format_percent(scores.published),
                *(format_percent(scores.within[k]) for k in ("1", "3", "5")),
                *(format_percent(scores.top[k]) for k in ("3", "5")),
            ]
        )
    for record in records:
        setting = f"published, {record.training.replace('_', '-')}; {record.source}"
        lines.append(
            [
                _format_published_name(record),
                setting,
                format_percent(record.agent),
                format_percent(record.step),
            ]
        )
    return render_table("accuracy of each method", _HEAD, lines)


def _select_localization(result: Evaluation, part: str | None) -> LocalizationScores | None:
    return result.subsets[part][0] if part is not None else result.localization


def _select_score(scores: LocalizationScores, name: str) -> float:
    return scores.step.mean if name == "step" else scores.agent.mean


def _build_row(result: Evaluation, scores: LocalizationScores, name: str, is_measured: bool) -> IntervalRow:
    low, high = scores.wilson95[name]
    return IntervalRow(
        label=result.method,
        value=_select_score(scores, name),
        low=low,
        high=high,
        kind="method" if is_measured else "baseline",
    )


def _build_published_row(record: PublishedResult, name: str) -> IntervalRow:
    value = record.step if name == "step" else record.agent
    note = f"{record.training.replace('_', '-')}; {record.source}"
    return IntervalRow(
        label=_format_published_name(record), value=value or 0.0, kind=record.training, note=note
    )


def _format_published_name(record: PublishedResult) -> str:
    return f"{record.method} ({record.model})" if record.model else record.method


def _find_only_part(result: Evaluation) -> str:
    parts = {case.part for case in result.cases}
    return parts.pop() if len(parts) == 1 else ""
