"""Comparison of diagnosed runs with the other runs of the same agent, without labels.

A diagnosis by rules for a single run gets a new verdict if there are enough runs of its agent. A run that the
rules call failed stays failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from agentguard.detect.base import Finding
from agentguard.localize.base import Diagnosis, Localizer, OutcomeBasis
from agentguard.localize.embedded import RULES_NOTE, UNDECIDED_NOTE, EmbeddedLocalizer
from agentguard.trajectory.grouping import AgentTraits, describe_agent, group_by_traits
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentguard.judge.embedded.relative_outcome import RelativeOutcomeModel

MAX_COMPARED_RUNS: Final = 1_000
"""Maximum of runs in memory for a comparison; further runs form the next comparison."""

DiagnosedRun = tuple[Trajectory, Diagnosis]


@dataclass(frozen=True, slots=True)
class RunComparator:
    """Comparator of the runs of an agent.

    Attributes:
        model: model that predicts outcomes from the ranks of signals.
        risk: share of passed runs that may be classified as failed.
    """

    model: RelativeOutcomeModel
    risk: float

    @classmethod
    def from_localizer(cls, localizer: Localizer) -> RunComparator | None:
        """Return the comparator of the embedded judge; None for a localizer that compares no runs."""
        if not isinstance(localizer, EmbeddedLocalizer) or localizer.model.relative is None:
            return None
        return cls(localizer.model.relative, localizer.risk)

    def compare(self, diagnoses: Sequence[Diagnosis], signals: NDArray[np.float64]) -> list[Diagnosis]:
        """Return the diagnoses of the runs of one agent, with the verdicts of the comparison.

        Args:
            diagnoses: one diagnosis per run. Of the hypotheses, only their presence is used.
            signals: signals of each run, shape ``(runs, signals)``; see `compute_signals`.
        """
        from agentguard.judge.embedded.relative_outcome import describe_unusual_signals, score_batch

        scores = score_batch(signals)
        probabilities = self.model.predict_probability(scores)
        low, high = self.model.compute_thresholds(self.risk)
        reasons = describe_unusual_signals(signals)
        revised = []
        for number, diagnosis in enumerate(diagnoses):
            if not _is_revisable(diagnosis):
                revised.append(diagnosis)
                continue
            score = float(scores[number])
            verdict = Verdict.from_score(score, low=low, high=high)
            if not diagnosis.hypotheses and verdict is not Verdict.NO_FAILURE_FOUND:
                revised.append(diagnosis)  # the environment reported success
                continue
            probability = float(probabilities[number])
            revised.append(_revise(diagnosis, verdict, probability, reasons[number], len(diagnoses)))
        return revised


def compare_runs(
    runs: Iterable[DiagnosedRun], localizer: Localizer, *, references: Sequence[DiagnosedRun] = ()
) -> Iterator[DiagnosedRun]:
    """Yield the runs in order, with verdicts from a comparison for agents with enough runs.

    Args:
        runs: runs with their diagnoses, findings included.
        localizer: localizer of the diagnoses. Only the embedded judge compares; with any other localizer, the
            function yields the runs unchanged.
        references: further runs for each comparison, such as earlier runs; they are not yielded.
    """
    comparator = RunComparator.from_localizer(localizer)
    if comparator is None:
        yield from runs
        return
    source = iter(runs)
    while batch := list(islice(source, MAX_COMPARED_RUNS)):
        yield from _compare_batch([*batch, *references], comparator)[: len(batch)]


def can_compare(localizer: Localizer) -> bool:
    """Return whether the diagnoses of a localizer can be compared."""
    return RunComparator.from_localizer(localizer) is not None


def is_comparable(run: Trajectory, diagnosis: Diagnosis) -> bool:
    """Return True if a run has steps and the localizer did not fail on it."""
    return bool(run.steps) and all(failure.detector != diagnosis.method for failure in diagnosis.failures)


def compute_signals(run: Trajectory, findings: Sequence[Finding]) -> NDArray[np.float64]:
    """Compute the signals of trouble of a comparable run, shape ``(signals,)``."""
    from agentguard.judge.embedded.features.run_signals import compute_run_signals
    from agentguard.judge.embedded.features.table import build_step_table

    return compute_run_signals(build_step_table(run).layout, findings)


def list_comparable_runs(agents: Sequence[AgentTraits | None]) -> list[list[int]]:
    """Return the indices of the runs of each agent with enough runs.

    Args:
        agents: agent of each run; None for a run that cannot be compared.
    """
    from agentguard.judge.embedded.relative_outcome import MIN_BATCH_RUNS

    members: dict[str, list[int]] = {}
    places = [place for place, agent in enumerate(agents) if agent is not None]
    if len(places) >= MIN_BATCH_RUNS:
        names = group_by_traits([agent for agent in agents if agent is not None])
        for place, name in zip(places, names, strict=True):
            members.setdefault(name, []).append(place)
    return [group for group in members.values() if len(group) >= MIN_BATCH_RUNS]


def _compare_batch(batch: Sequence[DiagnosedRun], comparator: RunComparator) -> list[DiagnosedRun]:
    import numpy as np

    compared = list(batch)
    agents = [describe_agent(run) if is_comparable(run, diagnosis) else None for run, diagnosis in batch]
    for places in list_comparable_runs(agents):
        members = [batch[place] for place in places]
        signals = np.vstack([compute_signals(run, diagnosis.findings) for run, diagnosis in members])
        revised = comparator.compare([diagnosis for _, diagnosis in members], signals)
        for place, (run, _), diagnosis in zip(places, members, revised, strict=True):
            compared[place] = (run, diagnosis)
    return compared


def _is_revisable(diagnosis: Diagnosis) -> bool:
    return (
        diagnosis.basis is OutcomeBasis.RULES
        and diagnosis.verdict is not Verdict.FAILED
        and not diagnosis.recalibrated
    )


def _revise(
    diagnosis: Diagnosis, verdict: Verdict, probability: float, reasons: Sequence[str], count: int
) -> Diagnosis:
    unusual = f"; unusual for this agent: {', '.join(reasons)}" if reasons else ""
    note = f"the verdict is based on a comparison with {count - 1} other runs of this agent{unusual}"
    other_notes = [one for one in diagnosis.notes if one not in (RULES_NOTE, UNDECIDED_NOTE)]
    if verdict is Verdict.UNDECIDED:
        other_notes.insert(0, UNDECIDED_NOTE)
    return replace(
        diagnosis,
        verdict=verdict,
        probability=probability,
        basis=OutcomeBasis.OTHER_RUNS,
        hypotheses=() if verdict is Verdict.NO_FAILURE_FOUND else diagnosis.hypotheses,
        notes=(note, *other_notes),
    )
