"""What the store keeps: one frozen row type a table.

A row is its indexed columns and ``data``, any JSON. The store lies below detectors, judges and localizers and
knows none of their types: who writes a finding, a diagnosis or a schema maps it to a row. What ``data`` holds
comes back as it was, except that tuples come back as lists; it must not be changed after the row was written.

Every row has ``tenant`` and ``created_at`` (epoch seconds), and rows without a name of their own have an
``id`` made here, so that writing a row twice stores it once.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

RowData = Mapping[str, Any]
EffectState = Literal["attempted", "done", "compensated"]

_ID_COUNTER = itertools.count(secrets.randbits(16))


def generate_id() -> str:
    """An id of 32 hexadecimal digits; ids made later by one process sort later."""
    return f"{time.time_ns() // 1_000_000:012x}{next(_ID_COUNTER) % 2**24:06x}{secrets.token_hex(7)}"


def compute_digest(*parts: str) -> str:
    """SHA-256 in hexadecimal of some texts; no two lists of texts share one by running together."""
    hashed = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        hashed.update(len(raw).to_bytes(8, "big"))
        hashed.update(raw)
    return hashed.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What all rows have."""

    tenant: str = ""
    created_at: float = field(default_factory=time.time)
    data: RowData = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow(Row):
    """A run without its steps; written again, it replaces what was there
    (`agentguard.store.trajectory_mapping`).

    Attributes:
        id: id of the trajectory.
        format: name of the importer that made it.
        task: what was asked.
        group: runs of one question share it.
        failed: whether the run failed, if known.
        length: steps of the live line.
        annotation: how a data set judged it; kept apart from ``data`` and read only when asked for.
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
    """A step. ``line`` is empty for the live line, else the id of the branch it belongs to."""

    run_id: str
    line: str = ""
    index: int
    source: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRow(Row):
    """A line of steps that was left.

    Attributes:
        run_id, id: the run and the branch.
        fork_step: index of its first step.
        parent: the branch it left; None for the live line.
        place: its place among branches made at the same time.
        takes: the live line's steps from ``fork_step`` on become the branch's, as when a run is rolled back.
    """

    run_id: str
    id: str
    fork_step: int
    parent: str | None = None
    place: int = 0
    takes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearRunRow(Row):
    """Forgets the steps, branches and snapshots of a run, so that those that follow replace them."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRow(Row):
    """A saved state of what a run acts on; written again for a step, it replaces what was there.

    Attributes:
        run_id: the run.
        step: steps on the live line when it was taken: the run goes on from it with this step.
        state: the bytes as their owner packed them; ``data`` tells how (`agentguard.recover.snapshots`).
    """

    run_id: str
    step: int
    state: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSnapshotsRow(Row):
    """Forgets the snapshots of some steps of a run: they were thinned out, or their line was left."""

    run_id: str
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow(Row):
    """What a detector saw; ``code`` is the most specific taxonomy code."""

    id: str = field(default_factory=generate_id)
    run_id: str
    detector: str
    step: int | None = None
    code: str = ""
    probability: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisRow(Row):
    """What a localizer said; step, agent, module and code are those of the likeliest hypothesis."""

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
    """An error schema; a lower ``version`` never replaces a higher one of the same id."""

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
class VerdictRow(Row):
    """An answer of a judge, found again by its ``key`` (`compute_verdict_key`).

    ``run_id`` is the run it was first asked about, if known: deleting that run deletes the answer.
    """

    key: str
    judge: str = ""
    judge_version: str = ""
    question: str = ""
    run_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRow(Row):
    """An attempt to take a run back; written again with the same id once its outcome is known.

    Attributes:
        strategy: what was done.
        step: the step the run was taken back to.
        outcome: ``"planned"`` (not judged yet), ``"recovered"`` (confirmed) or ``"failed"`` (refuted), as
            `agentguard.recover.persistence.OUTCOME_LABELS` maps them.
        schema_id: the schema whose correction was used, if any.
        updated_at: when the outcome was set; epoch seconds.
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
    """An effect that a tool has on the world.

    Claimed with `Store.claim`, and at most once for one ``key``, whichever process asks.

    Attributes:
        run_id: the run.
        line: the line of the run, if effects of its lines are to be told apart.
        tool: name of the tool.
        arguments: hash of the canonical arguments.
        logical_step: the step as the agent's plan counts it; a tool call's id changes with every turn.
        state: how far it got.
        settled_at: when it was done or compensated; epoch seconds.
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
        """What is claimed at most once within a tenant."""
        return compute_digest(self.run_id, self.line, self.tool, self.arguments, self.logical_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendEventRow(Row):
    """What happened to a model endpoint: ``kind`` is e.g. ``"ejected"``, ``"retry"``, ``"breaker_open"``."""

    id: str = field(default_factory=generate_id)
    backend: str
    kind: str
    run_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgementRow(Row):
    """What a person said of a diagnosis, finding, schema or verdict: right, or wrong.

    Attributes:
        run_id: the run it is about; empty for none.
        subject: what was judged, e.g. ``"diagnosis"``.
        subject_id: its id.
        right: the answer.
        by: who gave it.
    """

    id: str = field(default_factory=generate_id)
    run_id: str = ""
    subject: str
    subject_id: str
    right: bool
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow(Row):
    """What a guarded conversation needs to go on at another process or machine, under one of its keys.

    Attributes:
        key: by which the conversation's next request finds it.
        run_id: the run that it belongs to; its deletion takes this along.
        version: counts the requests of the conversation; an older one replaces no newer one.
        updated_at: when it was told, in epoch seconds.
    """

    key: str
    run_id: str = ""
    version: int = 0
    updated_at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthHintRow(Row):
    """Trouble with a backend, as one machine sees it; nothing is decided by it alone.

    Attributes:
        machine: who says so.
        backend: the replica's name.
        trouble: what it is; empty once it is over.
        seconds: how long it is held to last, from ``updated_at`` on.
        updated_at: when it was told, in epoch seconds of that machine.
        number: of this machine's hints, rising.
    """

    machine: str
    backend: str
    trouble: str = ""
    seconds: float = 0.0
    updated_at: float = field(default_factory=time.time)
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRow(Row):
    """What an acceptance test said of one attempt; ``data`` has input, output and each rule's verdict.

    Attributes:
        run_id: the run; deleting it deletes its attempts.
        attempt: counts the attempts of the run from 1.
        accepted: whether every rule let it pass.
    """

    id: str = field(default_factory=generate_id)
    run_id: str
    attempt: int = 1
    accepted: bool


def compute_verdict_key(content: str, question: str, judge: str, version: str) -> str:
    """The key of a judge's answer: equal for equal content, question, judge and version of the judge."""
    return compute_digest(content, question, judge, version)
