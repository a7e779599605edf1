"""Contract of all registered trajectory formats, checked on their samples.

A sample of format ``x`` is a file ``samples/x.json``, ``x.jsonl``, ``x.txt``, ``x.traj`` or
``x.<anything>.json`` (and so on), or a folder ``x`` or ``x.<anything>``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import atif
import orjson
import pytest

from agentguard.errors import AgentGuardError, InputError
from agentguard.trajectory.event_log.log_file import EventLog, read_log
from agentguard.trajectory.event_log.recorder import build_events
from agentguard.trajectory.formats.base import UnreadableRecord, WritableFormat, formats
from agentguard.trajectory.formats.reader import load_records, read
from agentguard.trajectory.model import Annotation, Record, Source, Step
from agentguard.trajectory.redaction import Redactor
from agentguard.trajectory.serialization import encode_meta, encode_step

SAMPLES = Path(__file__).with_name("samples")
PATHS = sorted(path for path in SAMPLES.iterdir() if path.name[0] != ".")
FILES = [path for path in PATHS if path.is_file()]
JUNK: list[Any] = [
    *({}, [], "", "text", {"a": 1}, [1], [None], [[]], {"messages": None}, {"messages": [{}]}),
    *({"messages": [{"role": "user", "content": 5}]}, {"history": [1], "mistake_step": "x"}, {"traj": {}}),
    *(
        {"traj": [{"role": 1}], "reward": "x"},
        {"steps": [], "schema_version": "ATIF-v9"},
        {"event": "header"},
    ),
    *({"event": "step"}, {"output": [1], "object": "response"}, {"trajectory": [1]}, {"resourceSpans": 1}),
]

LOGS = frozenset(
    {
        "claude_code",
        "codex_cli",
        "codex_exec",
        "event_log",
        "gemini_cli",
        "langfuse",
        "langsmith",
        "model_requests",
        "openai_responses",
        "otel_spans",
        "otlp_json",
    }
)
"""Formats whose runs span several values of a file."""


def format_of(path: Path) -> str:
    return path.name.partition(".")[0]


def values_of(path: Path) -> list[Any]:
    """Return the values that an importer receives one by one, or the whole list."""
    text = path.read_text("utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    if path.suffix == ".txt":
        return [text]
    value, format = json.loads(text), formats().get(format_of(path))
    if isinstance(value, list) and format.score_match(value[0]) > format.score_match(value):
        return value
    return [value]


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for i in range(depth):
        value = {"a": value} if i % 2 else [value]
    return {"a": value}


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for one in value.values():
            yield from texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)
    elif isinstance(value, str):
        yield value


@pytest.fixture(params=PATHS, ids=lambda path: path.name)
def path(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def file(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_every_format_has_a_sample_and_every_sample_a_format() -> None:
    assert {format_of(path) for path in PATHS} == set(formats())


@pytest.mark.parametrize("name", formats().names())
def test_format_describes_itself(name: str) -> None:
    format = formats().get(name)
    assert format.name == name
    assert 10 < len(format.summary) < 100
    assert not format.summary.endswith(".")


class TestReading:
    def test_sample_is_recognised_and_complete(self, path: Path) -> None:
        found = list(read(path))
        assert [one.error for one in found if isinstance(one, UnreadableRecord)] == []
        assert found
        assert {one.trajectory.format for one in found if isinstance(one, Record)} == {format_of(path)}

    def test_explicit_format_gives_same_result(self, path: Path) -> None:
        assert load_records(path, format=format_of(path)) == load_records(path)

    def test_stream_gives_same_records_as_path(self, file: Path) -> None:
        wanted = [(r.trajectory.steps, r.annotation) for r in load_records(file)]
        for stream in (io.BytesIO(file.read_bytes()), io.StringIO(file.read_text("utf-8"))):
            assert [(r.trajectory.steps, r.annotation) for r in load_records(stream)] == wanted

    def test_parsed_objects_give_same_records_as_path(self, file: Path) -> None:
        values = values_of(file)
        if isinstance(values[0], str):
            pytest.skip("text has no parsed form")
        value = values if len(values) > 1 else values[0]
        found = [(r.trajectory.steps, r.annotation) for r in load_records(value)]
        assert found == [(r.trajectory.steps, r.annotation) for r in load_records(file)]

    def test_byte_order_mark_and_white_space_are_ignored(self, file: Path) -> None:
        wanted = [r.trajectory.steps for r in load_records(file)]
        data = b"\xef\xbb\xbf \n\r\n" + file.read_bytes() + b"\n\n"
        assert [r.trajectory.steps for r in load_records(io.BytesIO(data))] == wanted

    def test_repeated_read_gives_same_result(self, path: Path) -> None:
        assert load_records(path) == load_records(path)


class TestRuns:
    def test_ids_are_present_and_unique(self, path: Path) -> None:
        ids = [record.trajectory.id for record in load_records(path)]
        assert all(ids)
        assert len(set(ids)) == len(ids)

    def test_steps_are_numbered_and_name_a_speaker(self, path: Path) -> None:
        for record in load_records(path):
            steps = record.trajectory.steps
            assert [step.index for step in steps] == list(range(len(steps)))
            assert all(step.agent and isinstance(step.source, Source) for step in steps)
            assert any(step.source is Source.AGENT for step in steps) or len(steps) < 2

    def test_source_locations_ascend(self, path: Path) -> None:
        if format_of(path) in ("langfuse", "langsmith", "otel_spans", "otlp_json", "trail"):
            pytest.skip("spans stand in any order in their source")
        for record in load_records(path):
            places = [s.source_index for s in record.trajectory.steps if s.source_index is not None]
            assert all(a <= b for a, b in pairwise(places))

    def test_observations_answer_calls_of_their_step(self, path: Path) -> None:
        for record in load_records(path):
            for step in record.trajectory.steps:
                ids = {call.id for call in step.tool_calls}
                assert all(seen.call_id is None or seen.call_id in ids for seen in step.observations)

    def test_run_excludes_its_annotations(self, path: Path) -> None:
        for record in load_records(path):
            run, judged = record.trajectory, record.annotation
            steps = [*run.steps, *(step for branch in run.branches for step in branch.steps)]
            head = encode_meta(run)
            said = "\n".join(texts([head, *(encode_step(step) for step in steps)]))
            for cause in (judged.root_cause, *judged.failures):
                assert cause is None or not cause.reason or cause.reason not in said
            for key in ("reward", "success", "label", "won", "is_correct", "ground_truth"):
                assert key not in run.extra
                assert all(key not in step.extra for step in steps)

    def test_final_answer_is_separate(self, path: Path) -> None:
        for record in load_records(path):
            assert not record.annotation.answer or record.annotation.answer not in record.trajectory.task


class TestRoundTrips:
    def test_event_log_round_trips(self, path: Path, tmp_path: Path) -> None:
        records = load_records(path)
        with EventLog(tmp_path / "log.jsonl") as log:
            for record in records:
                log.extend(build_events(record))
        assert list(read_log(tmp_path / "log.jsonl")) == records
        assert load_records(tmp_path / "log.jsonl") == records

    def test_atif_round_trips_and_is_valid(self, path: Path) -> None:
        for record in load_records(path):
            document = orjson.loads(orjson.dumps(formats().get("atif").dump(record, annotation=True)))
            atif.Trajectory.model_validate(document)
            assert load_records(document) == [record]

    @pytest.mark.parametrize("name", [n for n in formats() if isinstance(formats().get(n), WritableFormat)])
    def test_exported_file_is_recognised(self, path: Path, name: str) -> None:
        format = formats().get(name)
        assert isinstance(format, WritableFormat)
        for record in load_records(path):
            data = format.dump(record)
            if record.trajectory.steps:
                assert load_records(data, format=name)
                assert load_records(data) == load_records(data, format=name)

    @pytest.mark.parametrize("name", ["atif", "event_log"])
    def test_annotation_is_exported_only_on_request(self, path: Path, name: str) -> None:
        format = formats().get(name)
        assert isinstance(format, WritableFormat)
        for record in load_records(path):
            (back,) = load_records(format.dump(record))
            assert back == Record(trajectory=record.trajectory, annotation=Annotation())

    def test_redaction_keeps_run_without_secrets(self, path: Path) -> None:
        for record in load_records(path):
            redacted = Redactor().redact(record)
            assert redacted.counts or redacted.record == record


class TestGarbage:
    @pytest.mark.parametrize("name", formats().names())
    @pytest.mark.parametrize("value", JUNK, ids=lambda value: str(value)[:40])
    def test_junk_gives_typed_error_or_record(self, name: str, value: Any) -> None:
        format = formats().get(name)
        assert 0 <= format.score_match(value) <= 1
        try:
            for record in format.parse(value, name="junk"):
                assert isinstance(record, Record | UnreadableRecord)
        except InputError as error:
            assert error.reason

    @pytest.mark.parametrize("name", formats().names())
    @pytest.mark.parametrize("depth", [150, 300, 1_100, 100_000])
    def test_deep_nesting_gives_typed_error_or_record(self, name: str, depth: int) -> None:
        text = '{"a":' * depth + "1" + "}" * depth
        found = list(read(io.StringIO(text), format=name))
        assert all(isinstance(one, Record | UnreadableRecord) for one in found)
        if depth > 200 and name != "event_log":
            (broken,) = found
            assert isinstance(broken, UnreadableRecord)
            assert "deeper" in str(broken.error)

    @pytest.mark.parametrize("name", formats().names())
    def test_binary_gives_typed_error(self, name: str) -> None:
        with pytest.raises(AgentGuardError):
            load_records(io.BytesIO(bytes(range(256)) * 4), format=name)

    @pytest.mark.parametrize("name", formats().names())
    @pytest.mark.parametrize("data", [b"", b"  \n ", b"\xef\xbb\xbf"])
    def test_empty_input_gives_input_error(self, name: str, data: bytes) -> None:
        with pytest.raises(InputError, match="empty"):
            load_records(io.BytesIO(data), format=name)

    def test_truncated_sample_gives_typed_error_or_record(self, file: Path) -> None:
        data = file.read_bytes()
        for end in range(1, len(data), max(1, len(data) // 40)):
            try:
                found = list(read(io.BytesIO(data[:end]), format=format_of(file)))
            except InputError:
                continue
            assert all(isinstance(one, Record | UnreadableRecord) for one in found)

    def test_broken_record_does_not_hide_others(self, file: Path) -> None:
        name = format_of(file)
        if file.suffix == ".txt" or name in LOGS:
            pytest.skip("its records are not one value each; tested with the format")
        good = orjson.dumps(values_of(file)[0])
        runs = ["Record"] * len(load_records(io.BytesIO(good), format=name))
        for data in (
            good + b"\n{broken\n" + good + b"\n[1]\n",
            b"[" + good + b",{broken}," + good + b",[1]]",
        ):
            found = list(read(io.BytesIO(data), format=name))
            kinds = [type(one).__name__ for one in found]
            assert kinds[: 2 * len(runs) + 1] == [*runs, "UnreadableRecord", *runs], kinds
            broken = found[len(runs)]
            assert isinstance(broken, UnreadableRecord)
            assert broken.error.record == 1


def test_step_of_sample_has_text(path: Path) -> None:
    for record in load_records(path):
        for step in record.trajectory.steps:
            for field, text in step.texts():
                assert step.text(field) == text
            assert isinstance(step, Step)
