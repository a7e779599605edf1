"""Comparison of diagnosed runs with the other runs of the same agent, without labels.

A diagnosis that rests on rules for a single run gets a new verdict if there are enough runs of its agent.
A failure by the rules remains one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from agentguard.localize.base import Diagnosis, Localizer, OutcomeBasis, Verdict
from agentguard.localize.embedded import RULES_NOTE, UNDECIDED_NOTE, EmbeddedLocalizer
from agentguard.trajectory.agent_identity import group_by_agent
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.judge.embedded.relative_outcome import RelativeOutcomeModel

MAX_COMPARED_RUNS: Final = 1_000
"""Maximum of runs that are held in memory for a comparison; further runs form the next comparison."""

DiagnosedRun = tuple[Trajectory, Diagnosis]


def compare_runs(runs: Iterable[DiagnosedRun], localizer: Localizer) -> Iterator[DiagnosedRun]:
    """Yield the runs in their order, with verdicts from a comparison if enough runs of an agent are there.

    Args:
        runs: runs with their diagnoses, findings included.
        localizer: localizer of the diagnoses. Only the embedded judge compares; of any other localizer, the
            runs are yielded unchanged.
    """
    model = localizer.model.relative if isinstance(localizer, EmbeddedLocalizer) else None
    if model is None or not isinstance(localizer, EmbeddedLocalizer):
        yield from runs
        return
    source = iter(runs)
    while batch := list(islice(source, MAX_COMPARED_RUNS)):
        yield from _compare_batch(batch, model, localizer.risk)


def _compare_batch(
    batch: Sequence[DiagnosedRun], model: RelativeOutcomeModel, risk: float
) -> list[DiagnosedRun]:
    from agentguard.judge.embedded.relative_outcome import MIN_BATCH_RUNS

    compared = list(batch)
    members: dict[str, list[int]] = {}
    if len(batch) >= MIN_BATCH_RUNS:
        for place, agent in enumerate(group_by_agent([trajectory for trajectory, _ in batch])):
            if batch[place][0].steps:
                members.setdefault(agent, []).append(place)
    for places in members.values():
        if len(places) < MIN_BATCH_RUNS:
            continue
        revised = _compare_agent([batch[place] for place in places], model, risk)
        for place, diagnosis in zip(places, revised, strict=True):
            compared[place] = (batch[place][0], diagnosis)
    return compared


def _compare_agent(runs: Sequence[DiagnosedRun], model: RelativeOutcomeModel, risk: float) -> list[Diagnosis]:
    import numpy as np

    from agentguard.judge.embedded.features.run_signals import compute_run_signals
    from agentguard.judge.embedded.features.table import build_step_table
    from agentguard.judge.embedded.relative_outcome import describe_unusual_signals, score_batch

    signals = np.vstack(
        [compute_run_signals(build_step_table(run).layout, diagnosis.findings) for run, diagnosis in runs]
    )
    scores = score_batch(signals)
    probabilities = model.predict_probability(scores)
    low, high = model.compute_thresholds(risk)
    revised = []
    for number, (_, diagnosis) in enumerate(runs):
        if not _is_revisable(diagnosis):
            revised.append(diagnosis)
            continue
        score = float(scores[number])
        verdict = (
            Verdict.FAILURE if score > high else Verdict.NO_FAILURE if score <= low else Verdict.ABSTAINED
        )
        if not diagnosis.hypotheses and verdict is not Verdict.NO_FAILURE:
            revised.append(diagnosis)  # the environment reported success
            continue
        reasons = describe_unusual_signals(signals, number)
        revised.append(_revise(diagnosis, verdict, float(probabilities[number]), reasons, len(runs)))
    return revised


def _is_revisable(diagnosis: Diagnosis) -> bool:
    return (
        diagnosis.basis is OutcomeBasis.RULES
        and diagnosis.verdict is not Verdict.FAILURE
        and not diagnosis.recalibrated
    )


def _revise(
    diagnosis: Diagnosis, verdict: Verdict, probability: float, reasons: Sequence[str], count: int
) -> Diagnosis:
    unusual = f"; unusual for this agent: {', '.join(reasons)}" if reasons else ""
    note = f"the outcome rests on a comparison with {count - 1} other runs of this agent{unusual}"
    kept = [one for one in diagnosis.notes if one not in (RULES_NOTE, UNDECIDED_NOTE)]
    if verdict is Verdict.ABSTAINED:
        kept.insert(0, UNDECIDED_NOTE)
    return replace(
        diagnosis,
        verdict=verdict,
        probability=probability,
        basis=OutcomeBasis.OTHER_RUNS,
        hypotheses=() if verdict is Verdict.NO_FAILURE else diagnosis.hypotheses,
        notes=(note, *kept),
    )
