from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from agentguard.cli import cmd_taxonomy
from agentguard.errors import TaxonomyError
from tests.unit.taxonomy.test_catalog import MINE, WALK

runner = CliRunner()


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    cmd_taxonomy.register(app)
    return runner.invoke(app, ["taxonomy", *arguments], env={"COLUMNS": "200"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text(MINE)
    (tmp_path / "crosswalk.yaml").write_text(WALK)
    return tmp_path


def test_list_shows_taxonomies() -> None:
    assert "agent_error" in run("list").output
    names = [one["name"] for one in json.loads(run("list", "--json").stdout)]
    assert names == ["agent_error", "agentrx", "fault_model", "mast", "response_safety", "trail"]


def test_show_describes_a_taxonomy() -> None:
    assert "step_repetition" in run("show", "mast").output
    shown = json.loads(run("show", "mast", "--json").stdout)
    assert len(shown["codes"]) == 14
    assert shown["source"]["arxiv"] == "2503.13657"


def test_show_describes_a_code() -> None:
    text = run("show", "mast:step_repetition").output
    assert "Steps repeated" in text
    assert "is close to" in text
    assert json.loads(run("show", "mast:step_repetition", "--json").stdout)["group"] == "specification"


@pytest.mark.parametrize("name", ["Tool failed", "tool FAILED", "system.tool_execution_error"])
def test_show_finds_a_kind_by_title_and_bare_code(name: str) -> None:
    result = run("show", name)
    assert result.exit_code == 0, result.output
    assert "agent_error:system.tool_execution_error" in result.output
    assert "Tool failed" in result.output


def test_show_of_an_unknown_kind_suggests_titles() -> None:
    result = run("show", "Tool fails")
    assert isinstance(result.exception, TaxonomyError)
    assert "did you mean 'Tool failed'" in str(result.exception)


def test_map_shows_links() -> None:
    assert "trail:goal_deviation" in run("map", "mast:task_derailment").output
    links = json.loads(run("map", "mast:task_derailment", "--to", "trail", "--json").stdout)
    assert [(one["relation"], one["to"]) for one in links] == [("close", "trail:goal_deviation")]
    assert "nothing corresponds" in run("map", "response_safety:safe").output


def test_custom_folder_is_read(folder: Path) -> None:
    assert "mine" in run("list", "--taxonomies", str(folder)).output
    assert "mast:step_repetition" in run("map", "mine:too_loud", "--taxonomies", str(folder)).output


def test_unknown_names_are_errors_of_the_root_command() -> None:
    error = run("show", "mist").exception
    assert isinstance(error, TaxonomyError)
    assert "the taxonomies are: agent_error" in str(error)


def test_validate_accepts_shipped_files() -> None:
    result = run("validate")
    assert result.exit_code == 0
    assert result.output.count("ok ") == 7


def test_validate_distinguishes_valid_and_invalid_files(folder: Path) -> None:
    wrong = folder / "wrong.yaml"
    wrong.write_text(MINE)
    result = run("validate", str(folder / "mine.yaml"), str(wrong), str(folder / "crosswalk.yaml"), "--json")
    assert result.exit_code == 1
    assert [one["ok"] for one in json.loads(result.stdout)] == [True, False, True]
    (folder / "crosswalk.yaml").write_text(WALK.replace("too_loud", "too_soft"))
    assert "links[0].from" in run("validate", str(folder / "crosswalk.yaml")).output
