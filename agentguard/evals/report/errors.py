"""The second part of a report: where a method errs, and what its confidence is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentguard.evals import metrics
from agentguard.evals.report.breakdown import by_length, by_position, pairs, right
from agentguard.evals.report.page import cent, figure, heading
from agentguard.evals.report.svg import Bar, bars, curve
from agentguard.evals.result import Evaluation


def errors(result: Evaluation) -> Iterator[str]:
    """Yield plots of accuracy by place and length, of calibration, and of risk and coverage."""
    for name, values, axis in (
        (
            "Step accuracy by place of the root cause, %",
            by_position(result),
            "annotated step, counted from 0",
        ),
        ("Step accuracy by length of the run, %", by_length(result), "steps of the run"),
    ):
        yield heading(3, name)
        description = "; ".join(f"{b.label}: {cent(b.value)} of {b.n}" for b in values)
        yield figure(bars(values, title=name, description=description, x_name=axis), _thin(values))
    held = pairs(result)
    correct = [right(case, prediction) for case, prediction in held]
    confidence = [prediction.confidence for _, prediction in held]
    yield '<div class="side">'
    yield calibration(correct, confidence, "Probability of the first hypothesis")
    yield _risk(correct, confidence)
    yield "</div>"


def calibration(labels: Sequence[bool], said: Sequence[float], title: str) -> str:
    """A reliability curve of probabilities against what was so."""
    bins = metrics.reliability(labels, said)
    gap = metrics.expected_calibration_error(labels, said)
    drawing = curve(
        [(b.predicted, b.observed) for b in bins],
        title=f"{title}: calibration",
        description="; ".join(f"said {cent(b.predicted)}, was {cent(b.observed)}, n = {b.n}" for b in bins),
        names=("said, %", "was so, %"),
        sizes=[b.n for b in bins],
        diagonal=True,
    )
    return figure(drawing, f"{title}: calibration. Expected calibration error {gap:.3f}, Brier score "
                  f"{metrics.brier(labels, said):.3f}; on the dashed line what is said is so.")  # fmt: skip


def _risk(correct: Sequence[bool], confidence: Sequence[float]) -> str:
    points = metrics.risk_coverage(correct, confidence)
    area = metrics.aurc(correct, confidence)
    drawing = curve(
        [(p.coverage, p.risk) for p in points],
        title="Risk and coverage",
        description=f"Share of wrong answers when only the surest are given; area {area:.3f}",
        names=("answered, surest first, %", "wrong among them, %"),
    )
    return figure(drawing, f"Risk and coverage: what abstaining buys. Area under the curve {area:.3f}.")


def _thin(values: Sequence[Bar]) -> str:
    return f"Whiskers: 95 % Wilson intervals. {sum(b.n for b in values)} runs in all."
