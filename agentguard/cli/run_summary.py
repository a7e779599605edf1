"""Summary of a diagnosed run: one row of a table, one result of a report for CI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from agentguard.cli.terminal_text import to_one_line
from agentguard.errors import ConfigError
from agentguard.localize.base import Diagnosis, Hypothesis, OutcomeBasis
from agentguard.localize.step_support import StepSupport, rate_first_hypothesis
from agentguard.quantity import format_quantity
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import Verdict

_ORDER: Final = (Verdict.FAILED, Verdict.UNDECIDED, Verdict.NO_FAILURE_FOUND)
NO_CAUSE: Final = "no evidence"
"""Cause of a run whose most likely step has no code."""


class SortKey(StrEnum):
    """Order of the rows of many runs."""

    VERDICT = "verdict"
    PROBABILITY = "probability"
    STEPS = "steps"
    INPUT = "input"


class GroupKey(StrEnum):
    """Property that groups runs."""

    CAUSE = "cause"
    AGENT = "agent"
    VERDICT = "verdict"
    FORMAT = "format"


def format_step_label(step: int, agent: str, support: StepSupport = StepSupport.ROOT_CAUSE) -> str:
    """Return step and agent; ``likely`` or ``candidate`` precedes a step that is not a root cause."""
    return f"{support.prefix}step {step} · {to_one_line(agent, 24)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Diagnosis of one run in one row.

    Attributes:
        run_id: id of the run.
        file: file of the run; empty for a stream or a stored run.
        format: format of the run.
        steps: number of steps.
        verdict: failed, no failure found or undecided.
        probability: probability that the run failed.
        basis: evidence of the verdict.
        step: step of the first hypothesis; None if no failure was found or no step is named.
        agent: agent of that step.
        codes: codes of that step.
        reason: explanation in one sentence.
        correction: corrective message.
        support: support for the step.
        detectors: detectors whose findings explain the step, most decisive first.
        shares_file: True if the file has other runs, so that its name does not identify the run.
    """

    run_id: str
    file: str
    format: str
    steps: int
    verdict: Verdict
    probability: float
    basis: OutcomeBasis
    step: int | None = None
    agent: str = ""
    codes: tuple[str, ...] = ()
    reason: str = ""
    correction: str = ""
    support: StepSupport | None = None
    detectors: tuple[str, ...] = ()
    shares_file: bool = False

    @classmethod
    def from_diagnosis(cls, trajectory: Trajectory, diagnosis: Diagnosis, file: str | None) -> RunSummary:
        """Summarize a diagnosis."""
        found = diagnosis.verdict is not Verdict.NO_FAILURE_FOUND and diagnosis.hypotheses
        first: Hypothesis | None = diagnosis.hypotheses[0] if found else None
        return cls(
            run_id=trajectory.id,
            file=file or "",
            format=trajectory.format,
            steps=len(trajectory.steps),
            verdict=diagnosis.verdict,
            probability=diagnosis.probability,
            basis=diagnosis.basis,
            step=None if first is None else first.step,
            agent="" if first is None else first.agent,
            codes=() if first is None else first.codes,
            reason="" if first is None else first.reason,
            correction="" if first is None else first.correction,
            support=rate_first_hypothesis(diagnosis),
            detectors=() if first is None else first.detectors,
        )

    @property
    def name(self) -> str:
        """Name of the file, ``ID in FILE`` if the file has other runs, the id if there is no file."""
        if not self.file:
            return self.run_id
        return f"{self.own_id} in {self.file}" if self.shares_file else self.file

    @property
    def own_id(self) -> str:
        """Id of the run in its file: without the file that precedes it if runs of two files have the id."""
        file, _, rest = self.run_id.partition(":")
        return rest if rest and file in self.file else self.run_id

    @property
    def place(self) -> str:
        """Name and step: ``runs/a.json:7`` or ``ID in runs.jsonl, step 7``."""
        if self.step is None:
            return self.name
        return f"{self.name}, step {self.step}" if self.shares_file else f"{self.name}:{self.step}"

    @property
    def cause(self) -> str:
        """Title of the first code; empty if no step is named."""
        if self.step is None:
            return ""
        return TaxonomyCatalog.load().get_title(self.codes[0]) if self.codes else NO_CAUSE

    @property
    def step_label(self) -> str:
        """Step and agent after the support for the step."""
        if self.step is None or self.support is None:
            return ""
        return format_step_label(self.step, self.agent, self.support)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs with one property.

    Attributes:
        name: the common value.
        runs: number of runs.
        verdicts: number of runs by verdict.
        agents: agents of the root-cause steps, most frequent first.
        codes: first codes of these steps, most frequent first.
        detectors: first detectors of these steps, most frequent first.
        example: the run that is most probably failed.
    """

    name: str
    runs: int
    verdicts: Counter[Verdict]
    agents: tuple[str, ...]
    codes: tuple[str, ...]
    detectors: tuple[str, ...]
    example: RunSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSelection:
    """Choice and order of the runs that a report shows.

    Attributes:
        only: verdicts to show; empty for all.
        sort: order of the runs.
        limit: maximum number of rows; None for all.
        group_by: property to group by; None for one row per run.
    """

    only: tuple[Verdict, ...] = ()
    sort: SortKey = SortKey.VERDICT
    limit: int | None = None
    group_by: GroupKey | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError if the limit is not positive."""
        if self.limit is not None and self.limit < 1:
            raise ConfigError("--limit takes a positive number")

    def includes(self, verdict: Verdict) -> bool:
        """Return True if runs with the verdict are shown."""
        return not self.only or verdict in self.only

    def select_runs(self, runs: Iterable[RunSummary]) -> list[RunSummary]:
        """Return the runs of the chosen verdicts in order, without the limit."""
        chosen = [run for run in runs if self.includes(run.verdict)]
        if self.sort is SortKey.VERDICT:
            chosen.sort(key=lambda run: (_ORDER.index(run.verdict), -run.probability))
        elif self.sort is SortKey.PROBABILITY:
            chosen.sort(key=lambda run: -run.probability)
        elif self.sort is SortKey.STEPS:
            chosen.sort(key=lambda run: -run.steps)
        return chosen


def mark_shared_files(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the runs, marked if their file has several of them."""
    counts = Counter(run.file for run in runs)
    return [replace(run, shares_file=bool(run.file) and counts[run.file] > 1) for run in runs]


def group_runs(runs: Sequence[RunSummary], key: GroupKey) -> list[RunGroup]:
    """Return the groups of runs, largest first. Runs without a value form no group."""
    members: dict[str, list[RunSummary]] = {}
    for run in runs:
        if name := _get_group_name(run, key):
            members.setdefault(name, []).append(run)
    groups = [_build_group(name, group) for name, group in members.items()]
    return sorted(groups, key=lambda group: (-group.runs, group.name))


def find_top_causes(runs: Sequence[RunSummary]) -> list[RunGroup]:
    """Return the causes of the failed runs, most frequent first."""
    failed = [run for run in runs if run.verdict is Verdict.FAILED]
    return group_runs(failed, GroupKey.CAUSE)


def count_verdicts(runs: Iterable[RunSummary]) -> str:
    """Return the number of runs by verdict in words: ``15 runs: 3 failed, 12 undecided``."""
    counts = Counter(run.verdict for run in runs)
    total = sum(counts.values())
    parts = ", ".join(f"{counts[one]} {one.label}" for one in Verdict if counts[one])
    return f"{format_quantity(total, 'run')}{f': {parts}' if parts else ''}"


def _get_group_name(run: RunSummary, key: GroupKey) -> str:
    if key is GroupKey.CAUSE:
        return run.cause
    if key is GroupKey.AGENT:
        return run.agent
    return run.verdict.label if key is GroupKey.VERDICT else run.format


def _build_group(name: str, runs: Sequence[RunSummary]) -> RunGroup:
    return RunGroup(
        name=name,
        runs=len(runs),
        verdicts=Counter(run.verdict for run in runs),
        agents=_list_most_frequent(run.agent for run in runs),
        codes=_list_most_frequent(run.codes[0] for run in runs if run.codes),
        detectors=_list_most_frequent(run.detectors[0] for run in runs if run.detectors),
        example=max(runs, key=lambda run: run.probability),
    )


def _list_most_frequent(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(value for value, _ in Counter(value for value in values if value).most_common(3))
