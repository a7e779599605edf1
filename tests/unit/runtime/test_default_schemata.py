"""Schemata without a setting: where a guard finds them, what it costs without any, and whose they are."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentguard.batch import DiagnosisOperation
from agentguard.cli.app import build_app
from agentguard.config.policy import Policy
from agentguard.guard import Guard, diagnose
from agentguard.judge.cache import VerdictScope
from agentguard.localize.base import Diagnosis
from agentguard.runtime.error_schema_feedback import SchemaFeedback
from agentguard.schemata.lazy_store import LazySchemaStore
from agentguard.schemata.model import SchemaStatus
from agentguard.schemata.persistence import SqlSchemaStore, open_schema_store
from agentguard.store import Store
from agentguard.trajectory.model import Source, Step
from tests.unit.cli.test_cmd_judge import chat as recorded
from tests.unit.judge.chat_server import serving
from tests.unit.localize.runs import chat
from tests.unit.runtime.test_session import CAN, META, turn
from tests.unit.test_guard_judge import matching_schema, policy, preferring

CORRECTION = "Read the answer before you repeat the call."


@pytest.fixture
def default_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the address of the default store, which does not exist."""
    path = tmp_path / "store.db"
    monkeypatch.setenv("AGENTGUARD_STORE", str(path))
    return path


def add_schema(path: Path, *, tenant: str = "") -> None:
    with Store.open(path) as store:
        SqlSchemaStore(store, tenant=tenant).upsert([matching_schema(chat(), CORRECTION)])


def list_cited(diagnosis: Diagnosis) -> list[str]:
    return [id for one in diagnosis.hypotheses for id in one.schemata]


def run_recovered(guard: Guard, name: str) -> None:
    """Run an agent that loops, is rolled back, and then succeeds."""
    session = guard.session(replace(META, id=name), CAN)
    session.commit(Step(index=0, source=Source.USER, agent="user", content=META.task))
    for _ in range(3):
        session.commit(turn())
    assert session.check_boundary() is not None
    for place in ("front", "back", "left", "right"):
        session.commit(turn(seen=f"seat in the {place}", where=place))
    session.end()
    assert guard.components.schemata is not None
    assert guard.flush(60)
    assert guard.components.schemata.flush(60)


def test_confirmed_recoveries_correct_the_diagnosis_and_the_prompts_of_a_later_run(tmp_path: Path) -> None:
    with serving(preferring("yes", "step 1")) as (url, script), Store.open(tmp_path / "s.db") as store:
        rules = policy(url, recover={"on_fail": ["rollback"]}, localizer={"name": "fused"})
        with Guard.from_policy(rules, store=store) as guard:
            run_recovered(guard, "a")
            assert not any("What corrects it" in prompt for prompt in script.prompts())
            # The judge may be asked about this run before or after its recovery confirms the schema.
            run_recovered(guard, "b")
            (schema,) = SqlSchemaStore(store).load()
            assert (schema.status, schema.confirmed) == (SchemaStatus.ACTIVE, 2)
            asked = len(script.prompts())
            run_recovered(guard, "c")
            store.flush()
            (recovery,) = store.list_recoveries("c")
        assert recovery.schema_id == schema.id
        later = script.prompts()[asked:]
        assert len(later) == 4, "two questions in both orders of the options"
        assert all(f"What corrects it: {schema.correction}" in prompt for prompt in later)
        (tmp_path / "p.yaml").write_text(json.dumps({"judge": {"base_url": url, "deadline_s": 60}}))
        words = ["runs", "diagnose", "c", "--store", str(tmp_path / "s.db"), "--json"]
        result = CliRunner().invoke(build_app(), [*words, "--policy", str(tmp_path / "p.yaml")])
        assert result.exit_code == 0, result.output
    hypotheses = json.loads(result.stdout.splitlines()[0])["hypotheses"]
    assert [one["schemata"] for one in hypotheses if one.get("schemata")][:1] == [[schema.id]]


def test_diagnose_uses_the_default_store_if_it_exists(default_store: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    run.write_text(json.dumps(recorded(1)))
    command = ["diagnose", str(run), "--json", "--no-summary"]

    def report() -> dict[str, object]:
        result = CliRunner().invoke(build_app(), command)
        assert result.exit_code == 0, result.output
        document: dict[str, object] = json.loads(result.stdout)
        document.pop("timing")
        return document

    before = report()
    assert not default_store.exists(), "reading creates no store"
    add_schema(default_store)
    assert report() == report(), "equal input and an equal store give an equal report"
    assert before["verdict"] == report()["verdict"]


def test_search_for_schemata_leaves_no_file(default_store: Path) -> None:
    assert not LazySchemaStore().has_schemata()
    assert list(default_store.parent.iterdir()) == []
    add_schema(default_store)
    assert LazySchemaStore().has_schemata()
    assert list(default_store.parent.iterdir()) == [default_store]


def test_policy_without_schemata_reads_no_store(default_store: Path) -> None:
    add_schema(default_store)
    assert list_cited(Guard.from_policy(Policy()).diagnose(chat()))
    assert not list_cited(Guard.from_policy(Policy(schemata=False)).diagnose(chat()))


def test_guard_in_code_uses_only_its_own_store(default_store: Path, tmp_path: Path) -> None:
    add_schema(default_store)
    assert not list_cited(diagnose(chat())), "the function depends on the run alone"
    assert not list_cited(Guard().diagnose(chat()))
    add_schema(tmp_path / "own.db")
    with Store.open(tmp_path / "own.db") as store:
        assert list_cited(Guard(store=store).diagnose(chat()))
        assert not list_cited(Guard(store=store, schemata=False).diagnose(chat()))


@pytest.mark.parametrize("has_store", [False, True])
def test_guard_without_schemata_imports_neither_index_nor_database(tmp_path: Path, has_store: bool) -> None:
    if has_store:
        Store.open(tmp_path / "store.db").close()
    code = """
import sys
from agentguard.config.policy import Policy
from agentguard.guard import Guard
from agentguard import Trajectory
from tests.unit.localize.runs import chat
guard = Guard.from_policy(Policy())
assert guard.components.schemata is not None
assert guard.diagnose(chat()).hypotheses
heavy = {"sqlalchemy", "agentguard.schemata.index", "agentguard.schemata.live_cache"} & set(sys.modules)
assert not heavy, heavy
"""
    environment = {"AGENTGUARD_STORE": str(tmp_path / "store.db"), "PYTHONPATH": str(Path.cwd())}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=120)
    assert (tmp_path / "store.db").exists() is has_store


def test_broken_store_changes_no_diagnosis(default_store: Path) -> None:
    alone = Guard().diagnose(chat())
    default_store.write_text("not a database")
    found = Guard.from_policy(Policy()).diagnose(chat())
    assert (found.verdict, found.hypotheses, found.failures) == (alone.verdict, alone.hypotheses, ())


def test_store_of_a_newer_version_is_reported_in_each_diagnosis(default_store: Path) -> None:
    add_schema(default_store)
    with sqlite3.connect(default_store) as connection:
        connection.execute("UPDATE agentguard_version SET version_num = 'r9999'")
    guard = Guard.from_policy(Policy())
    for _ in range(2):
        found = guard.diagnose(chat())
        (failure,) = found.failures
        assert failure.detector == "schemata"
        assert failure.error.startswith("StoreVersion: the store ")
        assert found.hypotheses


def test_turn_of_a_running_agent_does_not_open_the_store(default_store: Path) -> None:
    add_schema(default_store)
    feedback = SchemaFeedback(LazySchemaStore())
    empty = Guard().diagnose(chat())
    assert feedback.annotate_live_diagnosis(chat(), empty, (), rerank=True) is empty
    feedback.prepare()
    assert feedback.flush(60)
    assert list_cited(feedback.annotate_live_diagnosis(chat(), empty, empty.findings, rerank=True))


def test_schema_of_another_process_is_found_after_the_interval(default_store: Path) -> None:
    now = [0.0]
    feedback = SchemaFeedback(LazySchemaStore(), clock=lambda: now[0])
    guard = Guard(schemata=feedback)
    assert not list_cited(guard.diagnose(chat()))
    add_schema(default_store)
    assert not list_cited(guard.diagnose(chat())), "it looks again after an interval"
    now[0] = 60.0
    assert list_cited(guard.diagnose(chat()))


def test_tenants_do_not_share_schemata(default_store: Path) -> None:
    add_schema(default_store, tenant="a")
    guard = Guard(schemata=SchemaFeedback(LazySchemaStore()))
    assert not list_cited(guard.diagnose(chat()))
    for tenant, expected in (("a", 1), ("b", 0), ("", 0)):
        with VerdictScope(None, tenant=tenant):
            assert len(list_cited(guard.diagnose(chat()))) == expected, tenant


def test_batch_job_reads_no_default_store_and_depends_on_the_named_one(tmp_path: Path) -> None:
    assert DiagnosisOperation(Policy()).policy.schemata is False
    path = tmp_path / "s.jsonl"
    operation = DiagnosisOperation(Policy(schemata=str(path)))
    before = operation.collect_facts()
    with open_schema_store(path) as held:
        held.upsert([matching_schema(chat(), CORRECTION)])
    assert operation.collect_facts()["schemata"] != before["schemata"]
