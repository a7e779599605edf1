"""Error part of a report: confusion tables, calibration and risk."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from agentguard.evals import metrics
from agentguard.evals.prediction import Prediction
from agentguard.evals.report.breakdown import (
    measure_by_length,
    measure_by_position,
    pair_predictions,
)
from agentguard.evals.result import Evaluation
from agentguard.evals.scoring import Case, is_step_correct
from agentguard.html_report.page import (
    format_percent,
    render_figure,
    render_heading,
    render_paragraph,
    render_table,
)
from agentguard.html_report.plots import ScoreBar, render_bars, render_curve
from agentguard.quantity import format_quantity

_MAX_NAMES: Final = 10  # names in a table; rarer ones are merged
_OTHER_NAMES: Final = "others"
_NOTHING: Final = "none"

ConfusionCounts = Mapping[tuple[str, str], float]
_GoldReader = Callable[[Case], str | None]
_PredictionReader = Callable[[Prediction], str | None]


def render_confusion(result: Evaluation) -> Iterator[str]:
    """Yield a table each for outcomes, agents and modules that have two or more annotated values."""
    for title, gold, predicted in _KINDS:
        counts = count_confusions(result, gold, predicted)
        if len({true for true, _ in counts}) > 1:
            yield render_heading(3, title)
            yield render_paragraph("Rows are annotations, columns predictions; numbers are runs.", "soft")
            yield _render_table(title, counts)


def count_confusions(result: Evaluation, gold: _GoldReader, predicted: _PredictionReader) -> ConfusionCounts:
    """Return the number of runs per (annotated, predicted) pair, averaged over the repeats."""
    cases = {case.run: case for case in result.cases}
    counts: Counter[tuple[str, str]] = Counter()
    for prediction in result.predictions:
        true = gold(cases[prediction.run])
        if true is not None:
            counts[true, predicted(prediction) or _NOTHING] += 1
    return {pair: n / max(1, result.repeats) for pair, n in counts.items()}


def _read_outcome(case: Case) -> str | None:
    return None if case.failed is None else "failed" if case.failed else "passed"


_KINDS: Final[tuple[tuple[str, _GoldReader, _PredictionReader], ...]] = (
    ("Outcomes and verdicts", _read_outcome, lambda prediction: prediction.verdict),
    ("Agents", lambda case: case.agent, lambda one: one.agents[0] if one.agents else None),
    ("Modules", lambda case: case.module, lambda prediction: prediction.module),
)


def _render_table(title: str, counts: ConfusionCounts) -> str:
    rows, columns = _rank_names(counts, 0), _rank_names(counts, 1)
    merged_counts: defaultdict[tuple[str, str], float] = defaultdict(float)
    for (true, predicted), n in counts.items():
        merged_counts[
            true if true in rows else _OTHER_NAMES, predicted if predicted in columns else _OTHER_NAMES
        ] += n
    cells = [
        [
            true,
            *(
                (f"{merged_counts[true, predicted]:.3g}", _select_style(true, predicted))
                if merged_counts[true, predicted]
                else ""
                for predicted in columns
            ),
        ]
        for true in rows
    ]
    return render_table(title, ("annotated", *columns), cells)


def _select_style(true: str, predicted: str) -> str:
    return "n yes" if true == predicted else "n"


def _rank_names(counts: ConfusionCounts, side: int) -> list[str]:
    """Return the most frequent names of one side, with an entry for the others if there are more."""
    totals: defaultdict[str, float] = defaultdict(float)
    for pair, n in counts.items():
        totals[pair[side]] += n
    names = sorted(totals, key=lambda name: (-totals[name], name))
    return (
        names
        if len(names) <= _MAX_NAMES
        else [*(n for n in names[: _MAX_NAMES - 1] if n != _OTHER_NAMES), _OTHER_NAMES]
    )


def render_errors(result: Evaluation) -> Iterator[str]:
    """Yield plots of accuracy by position and length, of calibration, and of risk and coverage."""
    for name, values, axis in (
        (
            "Step accuracy by position of the root cause, %",
            measure_by_position(result),
            "annotated step, counted from 0",
        ),
        ("Step accuracy by length of the run, %", measure_by_length(result), "steps of the run"),
    ):
        yield render_heading(3, name)
        description = "; ".join(f"{b.label}: {format_percent(b.value)} of {b.n}" for b in values)
        yield render_figure(
            render_bars(values, title=name, description=description, x_name=axis), _format_caption(values)
        )
    pairs = pair_predictions(result)
    correct = [is_step_correct(case, prediction) for case, prediction in pairs]
    confidence = [prediction.confidence for _, prediction in pairs]
    yield '<div class="side">'
    yield render_calibration(correct, confidence, "Probability of the first hypothesis")
    yield _render_risk(correct, confidence)
    yield "</div>"


def render_calibration(labels: Sequence[bool], probabilities: Sequence[float], title: str) -> str:
    """Return a reliability curve of predicted probabilities against observed outcomes."""
    bins = metrics.reliability(labels, probabilities)
    gap = metrics.expected_calibration_error(labels, probabilities)
    drawing = render_curve(
        [(b.predicted, b.observed) for b in bins],
        title=f"{title}: calibration",
        description="; ".join(
            f"predicted {format_percent(b.predicted)}, observed {format_percent(b.observed)}, n = {b.n}"
            for b in bins
        ),
        names=("predicted, %", "observed, %"),
        sizes=[b.n for b in bins],
        diagonal=True,
    )
    scores = f"Expected calibration error {gap:.3f}, Brier score {metrics.brier(labels, probabilities):.3f}"
    line = "on the dashed line, predicted and observed shares are equal"
    return render_figure(drawing, f"{title}: calibration. {scores}; {line}.")


def _render_risk(correct: Sequence[bool], confidence: Sequence[float]) -> str:
    points = metrics.risk_coverage(correct, confidence)
    area = metrics.aurc(correct, confidence)
    drawing = render_curve(
        [(p.coverage, p.risk) for p in points],
        title="Risk and coverage",
        description=f"Share of wrong answers if only the most confident are given; area {area:.3f}",
        names=("answered, most confident first, %", "wrong among them, %"),
    )
    return render_figure(
        drawing, f"Risk and coverage: effect of undecided runs. Area under the curve {area:.3f}."
    )


def _format_caption(values: Sequence[ScoreBar]) -> str:
    return f"Whiskers: 95 % Wilson intervals. {format_quantity(sum(b.n for b in values), 'run')} in total."
