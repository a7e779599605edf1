"""A run at a glance, for lists: one row a run, kept up by the writer as the run's own rows are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from agentguard.errors import StoreError
from agentguard.store.db.rows import Row

TAGS_KEY: Final = "tags"
"""Key of ``Trajectory.extra`` for the tags of a run: a list of texts."""
MAX_LABEL_CHARS: Final = 64
MAX_LABELS: Final = 12

RecoveredState = Literal["", "pending", "yes", "no"]
FeedbackState = Literal["", "right", "wrong", "mixed"]


class VerdictFilter(StrEnum):
    """What runs may be asked for by: a diagnosis's verdict, or that there is none yet."""

    FAILURE = "failure"
    NO_FAILURE = "no_failure"
    ABSTAINED = "abstained"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummaryRow(Row):
    """A run at a glance. The store makes these itself; nobody writes one. ``created_at`` is the run's.

    Attributes:
        run_id, task, format: as in `RunRow`; the task's first 256 characters.
        failed: whether the run failed, where its data set says so.
        began_at: when its first step began, else when it was stored; epoch seconds.
        started_at, ended_at, duration_s: of its steps, where they have times.
        steps: on the live line.
        tokens, cost_usd: of all lines, those that were left too; None where no step says.
        models, tags: distinct, as `join_labels` joins them.
        verdict, probability, method, step, agent, module, code: of the latest diagnosis; empty without one.
        diagnosed_at: when that was made.
        guard_s: seconds that diagnosis took.
        findings, recoveries: how many there are.
        recovered: whether recovery brought the run back.
        judged: what people said of its diagnosis and hypotheses.
        known: the run itself was written, not only what belongs to it.
        stale: made by a migration, and not yet looked at in full.
        updated_at: when any of this changed.
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
    verdict: str = ""
    probability: float | None = None
    method: str = ""
    step: int | None = None
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
    updated_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummaryFilter:
    """Which runs: all that is given must hold.

    Attributes:
        verdicts: any of these.
        code: the beginning of the first hypothesis's code.
        step, agent: of the first hypothesis.
        recovered: any of ``"yes"``, ``"no"``, ``"pending"``, ``""`` (nothing was tried).
        model, tag: one of the run's.
        min_cost, max_cost: US dollars.
        min_tokens, max_tokens: of all lines.
        since, until: began at or after, began before; epoch seconds.
        text: what the first 256 characters of the task, or the id, hold; any case of ASCII letters.
        failed: what the data set says; only runs of which it does.
        judged: True: judged by a person; False: not yet.
    """

    verdicts: frozenset[VerdictFilter] = frozenset()
    code: str | None = None
    step: int | None = None
    agent: str | None = None
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
"""What a list may be sorted by, and the column it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSort:
    """An order of runs; equal ones by id, and those without a value last.

    Raises:
        StoreError: there is no such column to sort by.
    """

    by: str = "time"
    descending: bool = True

    def __post_init__(self) -> None:
        if self.by not in SORT_COLUMNS:
            raise StoreError(f"runs are not sorted by {self.by!r}: by one of {', '.join(SORT_COLUMNS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacets:
    """What there is to filter by: value to number of runs, the most frequent first, fifty at most each."""

    verdicts: Mapping[str, int] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    agents: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[str, int] = field(default_factory=dict)
    tags: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SummaryChange:
    """A run whose overview changed."""

    run_id: str
    updated_at: float
    created_at: float


def normalize_label(text: str) -> str:
    """A tag or a model as it is kept: one line, short."""
    return " ".join(text.split())[:MAX_LABEL_CHARS]


def join_labels(values: Iterable[str], *, max_length: int = 256) -> str:
    """Labels with a line break around each, so that one is found by its whole name; no more than fit."""
    held: dict[str, None] = {}
    length = 1
    for one in map(normalize_label, values):
        if one and one not in held and len(held) < MAX_LABELS and length + len(one) + 1 <= max_length:
            held[one] = None
            length += len(one) + 1
    return "\n" + "".join(f"{one}\n" for one in held) if held else ""


def split_labels(text: str) -> tuple[str, ...]:
    """What `join_labels` joined."""
    return tuple(one for one in text.split("\n") if one)
