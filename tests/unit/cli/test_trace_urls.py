"""Commands that read traces over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.trajectory.formats import load_records
from tests.support.trace_server import LangSmithContract, serve
from tests.unit.trajectory.formats.samples import SAMPLES, lines


@pytest.fixture
def contract(monkeypatch: pytest.MonkeyPatch) -> Iterator[LangSmithContract]:
    contract = LangSmithContract(project="sea", runs=lines("langsmith.jsonl"))
    with serve(contract) as url:
        monkeypatch.setenv("LANGSMITH_ENDPOINT", url)
        monkeypatch.setenv("LANGSMITH_API_KEY", "ls-key")
        yield contract


def test_diagnose_reads_traces_of_a_product(contract: LangSmithContract) -> None:
    result = CliRunner().invoke(build_app(), ["diagnose", "langsmith://sea", "--json"])
    assert result.exit_code == 0, result.output
    ids = {orjson.loads(line)["trajectory_id"] for line in result.stdout.splitlines()}
    assert ids == {record.trajectory.id for record in load_records(SAMPLES / "langsmith.jsonl")}


def test_convert_with_resume_writes_each_trace_once(contract: LangSmithContract, tmp_path: Path) -> None:
    url = f"langsmith:sea?limit=1&resume={tmp_path / 'read.jsonl'}"
    for number in (1, 2):
        arguments = ["convert", url, "-o", str(tmp_path / "runs.jsonl"), "--append"]
        assert CliRunner().invoke(build_app(), arguments).exit_code == 0
        assert len(load_records(tmp_path / "runs.jsonl")) == number
    assert CliRunner().invoke(build_app(), ["convert", url]).exit_code == 2


def test_wrong_key_is_an_error_with_the_remedy(
    contract: LangSmithContract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANGSMITH_API_KEY", "wrong")
    result = CliRunner().invoke(build_app(), ["validate", "langsmith:sea"])
    assert result.exit_code != 0
    assert "check LANGSMITH_API_KEY" in f"{result.output}{result.exception}"


def test_unknown_product_is_an_error_with_a_suggestion() -> None:
    result = CliRunner().invoke(build_app(), ["diagnose", "phoenx://project"])
    assert result.exit_code == 2
    assert "'phoenx' (did you mean phoenix?); there are: langfuse, langsmith, phoenix" in result.output
