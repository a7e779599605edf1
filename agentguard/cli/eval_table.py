"""The result of an evaluation as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from agentguard.cli.text import one_line
from agentguard.evals.records import published
from agentguard.evals.result import Evaluation, Setting
from agentguard.evals.run import Plan
from agentguard.evals.scores import Localization, Outcome

_SETTINGS = {
    Setting.UNTRAINED: "untrained",
    Setting.AS_SHIPPED: "shipped",
    Setting.CROSS_VALIDATED: "cv",
    Setting.TRANSFER: "transfer",
}
_SHOWN_RECORDS = 4
_NAME = 22


def tables(results: Sequence[Evaluation], plan: Plan) -> Iterator[RenderableType]:
    """Yield what to print: a table for the whole set and one for each of its parts, then what to know."""
    first = results[0]
    parts = sorted(first.subsets)
    yield from _both(results, None, plan)
    for part in parts:
        yield Text("")
        yield from _both(results, part, plan)
    yield Text("")
    yield from _notes(results, plan)


def _both(results: Sequence[Evaluation], part: str | None, plan: Plan) -> Iterator[RenderableType]:
    named = {result.method for result in results}
    rows = [*results, *(b for label, b in results[0].baselines.items() if label not in named)]
    where = [(row, scores) for row in rows if (scores := _pair(row, part)[0]) is not None]
    if where:
        yield _where(where, part, plan, methods=len(results))
    whether = [(row, found) for row in results if (found := _pair(row, part)[1]) is not None]
    if whether:
        yield Text("")
        yield _whether(whether, part)


def _pair(result: Evaluation, part: str | None) -> tuple[Localization | None, Outcome | None]:
    return result.subsets[part] if part is not None else (result.localization, result.outcome)


def _where(
    rows: Sequence[tuple[Evaluation, Localization]], part: str | None, plan: Plan, *, methods: int
) -> RenderableType:
    first, scores = rows[0]
    table = _table(f"{_title(first, part)}: root causes of {scores.n} runs, in %")
    for name in ("method", "setting"):
        table.add_column(name, no_wrap=True)
    for name in ("agent", "step", "95 %", "±1/3/5", "top 3/5"):
        table.add_column(name, justify="right", no_wrap=True)
    for place, (result, held) in enumerate(rows):
        low, high = held.wilson95["step"]
        table.add_row(
            Text(one_line(result.method, _NAME), "bold" if place < methods else ""),
            _SETTINGS[result.setting],
            _spread(held.agent.mean, held.agent.sd),
            _spread(held.step.mean, held.step.sd),
            f"{100 * low:.0f}–{100 * high:.0f}",
            "/".join(f"{100 * held.within[k]:.0f}" for k in ("1", "3", "5")),
            "/".join(f"{100 * held.top[k]:.0f}" for k in ("3", "5")),
            end_section=place == methods - 1,
        )
    for row in published(first.dataset, part=part or _only_part(first), with_answer=plan.with_answer)[
        :_SHOWN_RECORDS
    ]:
        who = f"{row.method}, {row.model}" if row.model else row.method
        label = Text(one_line(who, _NAME), "dim")
        setting = Text(row.training.replace("_", "-"), "dim")
        table.add_row(label, setting, _cent(row.agent), _cent(row.step))
    return table


def _whether(rows: Sequence[tuple[Evaluation, Outcome]], part: str | None) -> RenderableType:
    first, scores = rows[0]
    table = _table(f"{_title(first, part)}: {scores.n_failed} failed of {scores.n} runs")
    table.add_column("method", no_wrap=True)
    for name in ("AUROC", "av. prec.", "Brier", "named*", "abstained"):
        table.add_column(name, justify="right", no_wrap=True)
    for result, held in rows:
        table.add_row(
            Text(one_line(result.method, _NAME), "bold"),
            *(f"{s.mean:.3f}±{s.sd:.3f}" for s in (held.auroc, held.average_precision, held.brier)),
            f"{_cent(held.named_on_passed)} %",
            f"{_cent(held.abstained)} %",
        )
    if part is None and first.run_size_auroc is not None:
        table.add_row("run size alone", f"{first.run_size_auroc:.3f}")
    return table


def _notes(results: Sequence[Evaluation], plan: Plan) -> Iterator[RenderableType]:
    if any(result.setting is Setting.CROSS_VALIDATED for result in results):
        yield _note(
            f"cross-validated: {plan.repeats} × {plan.folds} folds, split by question; mean ± standard "
            "deviation over the repeats. Published zero-shot methods saw no labelled run: another contest."
        )
    if any(result.outcome for result in results):
        yield _note("* share of the passed runs on which a root cause was named")
    if published(results[0].dataset, part=_only_part(results[0])) or results[0].subsets:
        yield _note("zero-shot, retrieval, trained: published results, as their authors report them")
    if plan.shuffle_labels:
        beat = [r.method for r in results if r.above_baselines()]
        said = f"{', '.join(beat)} IS: look for a leak" if beat else "none is"
        yield _note(f"trained on shuffled labels, so no method may be above the baselines: {said}", "yellow")
    named = {result.method for result in results}
    for result in (*results, *(b for label, b in results[0].baselines.items() if label not in named)):
        kinds = Counter(p.error for p in result.predictions if p.error is not None)
        if kinds:
            total = f"{kinds.total()} of {len(result.predictions)} predictions"
            yield _note(f"{result.method} failed on {total}, mostly {kinds.most_common(1)[0][0]}", "yellow")
    for result in results:
        yield _note(f"{result.method}: {result.seconds:.1f} s")
    if results[0].broken:
        yield _note(f"{results[0].broken} records could not be read", "yellow")


def _only_part(result: Evaluation) -> str:
    """The part a set consists of, if it is read as one part alone."""
    parts = {case.part for case in result.cases}
    return parts.pop() if len(parts) == 1 else ""


def _title(result: Evaluation, part: str | None) -> str:
    return f"{result.dataset} {part}" if part else result.dataset


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)


def _note(text: str, style: str = "dim") -> Text:
    return Text(text, style=style)


def _spread(mean: float, sd: float) -> str:
    return f"{_cent(mean)}±{100 * sd:.1f}" if sd > 0 else _cent(mean)


def _cent(share: float | None) -> str:
    return "–" if share is None or share != share else f"{100 * share:.1f}"
