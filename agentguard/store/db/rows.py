"""Row types of the store: one frozen dataclass per table.

A row consists of its indexed columns and ``data``, which is any JSON. The store is a lower layer than
detectors, judges and localizers and does not import their types: they map their objects to rows. ``data`` is
stored without loss, except that tuples come back as lists. Do not change it after the row is written.

Every row has ``tenant`` and ``created_at`` (epoch seconds). Rows without a natural key generate an ``id``, so
that writing a row twice stores it once.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

RowData = Mapping[str, Any]
IssueState = Literal["open", "resolved", "ignored"]
EffectState = Literal["attempted", "ambiguous", "done", "reconciled", "compensated"]

_ID_COUNTER = itertools.count(secrets.randbits(16))


def generate_id() -> str:
    """Return an id of 32 hexadecimal digits; later ids of one process sort after earlier ones."""
    return f"{time.time_ns() // 1_000_000:012x}{next(_ID_COUNTER) % 2**24:06x}{secrets.token_hex(7)}"


def compute_digest(*parts: str) -> str:
    """Return the hexadecimal SHA-256 of texts; their lengths are hashed too, to keep the parts apart."""
    hashed = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        hashed.update(len(raw).to_bytes(8, "big"))
        hashed.update(raw)
    return hashed.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Base class of all rows."""

    tenant: str = ""
    created_at: float = field(default_factory=time.time)
    data: RowData = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow(Row):
    """Run without its steps; a second row of the same id replaces the first.

    Attributes:
        id: id of the trajectory.
        format: name of the importer that read it.
        task: the task of the agent.
        group: key of all runs of the same question.
        failed: whether the run failed, if known.
        length: number of steps of the current branch.
        annotation: annotation of the run; stored apart from ``data`` and read only on request.
    """

    id: str
    format: str = ""
    task: str = ""
    group: str = ""
    failed: bool | None = None
    length: int = 0
    annotation: RowData = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow(Row):
    """Step of a run. ``line`` is the id of its branch; empty for the current branch."""

    run_id: str
    line: str = ""
    index: int
    source: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRow(Row):
    """Abandoned branch of a run.

    Attributes:
        run_id, id: the run and the branch.
        fork_step: index of its first step.
        parent: branch from which it forked; None for the current branch.
        place: its position among branches created at the same time.
        takes: True to move the current branch's steps from ``fork_step`` on to this branch, as in a rollback.
    """

    run_id: str
    id: str
    fork_step: int
    parent: str | None = None
    place: int = 0
    takes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearRunRow(Row):
    """Command to delete the steps, branches and snapshots of a run before new ones replace them."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRow(Row):
    """Snapshot of the environment of a run; a second row for a step replaces the first.

    Attributes:
        run_id: the run.
        step: number of steps on the current branch at the snapshot: a restored run continues with this step.
        state: the bytes of the snapshot; ``data`` describes their encoding (`agentguard.recover.snapshots`).
    """

    run_id: str
    step: int
    state: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSnapshotsRow(Row):
    """Command to delete the snapshots of some steps, after thinning or a rollback."""

    run_id: str
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow(Row):
    """Finding of a detector; ``code`` is the most specific taxonomy code."""

    id: str = field(default_factory=generate_id)
    run_id: str
    detector: str
    step: int | None = None
    code: str = ""
    probability: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisRow(Row):
    """Diagnosis of a localizer; step, agent, module and code are those of the first hypothesis."""

    id: str = field(default_factory=generate_id)
    run_id: str
    method: str
    verdict: str
    probability: float | None = None
    step: int | None = None
    agent: str = ""
    module: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRow(Row):
    """Error schema; a lower ``version`` never replaces a higher one of the same id."""

    id: str
    status: str = "active"
    origin: str = "natural"
    method: str = ""
    code: str = ""
    module: str = ""
    version: int = 1
    support: int = 1
    updated_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueRow(Row):
    """Decisions of people on a recurring failure; its runs are counted from the run summaries.

    Attributes:
        id: `agentguard.store.issues.compute_issue_id` of the agent, the code and the module.
        agent, code, module: those of the root causes.
        title: title of the issue; empty for the default title.
        owner: the person responsible.
        state: the state that a person set.
        resolved_at: time of the resolution in epoch seconds; a later run opens the issue again.
    """

    id: str
    agent: str = ""
    code: str = ""
    module: str = ""
    title: str = ""
    owner: str = ""
    state: IssueState = "open"
    resolved_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedViewRow(Row):
    """Named filter and order of the viewer's list of runs.

    Attributes:
        name: name of the view.
        query: query string of the list, without ``?``.
    """

    name: str
    query: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow(Row):
    """Cached answer of a judge, found by its ``key`` (`compute_verdict_key`).

    ``run_id`` is the run of the first question, if known: deleting that run deletes the answer.
    """

    key: str
    judge: str = ""
    judge_version: str = ""
    question: str = ""
    run_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRow(Row):
    """Recovery of a run; a second row with the same id has its outcome.

    Attributes:
        strategy: the strategy that proposed the plan.
        step: the step to which the run was rolled back.
        outcome: ``"planned"`` (not verified yet), ``"recovered"`` (confirmed), ``"failed"`` (refuted) or
            ``"unknown"`` (no evidence), as `agentguard.recover.recovery_rows.OUTCOME_LABELS` maps them.
        schema_id: the schema whose correction was used; empty without one.
        updated_at: time of the outcome in epoch seconds.
    """

    id: str = field(default_factory=generate_id)
    run_id: str
    strategy: str
    step: int | None = None
    outcome: str = "planned"
    schema_id: str = ""
    updated_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRow(Row):
    """Side effect of a tool call.

    `Store.claim` claims a ``key`` at most once, across all processes that use the database.

    Attributes:
        run_id: the run.
        line: name that distinguishes the effects of runs with the same id; empty by default.
        tool: name of the tool.
        arguments: hash of the canonical arguments.
        logical_step: number of equal calls before it; the id of a tool call differs in every turn.
        state: progress of the effect.
        settled_at: time of the last change of the state after the claim; epoch seconds.
    """

    run_id: str
    line: str = ""
    tool: str
    arguments: str
    logical_step: str = ""
    state: EffectState = "attempted"
    settled_at: float | None = None

    @property
    def key(self) -> str:
        """Return the key, which can be claimed at most once within a tenant."""
        return compute_digest(self.run_id, self.line, self.tool, self.arguments, self.logical_step)


JUDGED_OUTCOMES: Final = ("failed", "passed")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgementRow(Row):
    """Feedback of a person on a diagnosis, finding, schema or verdict: right or wrong.

    Its data may contain a corrected ``step`` and ``code``, a ``note``, and the ``outcome`` of the run.

    Attributes:
        run_id: the run; empty for feedback without a run.
        subject: kind of the judged object, e.g. ``"diagnosis"``.
        subject_id: its id.
        right: True if the person considers the object right.
        by: name of the person.
    """

    id: str = field(default_factory=generate_id)
    run_id: str = ""
    subject: str
    subject_id: str
    right: bool
    by: str = ""

    @property
    def outcome(self) -> str:
        """Outcome that the person names: ``failed``, ``passed`` or an empty text."""
        outcome = self.data.get("outcome")
        return outcome if outcome in JUDGED_OUTCOMES else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow(Row):
    """State of a session, under one of its keys, with which another process or machine can continue it.

    Attributes:
        key: key by which the next request of the session finds it.
        run_id: the run of the session; deleting the run deletes this row.
        version: number of requests so far; an older version never replaces a newer one.
        updated_at: time of the write in epoch seconds.
    """

    key: str
    run_id: str = ""
    version: int = 0
    updated_at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthHintRow(Row):
    """Advisory health report of one machine about a backend.

    Attributes:
        machine: the machine that reports.
        backend: name of the replica.
        trouble: kind of trouble; empty after its end.
        seconds: expected duration from ``updated_at`` on.
        updated_at: time of the hint in epoch seconds of that machine.
        number: sequence number of this machine's hints.
    """

    machine: str
    backend: str
    trouble: str = ""
    seconds: float = 0.0
    updated_at: float = field(default_factory=time.time)
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRow(Row):
    """Result of an acceptance test; ``data`` has input, output and each rule's verdict.

    Attributes:
        run_id: the run; deleting it deletes this row.
        attempt: number of the attempt within the run, from 1.
        accepted: whether the output passed every rule.
    """

    id: str = field(default_factory=generate_id)
    run_id: str
    attempt: int = 1
    accepted: bool


def compute_verdict_key(content: str, question: str, judge: str, version: str) -> str:
    """Return the cache key of an answer: equal for equal content, question, judge and judge version."""
    return compute_digest(content, question, judge, version)
