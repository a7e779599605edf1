"""Human feedback on diagnoses: labels, calibrated probabilities, training records, schemata."""

import json
import math
import random
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.localize.human_labels import (
    RunLabel,
    iter_labelled_runs,
    iter_run_labels,
    merge_run_labels,
    update_schema_counts,
)
from agentguard.localize.recalibration import (
    MIN_OUTCOME_LABELS,
    RecalibratedLocalizer,
    Recalibration,
    fit_recalibrations,
)
from agentguard.localize.serialization import build_diagnosis_rows, decode_diagnosis, encode_diagnosis
from agentguard.schemata.model import ErrorSchema, Provenance, SchemaStatus
from agentguard.schemata.persistence import SqlSchemaStore
from agentguard.store import Store
from agentguard.store.db.rows import DiagnosisRow, JudgementRow
from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.formats.sdk import JsonNode
from agentguard.trajectory.model import Annotation, Record, RootCause, Source, Step, Trajectory
from agentguard.verdict import Verdict


def run(id: str = "r", steps: int = 6) -> Trajectory:
    made = tuple(
        Step(index=i, source=Source.AGENT, agent=f"a{i % 2}", content=f"said {i}") for i in range(steps)
    )
    return Trajectory(id=id, format="f", task=f"task {id}", steps=made)


def hypothesis(step: int, p: float = 0.5, *, schema: str = "", codes: tuple[str, ...] = ()) -> Hypothesis:
    reason = f"it broke; it looks like an earlier failure (schema {schema})" if schema else "it broke"
    return Hypothesis(step=step, agent=f"a{step % 2}", probability=p, codes=codes, reason=reason)


def diagnosed(
    id: str = "r", verdict: Verdict = Verdict.FAILED, p: float = 0.8, hypotheses: tuple[Hypothesis, ...] = ()
) -> Diagnosis:
    given = hypotheses or (hypothesis(2, 0.6, codes=("x/1",)), hypothesis(4, 0.3))
    shown = () if verdict is Verdict.NO_FAILURE_FOUND else given
    return Diagnosis(trajectory_id=id, method="m", verdict=verdict, probability=p, hypotheses=shown)


def row_of(diagnosis: Diagnosis) -> DiagnosisRow:
    row = build_diagnosis_rows(diagnosis)[0]
    assert isinstance(row, DiagnosisRow)
    return replace(row, id="d")


def said(right: bool, *, by: str = "ann", at: float = 1.0, subject: str = "diagnosis", id: str = "d", **data):
    return JudgementRow(
        run_id="r", subject=subject, subject_id=id, right=right, by=by, created_at=at, data=data
    )  # fmt: skip


FAILED, PASSED, UNSURE = Verdict.FAILED, Verdict.NO_FAILURE_FOUND, Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("verdict", "judgements", "expected"),
    [
        (FAILED, [said(True)], (True, 2, "x/1")),
        (FAILED, [said(False)], (False, None, "")),
        (FAILED, [said(False, step=4)], (True, 4, "")),
        (FAILED, [said(False, step=0, code="y/2")], (True, 0, "y/2")),
        (FAILED, [said(False, code="y/2")], (True, 2, "y/2")),
        (PASSED, [said(True)], (False, None, "")),
        (PASSED, [said(False)], (True, None, "")),
        (PASSED, [said(False, step=3)], (True, 3, "")),
        (UNSURE, [said(True)], (None, None, "")),
        (UNSURE, [said(False)], (None, None, "")),
        (UNSURE, [said(False, step=1)], (True, 1, "")),
        (UNSURE, [said(False, code="y/2")], (True, None, "y/2")),
        (UNSURE, [said(False, outcome="failed")], (True, None, "")),
        (UNSURE, [said(False, outcome="failed", code="y/2")], (True, None, "y/2")),
        (UNSURE, [said(False, outcome="passed")], (False, None, "")),
        (UNSURE, [said(False, outcome="lost")], (None, None, "")),
        (FAILED, [said(True, outcome="failed")], (True, None, "")),
        (PASSED, [said(False, outcome="failed")], (True, None, "")),
        (FAILED, [said(False, outcome="failed", step=4)], (True, 4, "")),
        (FAILED, [said(True), said(False, by="bob")], (None, None, "x/1")),
        (FAILED, [said(True), said(False, step=4, by="bob")], (True, None, "x/1")),
        (FAILED, [said(True), said(False, at=2.0)], (False, None, "")),
        (FAILED, [said(False, subject="hypothesis", id="d:0")], (None, None, "")),
        (FAILED, [said(True, subject="hypothesis", id="d:1")], (True, 4, "")),
    ],
)
def test_feedback_is_merged_into_a_label(verdict, judgements, expected):
    found = merge_run_labels(judgements, [row_of(diagnosed(verdict=verdict))])
    assert found is not None
    assert (found.failed, found.step, found.code) == expected


@pytest.mark.parametrize(
    "judgements",
    [
        [],
        [said(True), said(True, at=2.0, withdrawn=True)],
        [said(True, subject="finding", id="f")],
        [said(True, id="gone")],
        [said(True, subject="hypothesis", id="d:99")],
    ],
)
def test_empty_feedback_gives_no_label(judgements):
    assert merge_run_labels(judgements, [row_of(diagnosed())]) is None


def told(p: float, failed: bool, *, recalibrated: dict[str, float] | None = None) -> RunLabel:
    diagnosis = replace(diagnosed(p=p), recalibrated=recalibrated or {})
    return RunLabel(run_id="r", diagnosis=diagnosis, failed=failed)


def overconfident(number: int, seed: int = 0) -> list[RunLabel]:
    """Return a method that predicts 0.95 or 0.05 where 0.7 and 0.3 are true."""
    dice = random.Random(seed)
    made = []
    for _ in range(number):
        high = dice.random() < 0.5
        made.append(told(0.95 if high else 0.05, dice.random() < (0.7 if high else 0.3)))
    return made


def test_few_labels_change_nothing():
    (found,) = fit_recalibrations(overconfident(MIN_OUTCOME_LABELS - 1))
    assert not found.has_enough_outcomes
    diagnosis = diagnosed()
    assert found.apply(diagnosis) is diagnosis
    (one_sided,) = fit_recalibrations([told(0.9, True)] * 50)
    assert not one_sided.has_enough_outcomes


def test_overconfident_method_is_corrected():
    (found,) = fit_recalibrations(overconfident(400))
    assert found.has_enough_outcomes
    assert found.apply(diagnosed(p=0.95)).probability == pytest.approx(0.7, abs=0.06)
    assert found.brier_after is not None
    assert found.brier_before is not None
    assert found.brier_after < found.brier_before - 0.03


def test_calibrated_method_stays_about_the_same():
    dice = random.Random(3)
    judged = [told(p, dice.random() < p) for p in (dice.uniform(0.02, 0.98) for _ in range(600))]
    (found,) = fit_recalibrations(judged)
    for p in (0.1, 0.5, 0.9):
        assert found.apply(diagnosed(p=p, verdict=UNSURE)).probability == pytest.approx(p, abs=0.06)


def test_correction_is_learnt_from_the_original_probability():
    plain = overconfident(200)
    (first,) = fit_recalibrations(plain)
    again = [replace(one, diagnosis=first.apply(one.diagnosis)) for one in plain]
    (second,) = fit_recalibrations(again)
    assert second.slope == pytest.approx(first.slope, rel=1e-6)
    assert second.intercept == pytest.approx(first.intercept, abs=1e-6)


def test_step_probabilities_are_tempered():
    dice = random.Random(1)
    judged = []
    for _ in range(60):
        steps = (hypothesis(2, 0.4), hypothesis(4, 0.35), hypothesis(5, 0.25))
        right = 2 if dice.random() < 0.9 else 4
        judged.append(RunLabel(run_id="r", diagnosis=diagnosed(hypotheses=steps), failed=True, step=right))
    (found,) = fit_recalibrations(judged)
    assert found.has_enough_steps
    assert found.temperature > 1.5
    shown = [one.probability for one in found.apply(judged[0].diagnosis).hypotheses]
    assert shown[0] > 0.5
    assert math.isclose(sum(shown), 1.0)
    assert shown == sorted(shown, reverse=True)


def test_contradicted_verdict_is_undecided():
    found = Recalibration(method="m", failed_count=30, passed_count=30, slope=1.0, intercept=-3.0)
    made = found.apply(diagnosed(p=0.7))
    assert made.verdict is Verdict.UNDECIDED
    assert made.probability < 0.5
    assert "contradict" in made.notes[-1]
    assert made.hypotheses
    assert decode_diagnosis(JsonNode.from_value(encode_diagnosis(made))) == made


def test_given_outcome_is_not_corrected():
    found = Recalibration(method="m", failed_count=30, passed_count=30, intercept=-3.0)
    diagnosis = diagnosed(p=1.0)
    assert found.apply(diagnosis) is diagnosis


class Fixed:
    """A localizer with a constant result."""

    name = "m"

    def locate(self, trajectory, findings):
        return diagnosed(trajectory.id, p=0.95)


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "s.db") as opened:
        yield opened


def judged_runs(store: Store, number: int = 40) -> None:
    """Return runs with a failure probability of 0.95, of which people judged half as passed."""
    for i in range(number):
        id = f"r{i:03}"
        store.write_run(Record(trajectory=run(id), annotation=Annotation(group=f"g{i}", answer="secret")))
        row = replace(row_of(diagnosed(id, p=0.95)), id=f"d{i}")
        judgement = JudgementRow(
            run_id=id, subject="diagnosis", subject_id=f"d{i}", right=i % 2 == 0, by="ann"
        )
        store.write(row, judgement)
    store.flush(20)


def test_guard_with_store_applies_the_correction(store):
    guard = Guard(localizer=Fixed(), store=store, detectors={})
    assert guard.diagnose(run()).probability == 0.95
    judged_runs(store)
    assert guard.diagnose(run()).probability == 0.95  # feedback is read again after some time
    taught = Guard(localizer=Fixed(), store=store, detectors={}).diagnose(run())
    assert taught.probability == pytest.approx(0.5, abs=0.1)
    assert "corrected by 40 judgements" in taught.notes[-1]
    assert Guard(localizer=Fixed(), detectors={}).diagnose(run()).probability == 0.95


def test_unreadable_store_corrects_nothing(tmp_path):
    with Store.open(tmp_path / "gone" / "s.db") as store:
        store._database.invalidate()
        (tmp_path / "gone" / "s.db").unlink()
        (tmp_path / "gone" / "s.db").mkdir()
        assert RecalibratedLocalizer(Fixed(), store).locate(run(), ()).probability == 0.95


def test_calibrate_shows_the_correction(store, tmp_path):
    path = str(tmp_path / "s.db")
    few = CliRunner().invoke(build_app(), ["judge", "calibrate", "--store", path])
    assert few.exit_code == 1
    assert "no diagnosis has a label yet" in few.output
    judged_runs(store)
    result = CliRunner().invoke(build_app(), ["judge", "calibrate", "--store", path])
    assert result.exit_code == 0
    assert result.output.splitlines()[1].split()[:3] == ["m", "20", "20"]
    assert "need 20 judged root causes" not in result.output  # each of the 20 right ones names its step
    plain = CliRunner().invoke(build_app(), ["judge", "calibrate", "--store", path, "--json"])
    assert '"corrects_outcomes": true' in plain.output


def test_labelled_runs_are_annotated_records(store, tmp_path):
    judged_runs(store, 6)
    records = [one.record for one in iter_labelled_runs(store)]
    assert {one.trajectory.id: one.annotation.failed for one in records} == {
        f"r{i:03}": i % 2 == 0 for i in range(6)
    }
    cause = next(one for one in records if one.trajectory.id == "r000").annotation
    assert cause.root_cause == RootCause(step=2, agent="a0", codes=("x/1",))
    assert (cause.group, cause.answer) == ("g0", None)
    out = tmp_path / "judged.jsonl"
    command = ["store", "export-labels", "--store", str(tmp_path / "s.db"), "--output", str(out)]
    assert CliRunner().invoke(build_app(), command).exit_code == 0
    assert load_records(out) == records
    again = CliRunner().invoke(build_app(), command)
    assert again.exit_code == 2
    assert "--force" in again.output
    assert CliRunner().invoke(build_app(), [*command, "--force"]).exit_code == 0
    assert load_records(out) == records


def judge_undecided(
    store: Store, id: str, *labels: dict[str, str], by: tuple[str, ...] = ("ann", "bob")
) -> None:
    store.write_run(run(id))
    row = replace(row_of(diagnosed(id, UNSURE)), id=f"d-{id}", run_id=id)
    rows = [
        JudgementRow(run_id=id, subject="diagnosis", subject_id=row.id, right=False, by=person, data=data)
        for person, data in zip(by, labels, strict=False)
    ]
    store.write(row, *rows).wait(10)


def test_export_has_outcome_labels_and_lists_omitted_runs(store, tmp_path):
    judge_undecided(store, "failed", {"outcome": "failed"})
    judge_undecided(store, "kind", {"outcome": "failed", "code": "mast:step_repetition"})
    judge_undecided(store, "passed", {"outcome": "passed"})
    judge_undecided(store, "contradiction", {"outcome": "passed"}, {"outcome": "failed"})
    judge_undecided(store, "neither", {})
    out = tmp_path / "judged.jsonl"
    command = ["store", "export-labels", "--store", str(tmp_path / "s.db"), "--output", str(out)]
    result = CliRunner().invoke(build_app(), command)
    assert result.exit_code == 0, result.output
    assert "3 labelled runs written, 2 of them failed without a step" in result.output
    assert (
        "1 left out, because people contradict each other about the outcome: contradiction" in result.output
    )
    assert "label the run as failed or passed: neither" in result.output
    labels = {one.trajectory.id: one.annotation for one in load_records(out)}
    assert {id: label.failed for id, label in labels.items()} == {
        "failed": True,
        "kind": True,
        "passed": False,
    }
    assert labels["failed"].root_cause is None
    assert labels["kind"].root_cause == RootCause(codes=("mast:step_repetition",))
    plain = json.loads(CliRunner().invoke(build_app(), [*command, "--force", "--json"]).output)
    assert (plain["runs"], plain["failed_without_step"]) == (3, 2)
    assert {one["run_id"] for one in plain["omitted"]} == {"contradiction", "neither"}


def test_outcome_label_leaves_the_schema_of_the_step_uncounted(store):
    provenance = Provenance(method="embedded", runs=("x",))
    SqlSchemaStore(store).upsert([ErrorSchema(id="s1", signature=("it broke",), provenance=provenance)])
    store.write_run(run())
    store.write(row_of(diagnosed(verdict=UNSURE, hypotheses=(hypothesis(2, 0.6, schema="s1"),)))).wait(10)
    assert update_schema_counts(store, said(False, outcome="failed")) == ()
    assert update_schema_counts(store, said(False, outcome="passed")) == ("s1",)
    (schema,) = SqlSchemaStore(store).load()
    assert (schema.confirmed, schema.refuted) == (0, 1)


def test_eval_and_distil_read_human_labels(store, tmp_path):
    judged_runs(store, 6)
    out = tmp_path / "judged.jsonl"
    runner = CliRunner()
    runner.invoke(build_app(), ["store", "export-labels", "--store", str(tmp_path / "s.db"), "-o", str(out)])
    measure = ["eval", "event_log", str(out), "--method", "last_error", "--no-save"]
    scored = runner.invoke(build_app(), [*measure, "--checkpoint", str(tmp_path)])
    assert scored.exit_code == 0, scored.output
    distilled = runner.invoke(
        build_app(), ["schemata", "distill", str(out), "--output", str(tmp_path / "s.jsonl")]
    )
    assert distilled.exit_code in (0, 2), distilled.output
    assert "6 read" in distilled.output


def test_used_schemata_are_counted(store):
    schemata = [
        ErrorSchema(id=name, signature=("it broke",), provenance=Provenance(method="embedded", runs=("x",)))
        for name in ("s1", "s2")
    ]
    table = SqlSchemaStore(store)
    table.upsert(schemata)
    diagnosis = diagnosed(hypotheses=(hypothesis(2, 0.6, schema="s1"), hypothesis(4, 0.3, schema="s2")))
    store.write_run(run())
    store.write(row_of(diagnosis)).wait(10)

    def counts() -> dict[str, tuple[int, int]]:
        return {one.id: (one.confirmed, one.refuted) for one in table.load()}

    right = said(True)
    assert update_schema_counts(store, right) == ("s1",)
    assert counts() == {"s1": (1, 0), "s2": (0, 0)}
    wrong = said(False, at=2.0, step=4)
    assert set(update_schema_counts(store, wrong, right)) == {"s1", "s2"}
    assert counts() == {"s1": (0, 1), "s2": (1, 0)}
    assert set(update_schema_counts(store, said(False, at=3.0, withdrawn=True), wrong)) == {"s1", "s2"}
    assert counts() == {"s1": (0, 0), "s2": (0, 0)}
    other_kind = said(False, at=4.0, code="y/1")  # the schema's step was right
    assert update_schema_counts(store, other_kind) == ("s1",)
    assert counts()["s1"] == (1, 0)
    assert all(one.status is SchemaStatus.ACTIVE for one in table.load())


def test_missing_schemata_are_not_counted(store):
    store.write_run(run()).wait(10)
    assert update_schema_counts(store, said(True)) == ()
    assert list(iter_run_labels(store)) == []
