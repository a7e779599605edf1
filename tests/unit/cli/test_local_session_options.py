from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agentguard.cli.app import build_app
from agentguard.trajectory.formats.reader import load_records

SAMPLES = Path(__file__).resolve().parents[2] / "contract" / "samples"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), [str(one) for one in arguments])


@pytest.fixture(autouse=True)
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide two sessions of Claude Code, the second one newer, and one of Codex."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    files = {
        "claude/projects/-srv-ferry/1.jsonl": "claude_code.jsonl",
        "claude/projects/-srv-kiln/2.jsonl": "claude_code.stream.jsonl",
        "codex/sessions/2026/04/03/rollout-1.jsonl": "codex_cli.jsonl",
    }
    for age, (name, sample) in enumerate(files.items()):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        shutil.copy(SAMPLES / sample, path)
        os.utime(path, (1_700_000_000 + age, 1_700_000_000 + age))


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        (["--claude-code"], 1),
        (["--claude-code", "--last", 9], 3),
        (["--claude-code", "/srv/ferry"], 2),
        (["--codex"], 1),
        (["--codex", "/srv/barn", "--last", 2], 1),
    ],
)
def test_sessions_of_this_machine_are_read(options: list[object], runs: int) -> None:
    result = call("validate", *options, "--json")
    assert result.exit_code == 0, result.output
    assert f'"runs":{runs},' in result.output


def test_sessions_are_diagnosed() -> None:
    result = call("diagnose", "--claude-code", "--json")
    assert result.exit_code == 0, result.output
    assert "0b7f3c11-0000-4000-8000-0000000057e4" in result.output


def test_sessions_are_converted(tmp_path: Path) -> None:
    result = call("convert", "--codex", "-o", tmp_path / "log.jsonl")
    assert result.exit_code == 0, result.output
    assert [record.trajectory.id for record in load_records(tmp_path / "log.jsonl")] == ["0199aaaa-barn"]


@pytest.mark.parametrize("command", ["validate", "diagnose", "convert"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--claude-code", "/srv/nowhere"], "no sessions of /srv/nowhere"),
        (["--claude-code", "--codex"], "exclude each other"),
        (["--last", 2], "--last needs --claude-code or --codex"),
        ([], "name"),
    ],
)
def test_impossible_options_are_an_error(command: str, options: list[object], message: str) -> None:
    result = call(command, *options)
    assert result.exit_code != 0
    assert message in result.output
