"""A disk that is full or read-only, a database that is locked, removed, damaged or stopped.

In each case, writers are not blocked, waiting and lost rows are counted, and the store recovers by itself
when
the database is available again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentguard.errors import RowsLost, StoreTimeout, StoreUnavailable
from agentguard.store import Store
from agentguard.store.db.rows import EffectRow, FindingRow
from agentguard.store.options import StoreOptions
from tests.faults.store_child import write_until_it_fails
from tests.postgres import postgres, postgres_url  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
EFFECT = EffectRow(run_id="r", tool="t", arguments="a")


def row(step: int = 0) -> FindingRow:
    return FindingRow(run_id="r", detector="d", step=step)


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def remove(path: Path) -> None:
    """Remove a database, its file last, since the file's presence prevents the creation of a new one.

    If the file were removed first, a writer could create a new one, and its log would then be removed. A
    closed
    connection removes its database's log as well.
    """
    for end in ("-wal", "-shm", ""):
        path.with_name(path.name + end).unlink(missing_ok=True)


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """Mount a disk of 1 MiB."""
    if shutil.which("mount") is None:
        pytest.skip("a small disk cannot be mounted here: there is no mount")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disk_recovers_after_space_is_freed(disk):
    filler = disk / "filler"
    with Store.open(disk / "store.db") as store:
        filler.write_bytes(bytes(600_000))  # SQLite needs space for its log and for the checkpoint of the log
        written = write_until_it_fails(store)
        health = store.get_health()
        assert "full" in health.last_error or "I/O" in health.last_error
        assert health.failing_since is not None
        assert health.pending > 0
        assert health.lost == 0
        assert health.written + health.pending == written
        filler.unlink()
        store.flush(20)
        health = store.get_health()
        assert (health.ok, health.failing_since, health.written) == (True, None, written)
        assert sorted(one.step for one in store.list_findings("r")) == list(range(1, written + 1))


def test_permanently_full_disk_drops_and_counts_rows(disk):
    """Rows beyond the queue limit are lost and counted, and no writer waits for them."""
    with Store.open(disk / "store.db", options=StoreOptions(max_rows=50)) as store:
        write_until_it_fails(store)
        before = store.get_health()
        receipts = [store.write(row(i)) for i in range(500)]
        health = store.get_health()
        assert health.pending == 50
        assert health.lost == before.lost + 500 - (50 - before.pending)
        assert receipts[-1].state == "lost"
        with pytest.raises(RowsLost, match="queue is full"):
            receipts[-1].wait()
        with pytest.raises(StoreTimeout, match="still queued"):
            store.flush(0.1)
        assert len(store.list_findings("r")) == health.written  # acknowledged rows can still be read
        store.close(timeout_s=0.5)
        wait_for(lambda: store.get_health().pending == 0)  # the writer may be in the middle of an attempt
        assert store.get_health().lost == health.lost + 50


def test_file_size_limit_recovers_after_removal(tmp_path):
    """The same without a separate disk: a file size limit, in a separate process."""
    code = f"from tests.faults.store_child import squeeze; squeeze({str(tmp_path / 'store.db')!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    failing, recovered = map(json.loads, done.stdout.splitlines())
    assert not failing["ok"]
    assert failing["pending"] > 0
    assert failing["last_error"]
    assert recovered["ok"]
    assert (recovered["pending"], recovered["lost"]) == (0, 0)
    assert recovered["written"] == failing["written"] + failing["pending"]


def test_read_only_disk_recovers(disk):
    with Store.open(disk / "store.db") as store:
        store.write(row(1)).wait(10)
    mount("-o", "remount,ro", str(disk))
    with Store.open(disk / "store.db", connect=False) as store:
        receipt = store.write(row(2))
        wait_for(lambda: not store.get_health().ok)
        assert receipt.state == "pending"
        with pytest.raises(StoreUnavailable):
            store.claim(EFFECT)
        mount("-o", "remount,rw", str(disk))
        receipt.wait(20)
        assert [one.step for one in store.list_findings("r")] == [1, 2]


@contextlib.contextmanager
def lock_held(path: Path) -> Iterator[None]:
    """Hold SQLite's write lock in another process."""
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.read(); c.execute('ROLLBACK')"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        yield
    finally:
        holder.stdin.close()
        holder.wait(30)
        holder.stdout.close()


def test_lock_of_another_process_delays_rows(tmp_path, caplog):
    path = tmp_path / "store.db"
    with Store.open(path, options=StoreOptions(lock_timeout_s=0.1)) as store:
        store.write(row(1)).wait(10)
        with lock_held(path):
            receipt = store.write(row(2))
            wait_for(lambda: not store.get_health().ok)
            assert "locked" in store.get_health().last_error
            with pytest.raises(StoreUnavailable, match="locked"):
                store.claim(EFFECT)
            assert [one.step for one in store.list_findings("r")] == [1]  # readers are not blocked
            with pytest.raises(StoreTimeout):
                receipt.wait(0.05)
        receipt.wait(30)
        assert store.get_health().ok
        assert store.claim(EFFECT).state == "new"
    messages = [one.getMessage() for one in caplog.records if one.name.startswith("agentguard.store.write")]
    assert [text.split("store.db ")[1] for text in messages] == [
        "fail; rows stay queued: database is locked",  # logged once
        "succeed again",
    ]


def test_removed_file_is_recreated(tmp_path):
    path = tmp_path / "store.db"
    with Store.open(path) as store:
        store.write(row(1)).wait(10)
        store.claim(EFFECT)
        remove(path)
        store.write(row(2)).wait(10)
        assert [one.step for one in store.list_findings("r")] == [2]
        assert store.claim(EFFECT).state == "new"
    with Store.open(path) as again:
        assert [one.step for one in again.list_findings("r")] == [2]


def test_file_removed_during_writes_is_recreated(tmp_path):
    """Rows acknowledged after the removal are in the new file; rows of the old file are lost with it."""
    path = tmp_path / "store.db"
    with Store.open(path) as store:
        for round in range(10):
            receipts = [store.write(row(round * 1000 + i)) for i in range(100)]
            receipts[0].wait(10)
            remove(path)
            late = store.write(row(round * 1000 + 999))
            late.wait(10)
            assert round * 1000 + 999 in {one.step for one in store.list_findings("r")}
            for receipt in receipts:
                receipt.wait(10)


def test_removed_folder_is_recreated(tmp_path):
    path = tmp_path / "deep" / "store.db"
    with Store.open(path) as store:
        shutil.rmtree(path.parent)
        store.write(row(1)).wait(10)
        assert len(store.list_findings("r")) == 1


def test_corrupt_database_file_is_reported_until_removed(tmp_path):
    path = tmp_path / "store.db"
    with Store.open(path) as store:
        store.write(row(1)).wait(10)
        remove(path)
        path.write_bytes(b"not a database" * 1000)
        receipt = store.write(row(2))
        wait_for(lambda: not store.get_health().ok)
        assert "not a database" in store.get_health().last_error
        with pytest.raises(StoreUnavailable):
            store.list_findings("r")
        path.unlink()
        receipt.wait(10)
        assert [one.step for one in store.list_findings("r")] == [2]


def test_database_of_newer_version_is_not_written(tmp_path):
    path = tmp_path / "store.db"
    Store.open(path).close()
    with contextlib.closing(__import__("sqlite3").connect(path)) as connection:
        connection.execute("UPDATE agentguard_version SET version_num = '9999'")
        connection.commit()
    store = Store.open(path, connect=False)
    receipt = store.write(row(1))
    wait_for(lambda: not store.get_health().ok)
    assert "update agentguard" in store.get_health().last_error
    store.close(timeout_s=0.2)
    with pytest.raises(RowsLost, match="closed while writes failed"):
        receipt.wait(10)


@pytest.mark.slow
def test_restarted_server_is_reconnected(postgres, postgres_url):  # noqa: F811
    with Store.open(postgres_url) as store:
        store.write(row(0)).wait(10)
        assert store.claim(EFFECT).state == "new"
        postgres.stop()
        try:
            receipts = [store.write(row(i)) for i in range(1, 200)]
            wait_for(lambda: not store.get_health().ok)
            assert store.get_health().pending == 199
            for ask in (lambda: store.list_findings("r"), lambda: store.claim(EFFECT), store.get_stats):
                with pytest.raises(StoreUnavailable) as caught:
                    ask()
                assert "p@ss" not in str(caught.value)
                assert "p%40ss" not in str(caught.value)
            late = Store.open(postgres_url, connect=False)
            waiting = late.write(row(500))
            with pytest.raises(StoreUnavailable):
                Store.open(postgres_url)
        finally:
            postgres.start()
        for receipt in (*receipts, waiting):
            receipt.wait(30)
        assert sorted(one.step for one in store.list_findings("r")) == [*range(200), 500]
        assert store.claim(EFFECT).state == "attempted"
        health = store.get_health()
        assert (health.ok, health.written, health.lost, health.pending) == (True, 200, 0, 0)
        late.close()


def test_ending_process_writes_pending_rows(tmp_path):
    """Without a flush or close, the end of the interpreter writes the rows."""
    code = (
        "from agentguard.store import Store; from agentguard.store.db.rows import FindingRow\n"
        f"store = Store.open({str(tmp_path / 'store.db')!r})\n"
        "for i in range(500): store.write(FindingRow(run_id='r', detector='d', step=i))\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
    with Store.open(tmp_path / "store.db") as store:
        assert len(store.list_findings("r")) == 500


def test_forked_process_writes_its_rows(tmp_path):
    """A forked child has the store but not its thread: its rows are written nevertheless."""
    with Store.open(tmp_path / "store.db") as store:
        store.write(row(1)).wait(10)
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                store.write(row(2)).wait(10)
                code = 0 if store.claim(EFFECT).state == "new" else 2
            os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        store.write(row(3)).wait(10)
        assert [one.step for one in store.list_findings("r")] == [1, 2, 3]
        assert store.claim(EFFECT).state == "attempted"
