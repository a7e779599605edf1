"""``agentguard export``: documents for people, and runs of a store."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from agentguard_server.viewer.export import HTML
from typer.testing import CliRunner, Result

from agentguard.cli.app import build
from agentguard.cli.exporting import exporters
from agentguard.store import Store
from tests import viewer_runs


@pytest.fixture(autouse=True)
def installed() -> None:
    if "html" not in exporters():
        exporters().register("html", HTML)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"
    with Store.open(path) as opened:
        viewer_runs.recovered(opened)
    return path


def export(*arguments: object) -> Result:
    return CliRunner().invoke(build(), ["export", *map(str, arguments)])


def test_a_file_becomes_a_page_with_its_diagnosis(tmp_path: Path) -> None:
    out = tmp_path / "run.html"
    export("samples/03-lantern.json", "--to", "html", "-o", out)
    text = out.read_text(encoding="utf-8")
    assert text.lstrip().startswith("<!doctype html>")
    assert "No failure found" in text
    assert "<script" not in text


def test_a_stored_run_becomes_a_page_with_its_recoveries(store: Path) -> None:
    text = export(viewer_runs.RECOVERED, "--store", store, "--to", "html").stdout
    assert "Went wrong, and was recovered" in text
    assert "undid book_room, hold_money" in text


def test_a_stored_run_is_written_in_any_format(store: Path) -> None:
    assert orjson.loads(export(viewer_runs.RECOVERED, "--store", store, "--to", "atif").stdout)["steps"]


def test_what_cannot_be_one_document_is_said(store: Path) -> None:
    for arguments in (["a", "b"], ["nobody", "--store", store], ["samples"]):
        result = export(*arguments, "--to", "html")
        assert result.exit_code == 2
        assert "document" in result.stderr or "no run nobody" in result.stderr
