"""The first part of a report: how accurate each method is, with intervals and the published results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentguard.evals.bench import Plan
from agentguard.evals.records import Published, published
from agentguard.evals.report.page import cent, facts, figure, folded, heading, paragraph, table
from agentguard.evals.report.svg import Row, intervals
from agentguard.evals.result import Evaluation, Setting
from agentguard.evals.scores import Localization

_SETTINGS = {
    Setting.UNTRAINED: "needs no training",
    Setting.AS_SHIPPED: "as shipped",
    Setting.CROSS_VALIDATED: "trained, cross-validated by question",
    Setting.TRANSFER: "trained on another set",
}
_SCORES = ("95 %", "published scorer", "±1", "±3", "±5", "top 3", "top 5")
_HEAD = ("method", "setting", "agent", "step", *_SCORES)
_CONTEST = (
    "Diamonds are published results as their authors report them: hollow for language models asked without "
    "any training (zero-shot), dashed for methods shown labelled failures at run time, full for trained "
    "models. A method trained on labelled runs and one that never saw any are not in the same contest."
)


def accuracy(results: Sequence[Evaluation], part: str | None, plan: Plan) -> Iterator[str]:
    """Yield the accuracy of every method on one part (None: on all), as plots and as a table."""
    first = results[0]
    named = {result.method for result in results}
    held = [(r, _where(r, part), True) for r in results]
    held += [(b, _where(b, part), False) for label, b in first.baselines.items() if label not in named]
    rows = [(r, w, mine) for r, w, mine in held if w is not None]
    if not rows:
        return
    records = published(first.dataset, part=part or _only_part(first), with_answer=plan.with_answer)
    yield heading(2, f"Root causes: {part or first.dataset}")
    yield _headline(rows[0][1], rows[0][0])
    for name, title in (("step", "Step accuracy"), ("agent", "Agent accuracy")):
        marks = [*(_row(r, w, name, mine) for r, w, mine in rows if _value(w, name) == _value(w, name))]
        marks += [_record(r, name) for r in records if getattr(r, name) is not None]
        drawing = intervals(marks, title=title, description=f"{title} of each method, in per cent")
        yield heading(3, f"{title}, %")
        yield figure(
            drawing,
            f"Whiskers: 95 % Wilson intervals over {rows[0][1].n} runs. {_CONTEST if records else ''}",
        )
    yield folded("The same as a table", _accuracy_table(rows, records))


def _headline(where: Localization, result: Evaluation) -> str:
    low, high = where.wilson95["step"]
    pairs_ = [
        ("step", cent(where.step.mean), f"95 %: {cent(low)} to {cent(high)}"),
        ("agent", cent(where.agent.mean), f"n = {where.n_agent}"),
        ("within 1 / 3 / 5", " / ".join(cent(where.within[k], 0) for k in ("1", "3", "5")), "steps off"),
        ("top 3 / 5", " / ".join(cent(where.top[k], 0) for k in ("3", "5")), "gold among the first"),
        ("published scorer", cent(where.published), "gold occurs as text in the prediction"),
    ]
    return paragraph(f"{result.method}: {_SETTINGS[result.setting]}", "soft") + facts(pairs_)


def _accuracy_table(
    rows: Sequence[tuple[Evaluation, Localization, bool]], records: Sequence[Published]
) -> str:
    lines: list[list[str]] = []
    for result, where, _ in rows:
        low, high = where.wilson95["step"]
        lines.append(
            [
                result.method,
                _SETTINGS[result.setting],
                f"{cent(where.agent.mean)} ± {cent(where.agent.sd)}",
                f"{cent(where.step.mean)} ± {cent(where.step.sd)}",
                f"{cent(low)}–{cent(high)}",
                cent(where.published),
                *(cent(where.within[k]) for k in ("1", "3", "5")),
                *(cent(where.top[k]) for k in ("3", "5")),
            ]
        )
    for record in records:
        setting = f"published, {record.training.replace('_', '-')}; {record.source}"
        lines.append([_name(record), setting, cent(record.agent), cent(record.step)])
    return table("accuracy of each method", _HEAD, lines)


def _where(result: Evaluation, part: str | None) -> Localization | None:
    return result.subsets[part][0] if part is not None else result.localization


def _value(where: Localization, name: str) -> float:
    return where.step.mean if name == "step" else where.agent.mean


def _row(result: Evaluation, where: Localization, name: str, mine: bool) -> Row:
    low, high = where.wilson95[name]
    return Row(
        label=result.method,
        value=_value(where, name),
        low=low,
        high=high,
        kind="method" if mine else "baseline",
    )


def _record(record: Published, name: str) -> Row:
    value = record.step if name == "step" else record.agent
    note = f"{record.training.replace('_', '-')}; {record.source}"
    return Row(label=_name(record), value=value or 0.0, kind=record.training, note=note)


def _name(record: Published) -> str:
    return f"{record.method} ({record.model})" if record.model else record.method


def _only_part(result: Evaluation) -> str:
    parts = {case.part for case in result.cases}
    return parts.pop() if len(parts) == 1 else ""
