"""``agentguard convert``: reports, and runs of a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from agentguard_server.viewer.export import HTML
from typer.testing import CliRunner, Result

from agentguard.cli.app import build_app
from agentguard.cli.document_export import exporter_registry
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


def test_file_is_exported_as_page_with_its_diagnosis(tmp_path: Path) -> None:
    out = tmp_path / "run.html"
    export("samples/03-lantern.json", "--to", "html", "-o", out)
    text = out.read_text(encoding="utf-8")
    assert text.lstrip().startswith("<!doctype html>")
    assert "No failure found" in text
    assert "<script" not in text


def test_stored_run_is_exported_as_page_with_its_recoveries(store: Path) -> None:
    text = export(viewer_runs.RECOVERED, "--store", store, "--to", "html").stdout
    assert "Failed and recovered" in text
    assert "compensated book_room, hold_money" in text


def test_stored_run_is_exported_in_any_format(store: Path) -> None:
    assert orjson.loads(export(viewer_runs.RECOVERED, "--store", store, "--to", "atif").stdout)["steps"]


@pytest.mark.parametrize("to", ["atif", "openai_chat", "event_log", "html"])
def test_run_of_tenant_is_exported_if_tenant_is_named(tmp_path: Path, to: str) -> None:
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


def test_tenant_option_requires_a_store() -> None:
    result = export("samples/03-lantern.json", "--to", "atif", "--tenant", "a")
    assert result.exit_code == 2
    assert "--store" in result.stderr


def test_several_runs_cannot_be_one_document(store: Path) -> None:
    for arguments in (["a", "b"], ["nobody", "--store", store], ["samples"]):
        result = export(*arguments, "--to", "html")
        assert result.exit_code == 2
        assert "document" in result.stderr or "no run nobody" in result.stderr
