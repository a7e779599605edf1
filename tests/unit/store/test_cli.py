"""`agentguard store`."""

import json
import time

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.store import Store
from agentguard.store.db.migration import REVISIONS
from agentguard.store.db.rows import RunRow


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(build_app(), ["store", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def path(tmp_path):
    """Create a store of three runs: one old, one old and failed, one new of another tenant."""
    file = tmp_path / "store.db"
    old = time.time() - 10 * 86_400
    with Store.open(file) as store:
        store.write(RunRow(id="old", created_at=old), RunRow(id="bad", created_at=old + 1, failed=True))
        store.write(RunRow(id="new", tenant="acme")).wait(10)
    return str(file)


def left(path: str) -> set[str]:
    with Store.open(path) as store:
        return {one.id for tenant in ("", "acme") for one in store.list_runs(tenant=tenant).rows}


def test_init_creates_store_and_keeps_existing_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        code, out, _ = run("init", "--json")
        assert code == 0
        assert json.loads(out) == {
            "store": str(tmp_path / ".agentguard" / "store.db"),
            "version": REVISIONS[-1],
        }
    monkeypatch.setenv("AGENTGUARD_STORE", str(tmp_path / "else.db"))
    assert run("init")[1] == f"{tmp_path / 'else.db'}: version {REVISIONS[-1]}\n"


def test_stats_shows_counts(path):
    code, out, _ = run("stats", "--store", path, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["rows"]["runs"] == 3
    assert found["tenants"] == 2
    assert found["bytes_on_disk"] > 10_000
    assert json.loads(run("stats", "--store", path, "--tenant", "acme", "--json")[1])["rows"]["runs"] == 1
    assert "runs" in run("stats", "--store", path)[1]


def test_index_adds_each_run_once(path):
    code, out, _ = run("index", "--store", path, "--tenant", "acme")
    assert (code, out) == (0, f"{path}: runs added to the index: 1\n")
    assert json.loads(run("index", "--store", path, "--json")[1]) == {"store": path, "runs": 2}
    assert json.loads(run("index", "--store", path, "--json")[1])["runs"] == 0


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["--older-than", "1w"], ("new",)),
        (["--older-than", "1w", "--keep-failed"], ("new", "bad")),
        (["--older-than", "0s", "--tenant", "acme"], ("old", "bad")),
        (["--older-than", "20d"], ("old", "bad", "new")),
        (["--max-bytes", "0"], ()),
        (["--run-id", "old"], ("bad", "new")),
        (["--run-id", "new"], ("old", "bad", "new")),
        (["--run-id", "new", "--tenant", "acme"], ("old", "bad")),
        (["--everything", "--tenant", "acme"], ("old", "bad")),
    ],
    ids=" ".join,
)
def test_prune_deletes_selected_runs(path, arguments, kept):
    code, out, _ = run("prune", "--store", path, "--json", *arguments)
    assert code == 0
    assert left(path) == set(kept)
    assert json.loads(out)["rows"].get("runs", 0) == 3 - len(kept)


def test_prune_reports_deleted_rows(path):
    assert run("prune", "--store", path, "--older-than", "1w")[1].startswith("removed: 2 runs\nin use: ")
    assert run("prune", "--store", path, "--older-than", "1w")[1].startswith("removed: nothing\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "nothing to remove"),
        (["--run-id", "old", "--older-than", "1d"], "nothing to remove"),
        (["--everything"], "--everything needs --tenant"),
        (["--run-id", "old", "--keep-failed"], "--keep-failed needs"),
        (["--older-than", "soon"], "is not an age"),
        (["--older-than", "-1d"], "is not an age"),
        (["--run-id", "a\nb"], "not printable"),
    ],
)
def test_invalid_prune_deletes_nothing(path, arguments, reason):
    code, _, err = run("prune", "--store", path, *arguments)
    assert code == 2
    assert reason in err
    assert left(path) == {"old", "bad", "new"}


@pytest.mark.parametrize(
    "command", [["stats"], ["prune", "--older-than", "1d"], ["migrate"]], ids=lambda c: c[0]
)
def test_missing_store_is_not_created(tmp_path, command):
    code, _, err = run(*command, "--store", str(tmp_path / "none.db"))
    assert code == 2
    assert "there is no store" in err
    assert list(tmp_path.iterdir()) == []


def test_unreachable_server_is_one_clear_line():
    code, out, err = run("stats", "--store", "postgresql://u:c4nary@127.0.0.1:1/b")
    assert code == 2
    assert out == ""
    assert err.startswith("error: store postgresql://u:***@127.0.0.1:1/b: ")
    assert err.count("\n") == 1
    assert "c4nary" not in err
