"""Versions of the tables."""

import shutil
import threading

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from typer.testing import CliRunner

from agentguard.cli.app import build
from agentguard.errors import StoreError, StoreVersion
from agentguard.store import Store, migrate
from agentguard.store.rows import SchemaRow
from agentguard.store.tables import metadata
from tests.postgres import postgres, postgres_url  # noqa: F401

SECOND = """
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


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
def second(monkeypatch, tmp_path):
    """As if this agentguard knew one version more; called with the end of its migration."""

    def make(end: str = "pass") -> None:
        folder = tmp_path / "migrations"
        shutil.copytree(migrate._FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "versions" / "r0002_second.py").write_text(SECOND.format(end=end))
        monkeypatch.setattr(migrate, "_FOLDER", folder)
        monkeypatch.setattr(migrate, "REVISIONS", (*migrate.REVISIONS, "0002"))

    return make


def names(store: Store) -> set[str]:
    from sqlalchemy import inspect

    return set(inspect(store._place.engine()).get_table_names())


def test_migrations_make_the_tables_that_are_declared(url):
    with Store.open(url) as store, store._place.engine().connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migrate.VERSION_TABLE})
        assert compare_metadata(context, metadata) == []


def test_all_versions_are_listed():
    config = Config()
    config.set_main_option("script_location", str(migrate._FOLDER))
    script = ScriptDirectory.from_config(config)
    assert [one.revision for one in script.walk_revisions()] == list(reversed(migrate.REVISIONS))


def test_an_older_store_is_migrated_on_request_only(url, second):
    with Store.open(url) as store:
        store.write(SchemaRow(id="s", data={"a": 1})).wait(10)
    second()
    with pytest.raises(StoreVersion, match=r"0001 of the tables.* needs 0002.*`agentguard store migrate`"):
        Store.open(url)
    result = CliRunner().invoke(build(), ["store", "migrate", "--url", url])
    assert result.exit_code == 0
    assert "was version 0001, is 0002" in result.output
    assert "p%40ss" not in result.output
    with Store.open(url) as store:
        assert "agentguard_new" in names(store)
        assert store.schema("s").data == {"a": 1}


def test_a_migration_is_done_as_a_whole_or_not_at_all(url, second, monkeypatch):
    with Store.open(url) as store:
        before = names(store)
    second("raise RuntimeError('half-way')")
    with pytest.raises(RuntimeError, match="half-way"):
        Store.migrate(url)
    monkeypatch.undo()
    with Store.open(url) as store:  # still the old version, and whole
        assert names(store) == before
        store.write(SchemaRow(id="s")).wait(10)


def test_a_newer_store_is_left_alone(url):
    with Store.open(url) as store, store._place.engine().begin() as connection:
        connection.exec_driver_sql("UPDATE agentguard_version SET version_num = '9999'")
    for ask in (Store.open, Store.migrate):
        with pytest.raises(StoreVersion, match="newer than this agentguard knows: update agentguard"):
            ask(url)


def test_a_new_store_is_made_once_when_many_open_it(url):
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
        assert len(store.schemata()) == 4


def test_there_is_nothing_to_migrate_where_there_is_no_file(tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        Store.migrate(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
