"""Run summaries for lists: one row per run, which the writer updates along with the run's rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from agentguard.errors import StoreError
from agentguard.store.db.rows import Row
from agentguard.verdict import NOT_DIAGNOSED, Verdict

TAGS_KEY: Final = "tags"
"""Key of ``Trajectory.extra`` for the tags of a run, a list of strings."""
MAX_LABEL_CHARS: Final = 64
MAX_LABELS: Final = 12
MAX_STEP_LABELS: Final = 64
MAX_STEP_LABELS_LENGTH: Final = 1_024


class VerdictFilter(StrEnum):
    """Filter of runs by the verdict of their diagnosis, or by the absence of one."""

    FAILED = Verdict.FAILED.value
    UNDECIDED = Verdict.UNDECIDED.value
    NO_FAILURE_FOUND = Verdict.NO_FAILURE_FOUND.value
    NOT_DIAGNOSED = NOT_DIAGNOSED


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummaryRow(Row):
    """Summary of a run. Only the store writes these rows. ``created_at`` is that of the run.

    Attributes:
        run_id, task, format: as in `RunRow`; the task is cut to 256 characters.
        failed: whether the run failed according to its annotation, if it has one.
        began_at: time of the first step, else the time of storage; epoch seconds.
        started_at, ended_at, duration_s: times of the steps, if they have any.
        steps: number of steps on the current branch.
        tokens, cost_usd: totals over all branches, including abandoned ones; None if no step records them.
        models, tags: distinct values, joined by `join_labels`.
        agents, tools: distinct agents of the steps and tools that they call, joined by `join_labels`; at most
            `MAX_STEP_LABELS` each.
        verdict, probability, method, step, agent, module, code: of the latest diagnosis; empty without one.
        step_probability: probability that the step is the root cause, if the run failed.
        diagnosed_at: time of that diagnosis.
        guard_s: duration of that diagnosis in seconds.
        findings, recoveries: numbers of findings and recoveries.
        recovered: outcome of the recoveries.
        judged: feedback of people on the diagnosis and its hypotheses.
        known: whether the store has the run's own row, and not only rows that refer to it.
        stale: whether the summary is incomplete since a migration.
        indexed: whether the search index has the words of the current steps.
        updated_at: time of the last change of the summary.
    """

    run_id: str
    task: str = ""
    format: str = ""
    failed: bool | None = None
    began_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    duration_s: float | None = None
    steps: int = 0
    tokens: int | None = None
    cost_usd: float | None = None
    models: str = ""
    tags: str = ""
    agents: str = ""
    tools: str = ""
    verdict: str = ""
    probability: float | None = None
    method: str = ""
    step: int | None = None
    step_probability: float | None = None
    agent: str = ""
    module: str = ""
    code: str = ""
    diagnosed_at: float | None = None
    guard_s: float | None = None
    findings: int = 0
    recoveries: int = 0
    recovered: str = ""
    judged: str = ""
    known: bool = False
    stale: bool = False
    indexed: bool = False
    updated_at: float = 0.0

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """Models, tags, agents and tools, each as a list."""
        names = ("models", "tags", "agents", "tools")
        return {name: split_labels(getattr(self, name)) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummaryFilter:
    """Filter of runs; a run must match all given conditions.

    Attributes:
        verdicts: any of these.
        code: prefix of the first hypothesis's code.
        step, agent: of the first hypothesis.
        step_agent: agent of a step.
        tool: tool that a step calls.
        recovered: any of ``"yes"``, ``"no"``, ``"pending"``, ``""`` (no recovery).
        model, tag: a model or tag of the run.
        min_cost, max_cost: US dollars.
        min_tokens, max_tokens: total over all branches.
        since, until: began at or after, began before; epoch seconds.
        text: substring of the id or of the first 256 characters of the task, ignoring ASCII case.
        failed: outcome in the annotation; excludes runs without one.
        judged: True: with feedback of a person; False: without.
    """

    verdicts: frozenset[VerdictFilter] = frozenset()
    code: str | None = None
    step: int | None = None
    agent: str | None = None
    step_agent: str | None = None
    tool: str | None = None
    recovered: frozenset[str] = frozenset()
    model: str | None = None
    tag: str | None = None
    min_cost: float | None = None
    max_cost: float | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    since: float | None = None
    until: float | None = None
    text: str | None = None
    failed: bool | None = None
    judged: bool | None = None


SORT_COLUMNS: Final[Mapping[str, str]] = {
    "time": "began_at",
    "task": "task",
    "verdict": "verdict",
    "probability": "probability",
    "step": "step",
    "agent": "agent",
    "code": "code",
    "recovered": "recovered",
    "findings": "findings",
    "model": "models",
    "tags": "tags",
    "steps": "steps",
    "tokens": "tokens",
    "cost": "cost_usd",
    "duration": "duration_s",
    "guard": "guard_s",
    "judged": "judged",
    "updated": "updated_at",
}
"""Sort keys of lists, and their columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSort:
    """Sort order of runs; ties are sorted by id, and runs without a value come last.

    Raises:
        StoreError: the sort key is unknown.
    """

    by: str = "time"
    descending: bool = True

    def __post_init__(self) -> None:
        if self.by not in SORT_COLUMNS:
            raise StoreError(
                f"runs cannot be sorted by {self.by!r}, expected one of {', '.join(SORT_COLUMNS)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacets:
    """Numbers of runs by filter value, most frequent first, at most fifty values per column."""

    verdicts: Mapping[str, int] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    agents: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[str, int] = field(default_factory=dict)
    tags: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SummaryChange:
    """Change of the summary of a run."""

    run_id: str
    updated_at: float
    created_at: float


def normalize_label(text: str) -> str:
    """Return a tag or a model name as stored: one line of limited length."""
    return " ".join(text.split())[:MAX_LABEL_CHARS]


def join_labels(values: Iterable[str], *, max_length: int = 256, max_labels: int = MAX_LABELS) -> str:
    """Join labels with a newline around each, so that queries match whole labels.

    Duplicates are left out, and so are labels beyond the limits.
    """
    labels: dict[str, None] = {}
    length = 1
    for label in map(normalize_label, values):
        if (
            label
            and label not in labels
            and len(labels) < max_labels
            and length + len(label) + 1 <= max_length
        ):
            labels[label] = None
            length += len(label) + 1
    return "\n" + "".join(f"{label}\n" for label in labels) if labels else ""


def split_labels(text: str) -> tuple[str, ...]:
    """Return the labels of a text from `join_labels`."""
    return tuple(one for one in text.split("\n") if one)
