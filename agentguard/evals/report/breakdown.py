"""Breakdown of accuracy by position of the root cause, by length of the run, and by run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentguard.evals.prediction import Prediction
from agentguard.evals.result import Evaluation
from agentguard.evals.scoring import Case, is_step_correct
from agentguard.evals.statistics import mean, wilson_interval
from agentguard.html_report.plots import ScoreBar

_EDGES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
_MIN_RUNS = 5  # runs in a bar; smaller bars are merged with the next


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakdownRow:
    """One run over all repeats.

    Attributes:
        case: annotation of the run.
        step: the step that was ranked first most often; None if the method never named one.
        agent: the agent named with it.
        right: share of the repeats in which the step was right; None if no step is annotated.
        confidence: mean probability of the first hypothesis.
        verdict: the most frequent verdict.
        probability: mean probability that the run failed; None if the method always failed on it.
    """

    case: Case
    step: int | None
    agent: str | None
    right: float | None
    confidence: float
    verdict: str
    probability: float | None


def pair_predictions(result: Evaluation, part: str | None = None) -> list[tuple[Case, Prediction]]:
    """Return each prediction with its case, for the runs whose root cause is annotated."""
    cases = {c.run: c for c in result.cases if c.step is not None and part in (None, c.part)}
    return [(cases[p.run], p) for p in result.predictions if p.run in cases]


def measure_by_position(result: Evaluation, part: str | None = None) -> tuple[ScoreBar, ...]:
    """Return the step accuracy by the index of the annotated step."""
    return _build_bars(
        [(case.step or 0, is_step_correct(case, p)) for case, p in pair_predictions(result, part)],
        result.repeats,
    )


def measure_by_length(result: Evaluation, part: str | None = None) -> tuple[ScoreBar, ...]:
    """Return the step accuracy by the number of steps of the run."""
    return _build_bars(
        [(case.length, is_step_correct(case, p)) for case, p in pair_predictions(result, part)],
        result.repeats,
    )


def summarize_runs(result: Evaluation) -> tuple[BreakdownRow, ...]:
    """Return one row per run, in the order of the data set."""
    predictions_by_run: dict[str, list[Prediction]] = {}
    for prediction in result.predictions:
        predictions_by_run.setdefault(prediction.run, []).append(prediction)
    return tuple(_build_row(case, predictions_by_run.get(case.run, [])) for case in result.cases)


def _build_row(case: Case, predictions: Sequence[Prediction]) -> BreakdownRow:
    top_answers = [(p.steps[0], p.agents[0]) for p in predictions if p.steps]
    commonest_answer = max(sorted(set(top_answers)), key=top_answers.count) if top_answers else (None, None)
    verdicts = [p.verdict for p in predictions]
    probabilities = [p.probability for p in predictions if p.probability is not None]
    return BreakdownRow(
        case=case,
        step=commonest_answer[0],
        agent=commonest_answer[1],
        right=mean(is_step_correct(case, p) for p in predictions)
        if case.step is not None and predictions
        else None,
        confidence=mean(p.confidence for p in predictions) if predictions else 0.0,
        verdict=max(sorted(set(verdicts)), key=verdicts.count) if verdicts else "error",
        probability=mean(probabilities) if probabilities else None,
    )


def _build_bars(values: Sequence[tuple[int, bool]], repeats: int) -> tuple[ScoreBar, ...]:
    """Return bins with roughly exponential edges; a bin with too few runs is merged with the next."""
    bars: list[ScoreBar] = []
    members: list[bool] = []
    start = _EDGES[0]
    for index, edge in enumerate(_EDGES):
        next_edge = _EDGES[index + 1] if index + 1 < len(_EDGES) else None
        members += [ok for value, ok in values if value >= edge and (next_edge is None or value < next_edge)]
        if not members:
            start = next_edge if next_edge is not None else start
        elif next_edge is None or len(members) >= _MIN_RUNS * max(1, repeats):
            bars.append(_build_bar(start, next_edge, members, repeats))
            members, start = [], next_edge if next_edge is not None else start
    return tuple(bars)


def _build_bar(start: int, after: int | None, correct: Sequence[bool], repeats: int) -> ScoreBar:
    n = round(len(correct) / max(1, repeats))
    share = mean(correct)
    low, high = wilson_interval(share, n)
    label = f"{start}+" if after is None else str(start) if after == start + 1 else f"{start}–{after - 1}"
    return ScoreBar(label=label, value=share, low=low, high=high, n=n)
