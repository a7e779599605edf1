from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agentguard.cli.app import build_app
from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import Annotation

SAMPLES = Path(__file__).resolve().parents[2] / "contract" / "samples"
TASK = {"role": "user", "content": "mail ann@example.org, TCK-1"}
RUN = json.dumps({"messages": [TASK, {"role": "assistant", "content": "ok"}]})


def call(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(build_app(), [str(one) for one in arguments], input=stdin)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text(RUN)
    return path


class TestImport:
    def test_every_format_is_imported_into_one_log(self, tmp_path: Path) -> None:
        paths = [path for path in sorted(SAMPLES.iterdir()) if path.suffix != ".folder"]
        log = tmp_path / "log.jsonl"
        result = call("convert", *paths, "-o", log)
        assert result.exit_code == 0, result.output
        assert load_records(log) == [record for path in paths for record in load_records(path)]

    def test_existing_log_is_kept_by_default(self, run: Path, tmp_path: Path) -> None:
        log = tmp_path / "log.jsonl"
        assert call("convert", run, "-o", log).exit_code == 0
        refused = call("convert", run, "-o", log)
        assert refused.exit_code == 2
        assert "--append adds to it" in refused.stderr
        assert call("convert", run, "-o", log, "--append").exit_code == 0
        assert len(load_records(log)) == 2

    def test_unreadable_input_is_reported_and_the_rest_is_imported(self, run: Path, tmp_path: Path) -> None:
        mixed = tmp_path / "mixed.jsonl"
        mixed.write_text(f"{RUN}\n{{oops\n{RUN}\n")
        log = tmp_path / "log.jsonl"
        result = call("convert", tmp_path / "nothing.json", mixed, run, "-o", log)
        assert result.exit_code == 1
        assert f"not read: {mixed}, record 1: not valid JSON" in result.stderr
        assert "nothing.json: cannot be opened" in result.stderr
        assert "3 runs written" in result.stderr
        assert len(load_records(log)) == 3

    def test_empty_import_leaves_no_file(self, tmp_path: Path) -> None:
        log = tmp_path / "log.jsonl"
        assert call("convert", tmp_path / "nothing.json", "-o", log).exit_code == 2
        assert not log.exists()

    def test_standard_input_is_read(self, tmp_path: Path) -> None:
        log = tmp_path / "log.jsonl"
        assert call("convert", "-", "-o", log, stdin=RUN).exit_code == 0
        assert load_records(log)[0].trajectory.task.startswith("mail")

    def test_import_redacts_secrets(self, run: Path, tmp_path: Path) -> None:
        log = tmp_path / "log.jsonl"
        result = call("convert", run, "-o", log, "--redact", "--pattern", r"ticket=TCK-\d+")
        assert result.exit_code == 0
        assert "redacted: email 2, ticket 2" in result.stderr
        assert "ann@" not in log.read_text()
        assert "TCK" not in log.read_text()

    @pytest.mark.parametrize("pattern", ["nothing", "a=", "x=(", "a b=c"])
    def test_invalid_pattern_is_rejected(self, run: Path, tmp_path: Path, pattern: str) -> None:
        assert call("convert", run, "-o", tmp_path / "x", "--pattern", pattern).exit_code == 2


class TestExport:
    @pytest.mark.parametrize("to", ["atif", "openai_chat", "event_log"])
    def test_single_run_is_exported(self, run: Path, tmp_path: Path, to: str) -> None:
        out = tmp_path / "out.json"
        assert call("convert", run, "--to", to, "-o", out).exit_code == 0
        (record,) = load_records(out)
        assert record.trajectory.steps == load_records(run)[0].trajectory.steps

    def test_several_runs_are_exported_as_lines(self) -> None:
        path = SAMPLES / "tau_bench.json"
        result = call("convert", path, "--to", "atif")
        assert result.exit_code == 0
        values = [json.loads(line) for line in result.stdout.splitlines()]
        assert [one.trajectory for one in load_records(values)] == [
            one.trajectory for one in load_records(path)
        ]

    def test_annotation_is_exported_only_on_request(self) -> None:
        path = SAMPLES / "who_and_when.json"
        without = load_records(json.loads(call("convert", path, "--to", "atif").stdout))
        assert without[0].annotation == Annotation()
        with_it = load_records(json.loads(call("convert", path, "--to", "atif", "--annotation").stdout))
        assert with_it == load_records(path)

    def test_import_only_format_is_rejected(self, run: Path) -> None:
        result = call("convert", run, "--to", "mast")
        assert result.exit_code == 2
        assert "atif, event_log, openai_chat" in result.stderr

    def test_unknown_target_is_rejected_with_the_targets(self, run: Path) -> None:
        result = call("convert", run, "--to", "openai_chta")
        assert result.exit_code == 2
        assert "(did you mean openai_chat?)" in result.stderr
        assert all(name in result.stderr for name in ("atif", "event_log", "html", "otlp", "sft"))
        assert "langfuse" not in result.stderr

    def test_existing_file_is_kept(self, run: Path, tmp_path: Path) -> None:
        out = tmp_path / "out.json"
        out.write_text("mine")
        assert call("convert", run, "--to", "atif", "-o", out).exit_code == 2
        assert out.read_text() == "mine"
        assert call("convert", run, "--to", "atif", "-o", out, "--force").exit_code == 0
        assert len(load_records(out)) == 1
        assert call("convert", run, "--to", "atif", "-o", tmp_path / "no" / "x").exit_code == 2

    def test_export_redacts_secrets(self, run: Path) -> None:
        result = call("convert", run, "--to", "openai_chat", "--redact")
        assert "[redacted:email:" in result.stdout
        assert "redacted: email 1" not in result.stdout


class TestValidate:
    def test_all_samples_are_valid(self) -> None:
        result = call("validate", *sorted(SAMPLES.iterdir()))
        assert result.exit_code == 0, result.output
        assert "all records are readable" in result.stdout

    def test_json_output_lists_records(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.jsonl"
        path.write_text(f'{RUN}\n{{"messages": [{{}}]}}\n{RUN}\n')
        result = call("validate", path, "--json")
        assert result.exit_code == 1
        given = json.loads(result.stdout)
        assert (given["status"], given["runs"], given["steps"], given["broken"]) == ("some_broken", 2, 4, 1)
        (source,) = given["sources"]
        assert source["formats"] == {"openai_chat": 2}
        (error,) = source["broken"]
        assert error == {
            "code": "format_error",
            "reason": "missing",
            "file": str(path),
            "record": 1,
            "field": "messages[0].role",
            "hint": None,
        }

    def test_every_broken_record_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.jsonl"
        path.write_text(f"{RUN}\n{{oops\n{RUN}\n[oops\n")
        result = call("validate", path)
        assert result.exit_code == 1
        shown = "".join(result.stdout.split())
        assert "record1:notvalidJSON" in shown
        assert "record3:notvalidJSON" in shown

    def test_many_broken_records_are_grouped_by_reason(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.jsonl"
        path.write_text(f"{RUN}\n" + '{"messages": [{}]}\n' * 50)
        lines = call("validate", path).stdout.splitlines()
        assert sum(": record" in line or ", record" in line for line in lines) == 3
        assert any("47 more for the same reason: missing" in line for line in lines)
        assert len(json.loads(call("validate", path, "--json").stdout)["sources"][0]["broken"]) == 50

    def test_unknown_parts_are_listed_with_type_and_count(self, tmp_path: Path) -> None:
        path = tmp_path / "run.json"
        parts = [{"type": "text", "text": "See."}, {"type": "image_url"}, {"type": "image_url"}]
        path.write_text(json.dumps({"messages": [{"role": "user", "content": parts}]}))
        assert "2 parts were not understood: 2 of type image_url" in call("validate", path).stdout
        (source,) = json.loads(call("validate", path, "--json").stdout)["sources"]
        assert source["unknown_parts"] == {"image_url": 2}
        diagnosis = json.loads(call("diagnose", path, "--json").stdout)
        assert "2 parts were not understood: 2 of type image_url" in diagnosis["notes"]

    def test_piped_table_is_not_cut(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("COLUMNS", raising=False)
        path = tmp_path / ("a" * 100 + ".json")
        path.write_text(RUN)
        assert str(path) in call("validate", path).stdout
        assert max(map(len, call("diagnose", path).stdout.splitlines())) < 1_000

    @pytest.mark.parametrize("text", ["", '{"some": "thing"}', "\x00\x01"])
    def test_unusable_file_has_exit_status_2(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "x.json"
        path.write_text(text)
        assert call("validate", path).exit_code == 2
        assert json.loads(call("validate", path, "--json").stdout)["status"] == "unusable"

    def test_explicit_format_is_used(self, run: Path) -> None:
        assert call("validate", run, "--format", "openai_chat").exit_code == 0
        assert call("validate", run, "--format", "tau_bench").exit_code == 2
        assert call("validate", run, "--format", "nonesuch").exit_code == 2

    def test_file_name_cannot_control_the_terminal(self, tmp_path: Path) -> None:
        path = tmp_path / "\x1b[2Jx.json"
        path.write_text("")
        assert "\x1b[2J" not in call("validate", path).stdout


class TestBatch:
    def test_dry_run_counts_rows_and_writes_none(self, run: Path, tmp_path: Path) -> None:
        result = call("convert", run, "--batch-output", tmp_path / "out", "--dry-run")
        assert result.exit_code == 0, result.output
        assert "1 file, 1 row, 0 of them done" in result.stdout
        assert not (tmp_path / "out" / "runs").exists()

    @pytest.mark.parametrize("option", [("--output", "log.jsonl"), ("--store", "runs.db"), ("--to", "html")])
    def test_out_excludes_other_targets(self, run: Path, tmp_path: Path, option: tuple[str, str]) -> None:
        assert call("convert", run, "--batch-output", tmp_path / "out", *option).exit_code == 2

    def test_out_needs_runs(self, tmp_path: Path) -> None:
        result = call("convert", "--batch-output", tmp_path / "out")
        assert (result.exit_code, "name the files" in result.stderr) == (2, True)
