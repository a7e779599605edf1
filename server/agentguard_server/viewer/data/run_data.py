"""Run with all its data from the store; data that cannot be decoded is reported as a problem.

Damaged data does not prevent the page of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson

from agentguard.detect.base import Finding
from agentguard.detect.serialization import decode_finding
from agentguard.errors import AgentGuardError, FormatError, StoreUnavailable
from agentguard.localize.base import Diagnosis
from agentguard.localize.serialization import decode_diagnosis
from agentguard.store.db.rows import BranchRow, EffectRow, JudgementRow, Row, RunRow, StepRow
from agentguard.store.store import Store
from agentguard.store.trajectory_mapping import build_trajectory
from agentguard.trajectory.completeness import describe_gaps
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Branch, Source, Step, Trajectory
from agentguard.trajectory.serialization import decode_meta, decode_step
from agentguard_server.viewer.data.stored_recovery import StoredRecovery, read_recovery

R = TypeVar("R", bound=Row)
V = TypeVar("V")

DAMAGED_ROW_KEY = "damaged_row"
"""Key in ``Step.extra`` of the error of a step that cannot be decoded; its content is the raw row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDiagnosis:
    """Diagnosis with the id of its row, to which labels refer, and the time of the row in epoch seconds."""

    id: str
    created_at: float
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """Run with its diagnoses, findings, recoveries, effects and labels.

    Attributes:
        run: the trajectory.
        diagnoses: all diagnoses, latest last.
        findings: findings of the latest diagnosis; without a diagnosis, the stored findings.
        finding_ids: ids of the stored findings by detector and step.
        recoveries: recoveries in order of time.
        effects: rows of the effect ledger.
        judgements: labels of reviewers.
        problems: messages for data that cannot be decoded.
    """

    run: Trajectory
    diagnoses: tuple[StoredDiagnosis, ...] = ()
    findings: tuple[Finding, ...] = ()
    finding_ids: Mapping[tuple[str, int], str] = field(default_factory=dict)
    recoveries: tuple[StoredRecovery, ...] = ()
    effects: tuple[EffectRow, ...] = ()
    judgements: tuple[JudgementRow, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def gaps(self) -> tuple[str, ...]:
        """Return a sentence for each kind of content that the run lacks."""
        return describe_gaps(self.run)

    @property
    def stored_diagnosis(self) -> StoredDiagnosis | None:
        """Return the latest diagnosis with its id, or None."""
        return self.diagnoses[-1] if self.diagnoses else None

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Return the latest diagnosis, or None."""
        return self.diagnoses[-1].diagnosis if self.diagnoses else None

    @classmethod
    def from_run(cls, run: Trajectory, diagnosis: Diagnosis | None = None) -> RunData:
        """Return the data of a run that is not in a store."""
        if diagnosis is None:
            return cls(run=run)
        stored_diagnosis = StoredDiagnosis(id="", created_at=0.0, diagnosis=diagnosis)
        return cls(run=run, diagnoses=(stored_diagnosis,), findings=diagnosis.findings)

    @classmethod
    def load(cls, store: Store, run_id: str, tenant: str = "") -> RunData | None:
        """Load a run with all its data, or return None if it does not exist.

        Raises StoreUnavailable if the store cannot be read now, StoreError if ``run_id`` is invalid.
        """
        rows = store.get_run_rows(run_id, tenant=tenant)
        if rows is None:
            return None
        problems: list[str] = []

        def read_rows(name: str, list_rows: Callable[..., tuple[R, ...]]) -> tuple[R, ...]:
            return _read_rows(name, lambda: list_rows(run_id, tenant=tenant), problems)

        run = _decode_run(*rows, problems)
        diagnoses = _decode_rows(
            read_rows("diagnoses", store.list_diagnoses), _decode_stored_diagnosis, "diagnosis", problems
        )
        finding_rows = read_rows("findings", store.list_findings)
        findings = _decode_rows(
            finding_rows, lambda row: decode_finding(JsonNode.from_value(dict(row.data))), "finding", problems
        )
        recovery_rows = enumerate(read_rows("recoveries", store.list_recoveries))
        return cls(
            run=run,
            diagnoses=diagnoses,
            findings=diagnoses[-1].diagnosis.findings if diagnoses else findings,
            finding_ids={(row.detector, row.step): row.id for row in finding_rows if row.step is not None},
            recoveries=_decode_rows(
                recovery_rows, lambda one: read_recovery(one[1], one[0]), "recovery", problems
            ),
            effects=read_rows("effects", store.list_effects),
            judgements=read_rows("judgements", store.list_judgements),
            problems=tuple(problems),
        )


def _read_rows(name: str, read: Callable[[], tuple[R, ...]], problems: list[str]) -> tuple[R, ...]:
    try:
        return read()
    except StoreUnavailable:
        raise
    except AgentGuardError as error:
        problems.append(f"the {name} of this run cannot be read: {error}")
        return ()


def _decode_rows(
    rows: Iterable[Any], decode: Callable[[Any], V], kind: str, problems: list[str]
) -> tuple[V, ...]:
    values = []
    for row in rows:
        try:
            values.append(decode(row))
        except AgentGuardError as error:
            problems.append(f"a {kind} of this run cannot be read: {error}")
    return tuple(values)


def _decode_stored_diagnosis(row: Any) -> StoredDiagnosis:
    return StoredDiagnosis(
        id=row.id, created_at=row.created_at, diagnosis=decode_diagnosis(JsonNode.from_value(dict(row.data)))
    )


def _decode_run(
    head: RunRow, steps: list[StepRow], branches: list[BranchRow], problems: list[str]
) -> Trajectory:
    try:
        return build_trajectory(head, steps, branches)
    except AgentGuardError:
        return _salvage_run(head, steps, branches, problems)


def _salvage_run(
    head: RunRow, steps: list[StepRow], branches: list[BranchRow], problems: list[str]
) -> Trajectory:
    """Build a run row by row; a step that cannot be decoded contains its raw row."""
    try:
        meta = decode_meta(JsonNode.from_value(dict(head.data)))
    except FormatError as error:
        problems.append(f"the stored run cannot be read: {error}")
        meta = Trajectory(id=head.id, format=head.format, task=head.task, steps=())
    steps_by_branch: dict[str, list[Step]] = {}
    for row in steps:
        steps_by_branch.setdefault(row.line, []).append(_decode_step(row, problems))
    branch_ids = {row.id for row in branches}
    orphan_count = sum(
        len(branch_steps) for id, branch_steps in steps_by_branch.items() if id and id not in branch_ids
    )
    if orphan_count:
        problems.append(f"{orphan_count} steps have no stored branch; they are not shown")
    return replace(
        meta,
        steps=tuple(steps_by_branch.get("", ())),
        branches=tuple(_decode_branch(row, steps_by_branch.get(row.id, ())) for row in branches),
    )


def _decode_step(row: StepRow, problems: list[str]) -> Step:
    try:
        return replace(decode_step(JsonNode.from_value(dict(row.data))), index=row.index)
    except FormatError as error:
        place = f"step {row.index}" + (f" of branch {row.line}" if row.line else "")
        problems.append(f"{place} cannot be read and is shown as it was stored: {error}")
        raw = orjson.dumps(dict(row.data), default=str, option=orjson.OPT_INDENT_2).decode(errors="replace")
        source = Source(row.source) if row.source in set(Source) else Source.ENVIRONMENT
        note = {DAMAGED_ROW_KEY: str(error)}
        return Step(index=row.index, source=source, agent=row.agent, content=raw, extra=note)


def _decode_branch(row: BranchRow, steps: Iterable[Step]) -> Branch:
    reason = row.data.get("reason")
    return Branch(
        id=row.id,
        fork_step=row.fork_step,
        steps=tuple(steps),
        parent=row.parent,
        reason=reason if isinstance(reason, str) else "",
    )
