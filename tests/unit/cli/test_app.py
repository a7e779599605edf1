from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import SUMMARIES, build_app

SAMPLE = Path(__file__).resolve().parents[2] / "contract" / "samples" / "openai_chat.json"
LAB_COMMANDS = {"textworld"}
NAMES = {name for summaries in SUMMARIES.values() for name in summaries}


def run(code: str, *, encoding: str = "utf-8") -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=60)


def test_every_command_has_a_summary() -> None:
    group = build_app()
    result = CliRunner().invoke(group, ["--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    modules = {
        path.stem.removeprefix("cmd_").replace("_", "-")
        for path in (Path(__file__).parents[3] / "agentguard" / "cli").glob("cmd_*.py")
    }
    assert modules | {"serve", "view"} == NAMES - LAB_COMMANDS
    for summaries in SUMMARIES.values():
        for name, summary in summaries.items():
            assert f" {name} " in result.stdout
            assert summary in result.stdout


@pytest.mark.parametrize("name", sorted(NAMES))
def test_command_is_loaded_on_use(name: str) -> None:
    result = CliRunner().invoke(build_app(), [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage" in result.stdout


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_root_option_imports_no_command(option: str) -> None:
    code = f"""
import sys
from agentguard.cli.app import build_app
try:
    build_app()([{option!r}])
except SystemExit:
    pass
heavy = [name for name in ("agentguard.guard", "numpy", "sklearn", "sqlalchemy") if name in sys.modules]
sys.exit(repr(heavy) if heavy else 0)
"""
    result = run(code)
    assert result.returncode == 0, result.stderr


def test_misspelt_command_gets_a_suggestion() -> None:
    result = CliRunner().invoke(build_app(), ["diagnos"])
    assert result.exit_code == 2
    assert "Did you mean 'diagnose'?" in result.output


def test_output_is_utf_8_in_another_locale() -> None:
    code = (
        f"import sys; sys.argv[1:] = ['diagnose', {str(SAMPLE)!r}]; from agentguard.cli import main; main()"
    )
    result = run(code, encoding="cp1252")
    assert result.returncode in (0, 1), result.stderr
    assert result.stdout.decode("utf-8").strip()


@pytest.mark.parametrize("arguments", [["diagnose", "--json", str(SAMPLE)], ["taxonomy", "list"]])
def test_closed_pipe_ends_without_error(arguments: list[str]) -> None:
    code = f"import sys; sys.argv[1:] = {arguments!r}; from agentguard.cli import main; main()"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(writer)
    assert result.returncode == 0, result.stderr
    assert b"Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["--run-id", "a", "--watch", "folder"], [str(SAMPLE), "--watch", "folder"]]
)
def test_diagnose_takes_one_source_of_runs(arguments: list[str]) -> None:
    result = CliRunner().invoke(build_app(), ["diagnose", *arguments])
    assert result.exit_code == 2
    assert "name one source of runs" in result.output


def test_diagnose_with_run_id_selects_runs_of_the_files() -> None:
    paths = [str(path) for path in sorted((SAMPLE.parents[3] / "samples").glob("0[1-3]*.json"))]
    result = CliRunner().invoke(build_app(), ["diagnose", *paths, "--run-id", "02-teapot", "--json"])
    assert result.exit_code == 0
    assert [json.loads(line)["trajectory_id"] for line in result.stdout.splitlines()] == ["02-teapot"]


def test_diagnose_with_unknown_run_id_names_it() -> None:
    result = CliRunner().invoke(build_app(), ["diagnose", str(SAMPLE), "--run-id", "absent"])
    assert result.exit_code == 2
    assert "no run has the id 'absent'" in result.output
