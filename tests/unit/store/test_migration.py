"""Versions of the tables."""

import shutil
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import insert, select
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.errors import StoreError, StoreVersion
from agentguard.localize.base import Diagnosis
from agentguard.localize.serialization import decode_diagnosis, encode_diagnosis
from agentguard.store import Store
from agentguard.store.db import migration
from agentguard.store.db.rows import (
    DiagnosisRow,
    EffectRow,
    RecoveryRow,
    RunRow,
    SavedViewRow,
    SchemaRow,
    SnapshotRow,
)
from agentguard.store.db.tables import OVERVIEWS, SPENDING, metadata
from agentguard.store.saved_views import list_saved_views
from agentguard.store.trajectory_mapping import build_run_rows
from agentguard.store.write import batch
from agentguard.store.write.summary_aggregation import build_blank_summary
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, Source, Step, ToolCall, Trajectory
from agentguard.verdict import Verdict
from tests.postgres import postgres, postgres_url  # noqa: F401

NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "9000"
down_revision = "{last}"


def upgrade():
    op.add_column("agentguard_schemata", sa.Column("note", sa.Text, nullable=True))
    op.create_table("agentguard_new", sa.Column("id", sa.Integer, primary_key=True))
    {end}
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def newer(monkeypatch, tmp_path):
    """Simulate a newer agentguard with one more version; called at the end of its migration."""

    def make(end: str = "pass") -> None:
        folder = tmp_path / "migrations"
        shutil.copytree(migration._MIGRATIONS_DIR, folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "versions" / "r9000_next.py").write_text(NEXT.format(last=migration.REVISIONS[-1], end=end))
        monkeypatch.setattr(migration, "_MIGRATIONS_DIR", folder)
        monkeypatch.setattr(migration, "REVISIONS", (*migration.REVISIONS, "9000"))

    return make


def names(store: Store) -> set[str]:
    from sqlalchemy import inspect

    return set(inspect(store._database.get_engine()).get_table_names())


def test_migrations_create_the_declared_tables(url):
    with Store.open(url) as store, store._database.get_engine().connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migration.VERSION_TABLE})
        assert compare_metadata(context, metadata) == []


def test_all_revisions_are_listed():
    config = Config()
    config.set_main_option("script_location", str(migration._MIGRATIONS_DIR))
    script = ScriptDirectory.from_config(config)
    assert [one.revision for one in script.walk_revisions()] == list(reversed(migration.REVISIONS))


@pytest.fixture
def first(monkeypatch, tmp_path):
    """Simulate the first agentguard, which knows only the first version of the tables."""
    with monkeypatch.context() as patch:
        know_versions(patch, tmp_path / "first", 1)
        patch.setattr(batch, "SummaryUpdater", _NoOverviews)
        yield patch


def know_versions(patch: pytest.MonkeyPatch, folder: Path, count: int) -> None:
    """Simulate an agentguard that knows only the first ``count`` versions of the tables."""
    newer = [f"r{revision}*" for revision in migration.REVISIONS[count:]]
    shutil.copytree(migration._MIGRATIONS_DIR, folder, ignore=shutil.ignore_patterns("__pycache__", *newer))
    patch.setattr(migration, "_MIGRATIONS_DIR", folder)
    patch.setattr(migration, "REVISIONS", migration.REVISIONS[:count])


class _NoOverviews:
    """Writer of a version without run summaries."""

    def __init__(self, *_: object) -> None: ...

    def rows(self, *_: object) -> list[dict[str, object]]:
        return []


def test_older_store_is_migrated_only_on_request(url, newer):
    with Store.open(url) as store:
        store.write(SchemaRow(id="s", data={"a": 1})).wait(10)
    last = migration.REVISIONS[-1]
    newer()
    match = rf"{last} of the tables.* needs 9000.*`agentguard store migrate`"
    with pytest.raises(StoreVersion, match=match):
        Store.open(url)
    result = CliRunner().invoke(build_app(), ["store", "migrate", "--store", url])
    assert result.exit_code == 0
    assert f"was version {last}, is 9000" in result.output
    assert "p%40ss" not in result.output
    with Store.open(url) as store:
        assert "agentguard_new" in names(store)
        assert store.list_schemata()[0].data == {"a": 1}


def test_store_of_first_version_keeps_its_rows(url, first):
    steps = tuple(
        Step(
            index=i,
            source=Source.AGENT,
            agent="a",
            content=str(i),
            tool_calls=(ToolCall(id="c", name="book"),),
        )
        for i in range(2)
    )
    run = Trajectory(id="r", format="f", task="go", steps=steps)
    effect = EffectRow(run_id="r", tool="book", arguments="a", data={"seat": 4})
    with Store.open(url) as store:
        _, *rows = build_run_rows(Record(trajectory=run, annotation=Annotation(failed=True)))
        store.write(*rows)  # without the first row, which clears tables that this version does not have
        store.write(RecoveryRow(id="v", run_id="r", strategy="rollback", data={"n": [1]}), SchemaRow(id="s"))
        store.flush(20)
        assert store.claim(effect).state == "new"
        assert "agentguard_snapshots" not in names(store)
        before = _contents(store)
        assert before.pop("agentguard_backend_events") == []
    first.undo()
    with pytest.raises(StoreVersion, match="version 0001 of the tables"):
        Store.open(url)
    assert Store.migrate(url)[1:] == ("0001", migration.REVISIONS[-1])
    with Store.open(url) as store:
        assert {name: _contents(store)[name] for name in before} == before
        assert "agentguard_backend_events" not in names(store)
        assert store.get_trajectory("r") == run
        assert store.claim(effect).state == "attempted"
        row = store.get_run_summary("r")
        assert (row.task, row.steps, row.failed, row.recoveries, row.stale) == ("go", 2, True, 1, False)
        assert (row.agents, row.tools) == ("\na\n", "\nbook\n")
        store.write(SnapshotRow(run_id="r", step=1, state=b"new")).wait(10)
        assert [one.state for one in store.list_snapshots("r")] == [b"new"]
        assert store.delete_run("r").rows["snapshots"] == 1


@pytest.mark.parametrize("amounts", [[("key:k", "total", 1.5)], []])
def test_store_of_fifth_version_keeps_its_spending(url, monkeypatch, tmp_path, amounts):
    with monkeypatch.context() as patch:
        know_versions(patch, tmp_path / "fifth", 5)
        with Store.open(url) as store, store._database.get_engine().begin() as connection:
            assert SPENDING.name not in names(store)
            if amounts:  # a proxy with a budget created the table
                SPENDING.create(connection)
                connection.execute(insert(SPENDING), [dict(zip(SPENDING.c.keys(), amounts[0], strict=True))])
    assert Store.migrate(url)[1:] == ("0005", migration.REVISIONS[-1])
    with Store.open(url) as store, store._database.get_engine().connect() as connection:
        assert connection.execute(select(SPENDING)).all() == amounts
        assert not any(store.delete_tenant("k").rows.values())


def test_verdicts_of_an_older_store_have_their_current_names(url, monkeypatch, tmp_path):
    view = "?verdict=failure&verdict=none&q=verdict%3Dfailure&sort=time"
    long_view = f"{view}&code={'c' * 300}&verdict=abstained"
    earlier = {"r1": "failure", "r2": "no_failure", "r3": "abstained"}
    with monkeypatch.context() as patch:
        know_versions(patch, tmp_path / "eleventh", 11)
        patch.setattr(batch, "SummaryUpdater", _NoOverviews)
        with Store.open(url) as store:
            for run_id, verdict in earlier.items():
                diagnosis = Diagnosis(
                    trajectory_id=run_id, method="m", verdict=Verdict.FAILED, probability=0.5
                )
                data = encode_diagnosis(diagnosis) | {"verdict": verdict}
                store.write(
                    RunRow(id=run_id, format="f", task="t", length=0),
                    DiagnosisRow(run_id=run_id, method="m", verdict=verdict, data=data),
                )
            for name, query in (("short", view), ("long", long_view)):
                store.write(SavedViewRow(name=name, query=query))
            store.flush(20)
            with store._database.get_engine().begin() as connection:
                for run_id, verdict in earlier.items():
                    summary = build_blank_summary("", run_id, 1.0) | {"verdict": verdict, "known": True}
                    del summary["step_probability"]
                    connection.execute(insert(OVERVIEWS).values(summary))
    Store.migrate(url)
    names_by_run = {"r1": "failed", "r2": "no_failure_found", "r3": "undecided"}
    new_view = "?verdict=failed&verdict=not_diagnosed&q=verdict%3Dfailure&sort=time"
    with Store.open(url) as store:
        for run_id, verdict in names_by_run.items():
            (row,) = store.list_diagnoses(run_id)
            assert row.verdict == verdict == store.get_run_summary(run_id).verdict
            assert decode_diagnosis(JsonNode.from_value(dict(row.data))).verdict == verdict
        assert store.get_facets().verdicts == dict.fromkeys(names_by_run.values(), 1)
        assert {view.name: view.query for view in list_saved_views(store)} == {
            "short": new_view,
            "long": f"{new_view}&code={'c' * 300}&verdict=undecided",
        }


def _contents(store: Store) -> dict[str, list[dict[str, object]]]:
    """Return every row of the existing tables, as column to value."""
    from sqlalchemy import MetaData, select

    held = MetaData()
    engine = store._database.get_engine()
    held.reflect(engine)
    with engine.connect() as connection:
        return {
            name: [dict(row) for row in connection.execute(select(table)).mappings()]
            for name, table in held.tables.items()
            if name != migration.VERSION_TABLE
        }


def test_migration_is_atomic(url, newer, monkeypatch):
    with Store.open(url) as store:
        before = names(store)
    newer("raise RuntimeError('half-way')")
    with pytest.raises(RuntimeError, match="half-way"):
        Store.migrate(url)
    monkeypatch.undo()
    with Store.open(url) as store:  # still the old version, and complete
        assert names(store) == before
        store.write(SchemaRow(id="s")).wait(10)


def test_newer_store_is_unchanged(url):
    with Store.open(url) as store, store._database.get_engine().begin() as connection:
        connection.exec_driver_sql("UPDATE agentguard_version SET version_num = '9999'")
    for ask in (Store.open, Store.migrate):
        with pytest.raises(StoreVersion, match="newer than this agentguard: update agentguard"):
            ask(url)


def test_concurrent_opens_create_one_store(url):
    errors = []

    def work() -> None:
        try:
            with Store.open(url) as store:
                store.write(SchemaRow(id=str(threading.get_ident()))).wait(20)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert errors == []
    with Store.open(url) as store:
        assert len(store.list_schemata()) == 4


def test_missing_file_needs_no_migration(tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        Store.migrate(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
