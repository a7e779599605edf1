"""Tables of an evaluation for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from agentguard.cli.terminal_text import to_one_line
from agentguard.evals.evaluate import EvaluationPlan
from agentguard.evals.published_results import find_published_results
from agentguard.evals.result import Evaluation, Setting, has_training_data
from agentguard.evals.scoring import LocalizationScores, OutcomeScores
from agentguard.quantity import format_quantity

_SETTINGS = {
    Setting.UNTRAINED: "untrained",
    Setting.AS_SHIPPED: "shipped",
    Setting.TRAINING_DATA: "TRAINING DATA",
    Setting.CROSS_VALIDATED: "cv",
    Setting.TRANSFER: "transfer",
}
_SHOWN_RECORDS = 4
_METHOD_COLUMN = 22


def build_tables(results: Sequence[Evaluation], plan: EvaluationPlan) -> Iterator[RenderableType]:
    """Yield a table for the whole set, one for each of its parts, and notes."""
    first_result = results[0]
    parts = sorted(first_result.subsets)
    yield from _build_pair(results, None, plan)
    for part in parts:
        yield Text("")
        yield from _build_pair(results, part, plan)
    yield Text("")
    yield from _build_notes(results, plan)


def _build_pair(
    results: Sequence[Evaluation], part: str | None, plan: EvaluationPlan
) -> Iterator[RenderableType]:
    methods = {result.method for result in results}
    rows = [*results, *(b for label, b in results[0].baselines.items() if label not in methods)]
    localized = [(row, scores) for row in rows if (scores := _format_interval(row, part)[0]) is not None]
    if localized:
        yield _build_localization_table(localized, part, plan, methods=len(results))
    outcomes = [(row, outcome) for row in results if (outcome := _format_interval(row, part)[1]) is not None]
    if outcomes:
        yield Text("")
        yield _build_outcome_table(outcomes, part)


def _format_interval(
    result: Evaluation, part: str | None
) -> tuple[LocalizationScores | None, OutcomeScores | None]:
    return result.subsets[part] if part is not None else (result.localization, result.outcome)


def _build_localization_table(
    rows: Sequence[tuple[Evaluation, LocalizationScores]],
    part: str | None,
    plan: EvaluationPlan,
    *,
    methods: int,
) -> RenderableType:
    first_result, scores = rows[0]
    table = _new_table(
        f"{_format_title(first_result, part)}: root causes of {format_quantity(scores.n, 'run')}, in %"
    )
    for name in ("method", "setting"):
        table.add_column(name, no_wrap=True)
    for name in ("agent", "step", "95 %", "±1/3/5", "top 3/5"):
        table.add_column(name, justify="right", no_wrap=True)
    for place, (result, row_scores) in enumerate(rows):
        low, high = row_scores.wilson95["step"]
        table.add_row(
            Text(to_one_line(result.method, _METHOD_COLUMN), "bold" if place < methods else ""),
            _SETTINGS[result.setting],
            _format_spread(row_scores.agent.mean, row_scores.agent.sd),
            _format_spread(row_scores.step.mean, row_scores.step.sd),
            f"{100 * low:.0f}–{100 * high:.0f}",
            "/".join(f"{100 * row_scores.within[k]:.0f}" for k in ("1", "3", "5")),
            "/".join(f"{100 * row_scores.top[k]:.0f}" for k in ("3", "5")),
            end_section=place == methods - 1,
        )
    published = find_published_results(
        first_result.dataset, part=part or _get_single_part(first_result), with_answer=plan.with_answer
    )
    is_comparable = not has_training_data(result for result, _ in rows)
    for row in published[: _SHOWN_RECORDS * is_comparable]:
        method_label = f"{row.method}, {row.model}" if row.model else row.method
        label = Text(to_one_line(method_label, _METHOD_COLUMN), "dim")
        setting = Text(row.training.replace("_", "-"), "dim")
        table.add_row(label, setting, _format_percent(row.agent), _format_percent(row.step))
    return table


def _build_outcome_table(
    rows: Sequence[tuple[Evaluation, OutcomeScores]], part: str | None
) -> RenderableType:
    first_result, scores = rows[0]
    table = _new_table(
        f"{_format_title(first_result, part)}: {scores.n_failed} failed of {format_quantity(scores.n, 'run')}"
    )
    table.add_column("method", no_wrap=True)
    for name in ("AUROC", "av. prec.", "Brier", "named*", "undecided"):
        table.add_column(name, justify="right", no_wrap=True)
    for result, row_scores in rows:
        table.add_row(
            Text(to_one_line(result.method, _METHOD_COLUMN), "bold"),
            *(
                f"{s.mean:.3f}±{s.sd:.3f}"
                for s in (row_scores.auroc, row_scores.average_precision, row_scores.brier)
            ),
            f"{_format_percent(row_scores.named_on_passed)} %",
            f"{_format_percent(row_scores.undecided)} %",
        )
    if part is None and first_result.run_size_auroc is not None:
        table.add_row("run size alone", f"{first_result.run_size_auroc:.3f}")
    return table


def _build_notes(results: Sequence[Evaluation], plan: EvaluationPlan) -> Iterator[RenderableType]:
    if any(result.setting is Setting.CROSS_VALIDATED for result in results):
        yield _build_note(
            f"cross-validated: {plan.repeats} × {plan.folds} folds, split by question; mean ± standard "
            "deviation over the repeats. Published zero-shot methods used no labels: not comparable."
        )
    if any(result.outcome for result in results):
        yield _build_note("* share of the passed runs on which a root cause was named")
    if has_training_data(results):
        yield _build_note(
            "TRAINING DATA: the model was trained on scored runs; its scores are not valid for other runs",
            "red",
        )
    elif find_published_results(results[0].dataset, part=_get_single_part(results[0])) or results[0].subsets:
        yield _build_note("zero-shot, retrieval, trained: published results, as their authors report them")
    if plan.shuffle_labels:
        methods_above = [r.method for r in results if r.is_above_baselines()]
        summary = f"{', '.join(methods_above)} IS; labels may leak" if methods_above else "none is"
        yield _build_note(
            f"trained on shuffled labels, so no method may be above the baselines: {summary}", "yellow"
        )
    methods = {result.method for result in results}
    for result in (*results, *(b for label, b in results[0].baselines.items() if label not in methods)):
        kinds = Counter(p.error for p in result.predictions if p.error is not None)
        if kinds:
            total = f"{kinds.total()} of {format_quantity(len(result.predictions), 'prediction')}"
            yield _build_note(
                f"{result.method} failed on {total}, mostly {kinds.most_common(1)[0][0]}", "yellow"
            )
    for result in results:
        yield _build_note(f"{result.method}: {result.seconds:.1f} s")
    if results[0].broken:
        yield _build_note(f"not read: {format_quantity(results[0].broken, 'record')}", "yellow")


def _get_single_part(result: Evaluation) -> str:
    """Return the only part of a set; empty if it has several."""
    parts = {case.part for case in result.cases}
    return parts.pop() if len(parts) == 1 else ""


def _format_title(result: Evaluation, part: str | None) -> str:
    return f"{result.dataset} {part}" if part else result.dataset


def _new_table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)


def _build_note(text: str, style: str = "dim") -> Text:
    return Text(text, style=style)


def _format_spread(mean: float, sd: float) -> str:
    return f"{_format_percent(mean)}±{100 * sd:.1f}" if sd > 0 else _format_percent(mean)


def _format_percent(share: float | None) -> str:
    return "–" if share is None or share != share else f"{100 * share:.1f}"
