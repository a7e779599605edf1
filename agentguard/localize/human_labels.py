"""Conversion of human judgements of diagnoses to run labels, annotated records and counts of schemata.

A judgement marks a diagnosis (or one of its hypotheses) as right or wrong. It may name the right step or the
right code. On an undecided run it names the outcome instead. Only the latest judgement of each person counts.
If people contradict each other, the value is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from agentguard.errors import FormatError
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.localize.serialization import decode_diagnosis
from agentguard.trajectory.formats.sdk import JsonNode
from agentguard.trajectory.model import Annotation, Record, RootCause
from agentguard.verdict import Verdict

if TYPE_CHECKING:
    from agentguard.schemata.model import ErrorSchema
    from agentguard.store.db.rows import DiagnosisRow, JudgementRow
    from agentguard.store.store import Store


_NO_DIAGNOSIS: Final = "the labels are about findings, or about a diagnosis that the store no longer has"
_CONTRADICTION: Final = "people contradict each other about the outcome"
_NO_OUTCOME: Final = "the labels name no outcome: label the run as failed or passed"
_NO_RUN: Final = "the store no longer has the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanLabel:
    """Content of one judgement about a run; a field that the judgement does not set is None or empty."""

    failed: bool | None = None
    step: int | None = None
    code: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLabel:
    """Combined human judgements of a run.

    Attributes:
        run_id: the run.
        diagnosis: the latest diagnosis of the run with a judgement.
        failed: whether the run failed; None without such a judgement, or if people contradict each other.
        step: the root-cause step; None under the same conditions.
        code: its taxonomy code; empty if no judgement names one.
        notes: free-text notes of the judgements.
        is_contradictory: whether people contradict each other about the outcome.
    """

    run_id: str
    diagnosis: Diagnosis
    failed: bool | None = None
    step: int | None = None
    code: str = ""
    notes: tuple[str, ...] = ()
    is_contradictory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRun:
    """Run with labels of people, as a record for training and evaluation.

    Attributes:
        run_id: the run.
        record: the run with its annotation; None if the labels cannot be used.
        omission: reason why there is no record.
    """

    run_id: str
    record: Record | None = None
    omission: str = ""


def iter_run_labels(store: Store, *, tenant: str = "") -> Iterator[RunLabel]:
    """Yield the combined human judgements of a tenant's runs, latest run first.

    Raises:
        StoreUnavailable: the store cannot be read now.
    """
    return (label for _, label in _iter_merged_labels(store, tenant) if label is not None)


def _iter_merged_labels(store: Store, tenant: str) -> Iterator[tuple[str, RunLabel | None]]:
    from agentguard.store.db.run_summary import RunSummaryFilter

    for row in store.iter_run_summaries(RunSummaryFilter(judged=True), tenant=tenant):
        yield (
            row.run_id,
            merge_run_labels(
                store.list_judgements(row.run_id, tenant=tenant),
                store.list_diagnoses(row.run_id, tenant=tenant),
            ),
        )


def merge_run_labels(
    judgements: Iterable[JudgementRow], diagnoses: Sequence[DiagnosisRow]
) -> RunLabel | None:
    """Combine the judgements of one run; return None if none of them is about a diagnosis."""
    from agentguard.store.write.summary_aggregation import select_current_judgements

    row_of_id = {row.id: row for row in diagnoses}
    labels: list[HumanLabel] = []
    last_row: DiagnosisRow | None = None
    for judgement in select_current_judgements(judgements):
        row = row_of_id.get(judgement.subject_id.partition(":")[0])
        diagnosis = None if row is None else _decode_row(row)
        if row is None or diagnosis is None:
            continue
        if (label := parse_human_label(judgement, diagnosis)) is not None:
            labels.append(label)
            last_row = row if last_row is None or row.created_at >= last_row.created_at else last_row
    diagnosis_of_last = None if last_row is None else _decode_row(last_row)
    if last_row is None or diagnosis_of_last is None:
        return None
    failed, step = (
        _select_unanimous_value(one.failed for one in labels),
        _select_unanimous_value(one.step for one in labels),
    )
    return RunLabel(
        run_id=last_row.run_id,
        diagnosis=diagnosis_of_last,
        failed=failed,
        step=step if failed else None,
        code=next((one.code for one in reversed(labels) if one.code), ""),
        notes=tuple(one.note for one in labels if one.note),
        is_contradictory=len({one.failed for one in labels} - {None}) > 1,
    )


def parse_human_label(judgement: JudgementRow, diagnosis: Diagnosis) -> HumanLabel | None:
    """Return the label of a run from one judgement.

    Return None if the subject of the judgement is neither a diagnosis nor a hypothesis, but e.g. a finding.
    """
    step, code, note = judgement.data.get("step"), judgement.data.get("code"), judgement.data.get("note")
    judged_step = step if isinstance(step, int) and not isinstance(step, bool) else None
    hypothesis = _select_judged_hypothesis(judgement, diagnosis)
    if hypothesis is None and judgement.subject != "diagnosis":
        return None
    judged_code = str(code) if code else ""
    label = HumanLabel(step=judged_step, code=judged_code, note=str(note) if note else "")
    if judged_step is not None:
        return replace(label, failed=True)
    if judgement.subject == "diagnosis" and judgement.outcome:
        return replace(label, failed=judgement.outcome == "failed")
    if judgement.subject == "hypothesis" or diagnosis.verdict is Verdict.FAILED:
        # A judgement that corrects only the code confirms the step.
        if (judgement.right or judged_code) and hypothesis is not None:
            hypothesis_code = hypothesis.codes[0] if judgement.right and hypothesis.codes else ""
            return replace(label, failed=True, step=hypothesis.step, code=judged_code or hypothesis_code)
        return label if judgement.subject == "hypothesis" else replace(label, failed=judgement.right)
    if diagnosis.verdict is Verdict.NO_FAILURE_FOUND:
        return replace(label, failed=not judgement.right)
    # The diagnosis is undecided. Only a failure has a kind.
    return replace(label, failed=True) if judged_code else label


def describe_label(label: RunLabel) -> str:
    """Return a label as text, e.g. ``failed at step 4 (mast:step_repetition)``; empty without an outcome."""
    if label.is_contradictory:
        return _CONTRADICTION
    if label.failed is None:
        return ""
    place = f" at step {label.step}" if label.step is not None else ""
    code = f" ({label.code})" if label.failed and label.code else ""
    return f"{'failed' if label.failed else 'passed'}{place}{code}"


def iter_labelled_runs(store: Store, *, tenant: str = "") -> Iterator[LabelledRun]:
    """Yield all judged runs, latest run first, each with its annotated record or the reason of its omission.

    Raises:
        StoreUnavailable: the store cannot be read now.
    """
    for run_id, label in _iter_merged_labels(store, tenant):
        if label is None or label.failed is None:
            reason = _NO_DIAGNOSIS
            if label is not None:
                reason = _CONTRADICTION if label.is_contradictory else _NO_OUTCOME
            yield LabelledRun(run_id=run_id, omission=reason)
            continue
        record = store.get_record(run_id, tenant=tenant)
        if record is None:
            yield LabelledRun(run_id=run_id, omission=_NO_RUN)
        else:
            yield LabelledRun(
                run_id=run_id, record=replace(record, annotation=_build_annotation(label, record))
            )


def update_schema_counts(
    store: Store, judgement: JudgementRow, previous: JudgementRow | None = None, *, tenant: str = ""
) -> tuple[str, ...]:
    """Update the confirmed and refuted counts of the schemata that the diagnosis cites; return their ids.

    Args:
        store: store of the diagnoses and schemata.
        judgement: the new judgement.
        previous: the same person's previous judgement of the subject; its counts are subtracted.
        tenant: owner of the rows.

    Raises:
        StoreUnavailable: the store cannot be read now.
    """
    from agentguard.schemata.persistence import SqlSchemaStore

    rows = {row.id: row for row in store.list_diagnoses(judgement.run_id, tenant=tenant)}
    row = rows.get(judgement.subject_id.partition(":")[0])
    diagnosis = None if row is None else _decode_row(row)
    if diagnosis is None:
        return ()
    changes: dict[str, list[int]] = {}
    for one, sign in ((previous, -1), (judgement, 1)):
        for name, right in () if one is None else _find_credited_schemata(one, diagnosis):
            changes.setdefault(name, [0, 0])[not right] += sign
    changes = {name: counts for name, counts in changes.items() if any(counts)}
    if not changes:
        return ()
    updated_schemata: list[ErrorSchema] = []

    def update(stored: tuple[ErrorSchema, ...]) -> list[ErrorSchema]:
        updated_schemata[:] = [
            _update_counts(one, *changes[one.id], now=time.time()) for one in stored if one.id in changes
        ]
        return updated_schemata

    SqlSchemaStore(store, tenant=tenant).update(update)
    return tuple(schema.id for schema in updated_schemata)


def _update_counts(schema: ErrorSchema, confirmed: int, refuted: int, *, now: float) -> ErrorSchema:
    """Return the schema with its counts changed; retired if the new counts refute it."""
    from agentguard.schemata.cache_policy import CachePolicy
    from agentguard.schemata.model import SchemaStatus

    updated = replace(
        schema,
        confirmed=max(0, schema.confirmed + confirmed),
        refuted=max(0, schema.refuted + refuted),
        updated_at=max(schema.updated_at, now),
    )
    return replace(updated, status=SchemaStatus.RETIRED) if CachePolicy().is_refuted(updated) else updated


def _find_credited_schemata(judgement: JudgementRow, diagnosis: Diagnosis) -> Iterator[tuple[str, bool]]:
    """Yield each schema that supported the judged step, and whether it was right."""
    from agentguard.localize.schema_similarity import parse_cited_schema

    if judgement.data.get("withdrawn"):
        return
    hypothesis = _select_judged_hypothesis(judgement, diagnosis)
    label = parse_human_label(judgement, diagnosis)
    if hypothesis is None or label is None:
        return
    if judgement.subject == "diagnosis" and label.step is None and label.failed is not False:
        return  # the label does not name the step
    if (name := parse_cited_schema(hypothesis)) is not None:
        # The schema supported the step; a correction of the code alone does not refute it.
        yield name, label.step == hypothesis.step
    for other in diagnosis.hypotheses:
        name = parse_cited_schema(other)
        if name is not None and other is not hypothesis and other.step == label.step:
            yield name, True


def _select_judged_hypothesis(judgement: JudgementRow, diagnosis: Diagnosis) -> Hypothesis | None:
    """Return the judged hypothesis: the first for a diagnosis, else the one at the rank after the colon."""
    rank = 0
    if judgement.subject == "hypothesis":
        text = judgement.subject_id.rpartition(":")[2]
        rank = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else -1
    elif judgement.subject != "diagnosis":
        return None
    return diagnosis.hypotheses[rank] if 0 <= rank < len(diagnosis.hypotheses) else None


def _select_unanimous_value(values: Iterable[Any]) -> Any:
    """Return the only value that is not None; return None if there is no such value, or several."""
    distinct = {value for value in values if value is not None}
    return distinct.pop() if len(distinct) == 1 else None


def _build_annotation(label: RunLabel, record: Record) -> Annotation:
    """Build an annotation from a human label, with the group of the record's own annotation."""
    steps = record.trajectory.steps
    cause = None
    if label.failed and (label.step is not None or label.code):
        cause = RootCause(
            step=label.step,
            agent=steps[label.step].agent if label.step is not None and label.step < len(steps) else None,
            codes=(label.code,) if label.code else (),
            reason="; ".join(label.notes),
        )
    return Annotation(failed=label.failed, root_cause=cause, group=record.annotation.group)


def _decode_row(row: DiagnosisRow) -> Diagnosis | None:
    """Decode the diagnosis of a row; return None if it is unreadable, for example from another version."""
    data: Any = row.data
    try:
        return decode_diagnosis(JsonNode.from_value(data))
    except FormatError:
        return None
