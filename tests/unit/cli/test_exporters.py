"""``agentguard convert``: reports, and runs of a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from agentguard_server.viewer.export import HTML
from typer.testing import CliRunner, Result

from agentguard.cli.app import build_app
from agentguard.cli.exporters import exporter_registry
from agentguard.store import Store
from tests import viewer_runs


@pytest.fixture(autouse=True)
def installed() -> None:
    if "html" not in exporter_registry():
        exporter_registry().register("html", HTML)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"
    with Store.open(path) as opened:
        viewer_runs.recovered(opened)
    return path


def export(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), ["convert", *map(str, arguments)])


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


@pytest.mark.parametrize("to", ["atif", "openai_chat", "event_log", "html"])
def test_a_tenants_run_is_written_for_who_names_the_tenant(tmp_path: Path, to: str) -> None:
    path = tmp_path / "runs.db"
    with Store.open(path) as opened:
        viewer_runs.recovered(opened)
        found = opened.get_record(viewer_runs.RECOVERED)
        assert found is not None
        opened.write_run(replace(found, trajectory=replace(found.trajectory, id="theirs")), tenant="a")
    out = tmp_path / "out"
    named = export("theirs", "--store", path, "--to", to, "--tenant", "a", "-o", out)
    assert named.exit_code == 0, named.stderr
    assert out.read_bytes()
    for tenant in ("", "b"):
        assert export("theirs", "--store", path, "--to", to, "--tenant", tenant).exit_code == 2
    assert export(viewer_runs.RECOVERED, "--store", path, "--to", to, "--tenant", "a").exit_code == 2


def test_a_tenant_goes_with_a_store() -> None:
    result = export("samples/03-lantern.json", "--to", "atif", "--tenant", "a")
    assert result.exit_code == 2
    assert "--store" in result.stderr


def test_what_cannot_be_one_document_is_said(store: Path) -> None:
    for arguments in (["a", "b"], ["nobody", "--store", store], ["samples"]):
        result = export(*arguments, "--to", "html")
        assert result.exit_code == 2
        assert "document" in result.stderr or "no run nobody" in result.stderr
