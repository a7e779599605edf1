from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agentguard.cli.app import build_app
from agentguard.store import Store
from tests.otlp_receiver import receiving
from tests.viewer_server import SAMPLES, write_samples


def call(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), ["convert", *map(str, arguments)])


def test_runs_of_files_are_sent(tmp_path: Path) -> None:
    with receiving(tmp_path) as one:
        result = call(*sorted(SAMPLES.glob("*.json"))[:2], "--to", "otlp", "--otlp-endpoint", one.url)
        assert result.exit_code == 0, result.output
        assert "2 runs sent to" in result.stderr
        assert len(one.checked()) == 2


def test_runs_of_a_store_are_sent_with_their_diagnoses(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        ids = write_samples(store, most=4)
        store.flush(20)
    with receiving(tmp_path) as one:
        result = call(
            ids[-1], "nobody", "--store", tmp_path / "s.db", "--to", "otlp", "--otlp-endpoint", one.url,
            "--otlp-encoding", "json",
        )  # fmt: skip
        assert result.exit_code == 1
        assert "no run nobody" in result.stderr
        assert ", 0 evaluations" not in result.stderr
        assert "agentguard.verdict" in str(one.checked())


def test_run_of_tenant_is_sent_if_tenant_is_named(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        ids = write_samples(store, most=1)
        store.flush(20)
        record = store.get_record(ids[0])
        assert record is not None
        theirs = replace(record.trajectory, id="theirs")
        store.write_run(replace(record, trajectory=theirs), tenant="a")
    with receiving(tmp_path) as one:
        given = ("theirs", "--store", tmp_path / "s.db", "--to", "otlp", "--otlp-endpoint", one.url)
        assert call(*given).exit_code == 2
        assert not one.noted()
        assert call(*given, "--tenant", "a").exit_code == 0
        assert len(one.checked()) == 1


def test_collector_comes_from_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving(tmp_path, "--header", "api-key=s3cret", "--reject", "1") as one:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", one.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret")
        result = call(SAMPLES / "02-teapot.json", "--to", "otlp", "--no-otlp-content")
        assert result.exit_code == 1
        assert "rejected by the collector: 1" in result.stderr
        assert "s3cret" not in result.output
        assert "teapot" not in str(one.checked()[0]["request"]).replace("02-teapot", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--to", "otlp"), "there is no collector"),
        (("--to", "otlp", "--otlp-endpoint", "x"), "address is not valid"),
        (("--to", "otlp", "--otlp-endpoint", "http://x", "--otlp-header", "s3cret"), "NAME=VALUE"),
        (("--to", "otlp", "--otlp-endpoint", "http://x", "--otlp-encoding", "xml"), "protobuf or json"),
        (("--to", "atif", "--otlp-endpoint", "http://x"), "need --to otlp"),
    ],
)
def test_invalid_arguments_give_one_clear_line(
    arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    result = call(SAMPLES / "02-teapot.json", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "s3cret" not in result.stderr


def test_collector_rejection_ends_the_command(tmp_path: Path) -> None:
    with receiving(tmp_path, "--answers", "401") as one:
        result = call(
            SAMPLES / "02-teapot.json",
            "--to",
            "otlp",
            "--otlp-endpoint",
            one.url,
            "--otlp-header",
            "a=s3cret",
        )
        assert result.exit_code == 2
        assert "rejects the credentials" in result.stderr
        assert "s3cret" not in result.stderr
