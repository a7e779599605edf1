from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import FormatError
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records, read
from agentguard.trajectory.model import Record, Source, Usage
from agentguard.trajectory.serialization import encode_meta, encode_step
from tests.unit.trajectory.formats.samples import SAMPLES, records, sample


@pytest.fixture
def log() -> dict[str, Any]:
    """Return a log of one sample with events."""
    return dict(sample("inspect_log.json"))


def write_archive(path: Path, members: dict[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def split_log(log: dict[str, Any]) -> dict[str, bytes]:
    """Return the members of an archive for a log."""
    head = {key: value for key, value in log.items() if key != "samples"}
    members = {f"samples/{one['id']}_epoch_{one['epoch']}.json": one for one in log["samples"]}
    members = {"_journal/start.json": head, **members, "summaries.json": [], "header.json": head}
    return {name: json.dumps(value).encode() for name, value in members.items()}


class TestEvents:
    def test_messages_before_the_compaction_are_read(self, log: dict[str, Any]) -> None:
        steps = load_records(log)[0].trajectory.steps
        assert [(step.source, step.content) for step in steps] == [
            (Source.SYSTEM, "You read tide tables."),
            (Source.USER, "How high is the tide at Wyk?"),
            (Source.AGENT, "I ask for Wik."),
            (Source.USER, "Summary: the port is called Wyk."),
            (Source.AGENT, "I ask for Wyk."),
            (Source.AGENT, "I submit."),
        ]

    def test_call_that_the_state_has_lost_is_read(self, log: dict[str, Any]) -> None:
        last = load_records(log)[0].trajectory.steps[-1]
        assert [(call.name, call.arguments) for call in last.tool_calls] == [("submit", {"answer": "2 m"})]
        assert [seen.content for seen in last.observations] == ["2 m"]

    def test_error_of_a_tool_is_a_flag_and_a_text(self, log: dict[str, Any]) -> None:
        (seen,) = load_records(log)[0].trajectory.steps[2].observations
        assert (seen.content, seen.is_error, seen.tool) == ("there is no port Wik", True, "tide")

    def test_model_call_has_usage_times_and_agent(self, log: dict[str, Any]) -> None:
        step = load_records(log)[0].trajectory.steps[2]
        assert step.usage == Usage(prompt_tokens=25, completion_tokens=3, cached_tokens=20)
        assert (step.agent, step.model, step.stop_reason) == ("harbour", "one", "tool_calls")
        assert step.started_at is not None
        assert step.ended_at == step.started_at + 1

    def test_scorer_and_verdict_are_not_in_the_run(self, log: dict[str, Any]) -> None:
        (record,) = load_records(log)
        run = record.trajectory
        text = json.dumps([encode_meta(run), *(encode_step(step) for step in run.steps)])
        assert not any(word in text for word in ("3 m", "wrong", "gauge", "gold"))
        assert record.annotation.failed is True
        assert record.annotation.answer == "3 m"

    def test_limit_unknown_events_and_tools_are_read(self, log: dict[str, Any]) -> None:
        run = load_records(log)[0].trajectory
        assert (run.exit_status, run.unknown_parts) == ("message_limit", {"tempest": 1})
        assert [(tool.name, tool.description) for tool in run.tools] == [
            ("tide", "Return the tide of a port.")
        ]

    def test_failed_attempt_of_a_model_call_is_no_turn(self, log: dict[str, Any]) -> None:
        before = len(load_records(log)[0].trajectory.steps)
        event = dict(log["samples"][0]["events"][2]) | {"output": {"choices": []}, "error": "rate limit"}
        log["samples"][0]["events"].insert(2, event)
        assert len(load_records(log)[0].trajectory.steps) == before

    def test_wrong_range_of_a_pool_names_its_field(self, log: dict[str, Any]) -> None:
        log["samples"][0]["events"][2]["input_refs"] = [[0, "1"]]
        with pytest.raises(FormatError) as caught:
            load_records(log)
        assert caught.value.field == "samples[0].events[2].input_refs"

    def test_unknown_attachment_stays_a_reference(self, log: dict[str, Any]) -> None:
        log["samples"][0]["attachments"] = {}
        assert load_records(log)[0].trajectory.steps[0].content == "attachment://d0"


class TestMessages:
    def test_encrypted_reasoning_is_not_text(self) -> None:
        (record,) = records(SAMPLES / "inspect_log.messages.json")
        step = record.trajectory.steps[1]
        assert (step.reasoning, step.content) == ("I agree.", "Yes.")
        assert (record.annotation.failed, record.annotation.group) == (False, "tides/2")
        assert record.trajectory.id == "tides/2/epoch-2"

    def test_hosted_call_has_its_result(self) -> None:
        log = sample("inspect_log.messages.json")
        part = {"type": "tool_use", "id": "w1", "name": "web", "arguments": '{"q": "a"}', "result": "b"}
        log["samples"][0]["messages"][1]["content"] = [part | {"error": "timeout"}]
        step = load_records(log)[0].trajectory.steps[1]
        assert (step.tool_calls[0].arguments, step.observations[0].content) == ({"q": "a"}, "b")
        assert step.observations[0].is_error is True

    @pytest.mark.parametrize(
        ("scores", "failed"),
        [
            ({"a": {"value": "C"}, "b": {"value": 1}}, False),
            ({"a": {"value": "C"}, "b": {"value": "I"}}, None),
            ({"a": {"value": 0.4}, "b": {"value": False}}, True),
            ({"a": {"value": {"x": 1}}}, None),
            ({}, None),
        ],
    )
    def test_scores_without_contradiction_are_the_outcome(
        self, scores: dict[str, Any], failed: bool | None
    ) -> None:
        log = sample("inspect_log.messages.json")
        log["samples"][0]["scores"] = scores
        assert load_records(log)[0].annotation.failed is failed

    def test_sample_with_an_error_does_not_hide_the_others(self) -> None:
        log = sample("inspect_log.messages.json")
        log["samples"] += [{"id": 3, "messages": 5}, dict(log["samples"][0], epoch=3)]
        first, second, third = read(log)
        assert isinstance(second, UnreadableRecord)
        assert second.error.field == "samples[1].messages"
        assert [type(one) for one in (first, third)] == [Record, Record]

    def test_log_without_samples_names_the_reason(self) -> None:
        log = sample("inspect_log.messages.json")
        del log["samples"]
        with pytest.raises(FormatError, match="missing"):
            load_records(log)

    def test_equal_messages_without_ids_are_all_read(self) -> None:
        log = sample("inspect_log.messages.json")
        log["samples"][0]["messages"] *= 2
        assert len(load_records(log)[0].trajectory.steps) == 4


class TestArchive:
    def test_archive_equals_the_json_file(self, log: dict[str, Any], tmp_path: Path) -> None:
        path = write_archive(tmp_path / "inspect_log.eval", split_log(log))
        assert load_records(path) == load_records(log)
        assert load_records(tmp_path) == load_records(log)

    def test_unfinished_archive_is_read(self, log: dict[str, Any], tmp_path: Path) -> None:
        members = split_log(log)
        del members["header.json"]
        assert load_records(write_archive(tmp_path / "a.eval", members)) == load_records(log)

    def test_zstandard_is_read(self, log: dict[str, Any], tmp_path: Path) -> None:
        path = write_zstd_archive(tmp_path / "a.eval", split_log(log))
        assert load_records(path) == load_records(log)

    def test_zstandard_without_the_package_names_it(
        self, log: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write_zstd_archive(tmp_path / "a.eval", split_log(log))
        monkeypatch.setitem(sys.modules, "zstandard", None)
        with pytest.raises(FormatError, match="pip install zstandard"):
            load_records(path)

    def test_damaged_sample_does_not_hide_the_others(self, log: dict[str, Any], tmp_path: Path) -> None:
        members = split_log(log)
        members = {"samples/a.json": b"{", "samples/b.json": b"[]", **members}
        first, second, third = read(write_archive(tmp_path / "a.eval", members))
        assert isinstance(first, UnreadableRecord)
        assert isinstance(second, UnreadableRecord)
        assert "samples/b.json" in str(second.error)
        assert isinstance(third, Record)

    @pytest.mark.parametrize("position", [40, 200, 1_000])
    @pytest.mark.parametrize("is_zstd", [True, False])
    def test_damaged_bytes_give_typed_errors(
        self, log: dict[str, Any], tmp_path: Path, position: int, is_zstd: bool
    ) -> None:
        write = write_zstd_archive if is_zstd else write_archive
        path = write(tmp_path / "a.eval", split_log(log))
        data = bytearray(path.read_bytes())
        data[position : position + 30] = bytes(30)
        path.write_bytes(data)
        assert all(isinstance(one, Record | UnreadableRecord) for one in read(path))

    def test_other_zip_archive_names_the_reason(self, tmp_path: Path) -> None:
        with pytest.raises(FormatError, match=r"header\.json"):
            load_records(write_archive(tmp_path / "a.eval", {"a.txt": b"a"}))


def write_zstd_archive(path: Path, members: dict[str, bytes]) -> Path:
    """Write an archive with method 93, which Python 3.11 cannot write: patch the method of stored members."""
    zstandard = pytest.importorskip("zstandard")
    compressor = zstandard.ZstdCompressor()
    compressed = {name: compressor.compress(content) for name, content in members.items()}
    write_archive(path, compressed, method=zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            data[info.header_offset + 8] = 93
    position = data.find(b"PK\x01\x02")
    while position >= 0:
        data[position + 10] = 93
        position = data.find(b"PK\x01\x02", position + 4)
    path.write_bytes(data)
    return path


def test_error_text_beside_content_is_read() -> None:
    error = {"type": "output_limit", "message": "The output limit was exceeded."}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": "f", "arguments": {}}]},
        {"role": "tool", "content": "first lines", "tool_call_id": "c", "error": error, "notes": "cut"},
    ]
    value = {"eval": {"task": "t"}, "samples": [{"id": 1, "epoch": 1, "messages": messages}]}
    (record,) = load_records(value, format="inspect_log")
    (seen,) = record.trajectory.steps[0].observations
    assert (seen.content, seen.is_error) == ("first lines\nThe output limit was exceeded.", True)
    assert seen.extra["notes"] == "cut"
