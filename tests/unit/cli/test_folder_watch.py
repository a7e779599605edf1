from __future__ import annotations

import functools
import os
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.cli.folder_watch import FolderWatch
from agentguard.errors import ConfigError
from agentguard.trajectory.formats.base import UnreadableRecord

NOW = 2_000_000_000.0


def write_runs(path: Path, *answers: str, age_s: float = 60.0) -> None:
    lines = [
        orjson.dumps(
            {
                "id": answer,
                "messages": [{"role": "user", "content": "Go."}, {"role": "assistant", "content": answer}],
            }
        )
        for answer in answers
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    os.utime(path, (NOW - age_s, NOW - age_s))


def poll(watch: FolderWatch) -> list[str]:
    return ["unreadable" if isinstance(one, UnreadableRecord) else one.trajectory.id for one in watch.poll()]


@pytest.fixture
def watch(tmp_path: Path) -> FolderWatch:
    (tmp_path / "empty.txt").write_text("")
    os.utime(tmp_path / "empty.txt", (NOW, NOW))
    return FolderWatch(folder=tmp_path, now=lambda: NOW)


def test_new_file_is_read_once(watch: FolderWatch) -> None:
    assert poll(watch) == []
    write_runs(watch.folder / "a.jsonl", "one", "two")
    assert poll(watch) == ["one", "two"]
    assert poll(watch) == []


def test_file_that_grows_adds_only_its_new_runs(watch: FolderWatch) -> None:
    write_runs(watch.folder / "a.jsonl", "one", age_s=60)
    assert poll(watch) == ["one"]
    write_runs(watch.folder / "a.jsonl", "one", "two", age_s=30)
    assert poll(watch) == ["two"]


def test_copy_and_touched_file_add_no_run(watch: FolderWatch) -> None:
    write_runs(watch.folder / "a.jsonl", "one", age_s=60)
    assert poll(watch) == ["one"]
    write_runs(watch.folder / "a.jsonl", "one", age_s=30)
    write_runs(watch.folder / "b.jsonl", "one")
    assert poll(watch) == []


def test_file_that_still_changes_is_read_when_it_is_quiet(watch: FolderWatch) -> None:
    write_runs(watch.folder / "a.jsonl", "one", age_s=0.5)
    assert poll(watch) == []
    write_runs(watch.folder / "a.jsonl", "one", "two", age_s=2.5)
    assert poll(watch) == ["one", "two"]


def test_unreadable_file_is_reported_once_and_read_after_its_repair(watch: FolderWatch) -> None:
    (watch.folder / "a.json").write_text('{"messages": 5}')
    os.utime(watch.folder / "a.json", (NOW - 60, NOW - 60))
    assert poll(watch) == ["unreadable"]
    assert poll(watch) == []
    write_runs(watch.folder / "a.json", "one", age_s=30)
    assert poll(watch) == ["one"]


def test_ctrl_c_ends_the_watch(watch: FolderWatch) -> None:
    polls = []

    def interrupt(seconds: float) -> None:
        polls.append(seconds)
        if len(polls) == 2:
            raise KeyboardInterrupt

    write_runs(watch.folder / "a.jsonl", "one")
    watch.sleep = interrupt
    assert len(list(watch.iter_records())) == 1
    assert polls == [watch.interval_s] * 2


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        next(FolderWatch(folder=tmp_path / "none").iter_records())


def test_command_watches_until_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "agentguard.cli.cmd_diagnose.FolderWatch", functools.partial(FolderWatch, sleep=interrupt)
    )
    write_runs(tmp_path / "a.jsonl", "one")
    os.utime(tmp_path / "a.jsonl", (1e9, 1e9))
    result = CliRunner().invoke(build_app(), ["diagnose", "--watch", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    assert orjson.loads(line)["trajectory_id"] == "one"
