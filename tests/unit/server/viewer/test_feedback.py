"""Feedback of a person: stored, shown, counted; and rejected input."""

import pytest
from agentguard_server.viewer.app import build_app
from agentguard_server.viewer.settings import ViewerSettings
from starlette.testclient import TestClient

from agentguard.detect.base import Finding
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.localize.human_labels import iter_labelled_runs
from agentguard.localize.serialization import build_diagnosis_rows
from agentguard.schemata.model import ErrorSchema, Provenance
from agentguard.schemata.persistence import SqlSchemaStore
from agentguard.store import Store
from agentguard.trajectory.model import Source, Step, Trajectory
from agentguard.verdict import Verdict

HERE = "http://127.0.0.1:7430"
RUN = "a/b ä"
ADDRESS = "/runs/a%2Fb%20%C3%A4/judge"


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "s.db") as opened:
        steps = tuple(Step(index=i, source=Source.AGENT, agent="a") for i in range(4))
        opened.write_run(Trajectory(id=RUN, format="f", task="t", steps=steps))
        finding = Finding(detector="loop", step=1, codes=("x/1",), probability=0.5, message="again")
        reason = "it broke; it looks like an earlier failure (schema s1)"
        diagnosis = Diagnosis(
            trajectory_id=RUN, method="m", verdict=Verdict.FAILED, probability=0.8, findings=(finding,),
            hypotheses=(Hypothesis(step=1, agent="a", probability=0.7, reason=reason),),
        )  # fmt: skip
        opened.write(*build_diagnosis_rows(diagnosis)).wait(10)
        provenance = Provenance(method="embedded", runs=("x",))
        SqlSchemaStore(opened).upsert([ErrorSchema(id="s1", signature=("it broke",), provenance=provenance)])
        opened.flush(10)
        yield opened


@pytest.fixture
def client(store):
    return TestClient(build_app(store), base_url=HERE, headers={"origin": HERE}, follow_redirects=False)


def form(store: Store, **more: str) -> dict[str, str]:
    (diagnosis,) = store.list_diagnoses(RUN)
    return {"subject": "diagnosis", "subject_id": diagnosis.id, "right": "no", "by": "ann", **more}


def test_feedback_is_stored_and_used(store, client):
    answer = client.post(
        ADDRESS, data=form(store, step="3", code="mast:step_repetition", note="  it was the third ")
    )
    assert answer.status_code == 303
    assert answer.headers["location"] == "/runs/a%2Fb%20%C3%A4#judge"
    (row,) = store.list_judgements(RUN)
    assert (row.subject, row.right, row.by) == ("diagnosis", False, "ann")
    assert row.data == {"step": 3, "code": "mast:step_repetition", "note": "it was the third"}
    assert store.get_run_summary(RUN).judged == "wrong"
    (labelled,) = iter_labelled_runs(store)
    record = labelled.record
    assert record.annotation.root_cause.step == 3
    assert record.annotation.root_cause.codes == ("mast:step_repetition",)
    (schema,) = SqlSchemaStore(store).load()
    assert (schema.confirmed, schema.refuted) == (0, 1)


def test_user_can_change_and_withdraw_feedback(store, client):
    wanted = {"accept": "application/json"}
    first = client.post(ADDRESS, data=form(store, right="yes"), headers=wanted)
    assert first.status_code == 201
    assert first.json()["schemata"] == ["s1"]
    client.post(ADDRESS, data=form(store, right="no"))
    assert store.get_run_summary(RUN).judged == "wrong"
    client.post(ADDRESS, data=form(store, right="yes", by="bob"))
    assert store.get_run_summary(RUN).judged == "mixed"
    for who in ("ann", "bob"):
        client.post(ADDRESS, data=form(store, withdraw="yes", by=who))
    assert store.get_run_summary(RUN).judged == ""
    assert len(store.list_judgements(RUN)) == 5  # the feedback remains stored
    (schema,) = SqlSchemaStore(store).load()
    assert (schema.confirmed, schema.refuted) == (0, 0)


def test_findings_and_hypotheses_accept_feedback(store, client):
    (finding,) = store.list_findings(RUN)
    (diagnosis,) = store.list_diagnoses(RUN)
    assert client.post(ADDRESS, data=form(store, subject="finding", subject_id=finding.id)).status_code == 303
    ranked = form(store, subject="hypothesis", subject_id=f"{diagnosis.id}:0", right="yes")
    assert client.post(ADDRESS, data=ranked).status_code == 303
    assert [one.subject for one in store.list_judgements(RUN)] == ["finding", "hypothesis"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"subject": "weather"},
        {"subject_id": "gone"},
        {"right": "maybe"},
        {"step": "4"},
        {"step": "-1"},
        {"step": "9" * 400},
        {"step": "٣"},
        {"subject": "hypothesis"},
        {"subject": "finding"},
        {"code": "nonsense"},
        {"code": "mast:step_repetitions"},
        {"code": "c" * 9000},
        {"outcome": "maybe"},
        {"outcome": "passed", "step": "1"},
        {"subject": "hypothesis", "outcome": "failed"},
    ],
)
def test_invalid_feedback_is_rejected(store, client, wrong):
    answer = client.post(ADDRESS, data=form(store, **wrong))
    assert answer.status_code == 400
    assert store.list_judgements(RUN) == ()


def test_invalid_form_body_is_rejected(store, client):
    for body in (b"\xff\xfe", b"&" * 100, b"a=1&" * 200, b""):
        assert client.post(ADDRESS, content=body).status_code == 400
    assert client.get(ADDRESS).status_code in (404, 405)
    assert client.post("/runs/none/judge", data=form(store)).status_code == 400


def test_long_note_is_truncated(store, client):
    client.post(ADDRESS, data=form(store, note="x" * 9000, by="n" * 300))
    (row,) = store.list_judgements(RUN)
    assert (len(row.data["note"]), len(row.by)) == (2000, 64)


def test_missing_name_defaults_to_local_user(store, client):
    import getpass

    given = form(store)
    del given["by"]
    client.post(ADDRESS, data=given)
    assert store.list_judgements(RUN)[0].by == getpass.getuser()


def test_read_only_viewer_rejects_feedback(store):
    client = TestClient(
        build_app(store, ViewerSettings(allows_feedback=False)), base_url=HERE, headers={"origin": HERE}
    )  # fmt: skip
    answer = client.post(ADDRESS, data=form(store))
    assert answer.status_code == 400
    assert "--store" in answer.text
    assert store.list_judgements(RUN) == ()


def test_step_button_labels_the_root_cause_and_the_diagnosed_step_confirms(store, client):
    page = client.get("/runs/a%2Fb%20%C3%A4").text
    assert 'form="label-right" name="step" value="1"' in page
    assert page.count('form="label-wrong" name="step"') == 3
    assert 'id="label-wrong"' in page
    fragment = client.get("/runs/a%2Fb%20%C3%A4/steps?from=2&to=3").text
    assert 'form="label-wrong" name="step" value="2"' in fragment


def test_reviewer_name_applies_to_later_labels(store, client):
    client.post(ADDRESS, data=form(store, by="Ann  Ö"))
    client.post(ADDRESS, data=form(store, by="", step="2"))
    assert [row.by for row in store.list_judgements(RUN)] == ["Ann Ö", "Ann Ö"]
    assert 'value="Ann Ö"' in client.get("/runs/a%2Fb%20%C3%A4").text


def test_review_queue_has_undecided_runs_without_a_label(store, client):
    for number in range(3):
        steps = (Step(index=0, source=Source.AGENT, agent="a"),)
        store.write_run(Trajectory(id=f"u{number}", format="f", task="t", steps=steps))
        undecided = Diagnosis(
            trajectory_id=f"u{number}", method="m", verdict=Verdict.UNDECIDED, probability=0.4
        )
        store.write(*build_diagnosis_rows(undecided))
    store.flush(10)
    seen, target = [], "/review"
    for _ in range(3):
        location = client.get(target).headers["location"]
        assert location.endswith("?review=yes")
        seen.append(location.rpartition("/")[2].partition("?")[0])
        target = f"/review?after={seen[-1]}"
    assert sorted(seen) == ["u0", "u1", "u2"]
    (diagnosis,) = store.list_diagnoses("u1")
    data = {"subject": "diagnosis", "subject_id": diagnosis.id, "right": "no", "step": "0", "review": "yes"}
    assert client.post("/runs/u1/judge", data=data).headers["location"] == "/review?after=u1"
    assert client.get("/review?after=u1").headers["location"] == "/runs/u0?review=yes"
    assert client.get("/review?after=u0").headers["location"] == "/runs/u2?review=yes"


@pytest.fixture
def undecided(store):
    """Return the id of the diagnosis of the undecided run ``u``."""
    steps = tuple(Step(index=i, source=Source.AGENT, agent="a") for i in range(3))
    store.write_run(Trajectory(id="u", format="f", task="t", steps=steps))
    diagnosis = Diagnosis(trajectory_id="u", method="m", verdict=Verdict.UNDECIDED, probability=0.4)
    store.write(*build_diagnosis_rows(diagnosis)).wait(10)
    return store.list_diagnoses("u")[0].id


@pytest.mark.parametrize(
    ("fields", "outcome", "failed"),
    [
        ({"outcome": "failed"}, "failed", True),
        ({"outcome": "passed"}, "passed", False),
        ({"outcome": "failed", "code": "mast:step_repetition"}, "failed", True),
        ({"right": "no", "step": "2"}, "failed", True),
    ],
)
def test_label_of_an_undecided_run_names_its_outcome(store, client, undecided, fields, outcome, failed):
    data = {"subject": "diagnosis", "subject_id": undecided, "by": "ann", **fields}
    answer = client.post("/runs/u/judge", data=data, headers={"accept": "application/json"})
    assert answer.status_code == 201
    assert answer.json()["outcome"] == outcome
    assert store.get_run_summary("u").judged == outcome
    (labelled,) = iter_labelled_runs(store)
    assert labelled.record.annotation.failed is failed
    page = client.get("/runs/u").text
    assert f'{outcome}</span> <span class="soft">run, by ann' in page


@pytest.mark.parametrize("right", ["yes", "no"])
def test_undecided_diagnosis_is_neither_right_nor_wrong(store, client, undecided, right):
    data = {"subject": "diagnosis", "subject_id": undecided, "right": right}
    answer = client.post("/runs/u/judge", data=data)
    assert answer.status_code == 400
    assert "outcome=failed or outcome=passed" in answer.text
    assert store.list_judgements("u") == ()


def test_page_of_an_undecided_run_asks_for_the_outcome(client, undecided):
    page = client.get("/runs/u?review=yes").text
    assert '<button name="outcome" value="passed">' in page
    assert 'name="right" value="yes">✓ Right' not in page
    assert page.count('name="review" value="yes"') == 3  # also in the forms of the steps
    assert 'name="review"' not in client.get("/runs/u").text


def test_empty_review_queue_leads_to_the_list(client):
    assert client.get("/review").headers["location"] == "/?verdict=undecided&judged=no"
