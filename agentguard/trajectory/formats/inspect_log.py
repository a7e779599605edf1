"""Inspect AI logs: ``.eval`` archives and ``.json`` files, one run for each sample and epoch.

``scores``, ``target``, ``metadata`` and ``store`` of a sample are in the annotation. The run failed if its
scores state it without contradiction: "I", "N", 0 or false against "C", 1 or true. The epochs of a sample are
one group.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._chat_messages import parse_chat, parse_tool_specs
from agentguard.trajectory.formats._inspect_sample import InspectSample, convert_usage
from agentguard.trajectory.formats._label_fields import parse_verdict
from agentguard.trajectory.formats._stream_reader import MAX_RECORD_BYTES
from agentguard.trajectory.formats.base import UnreadableRecord, parse_runs
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, Step, Trajectory, Usage
from agentguard.trajectory.safe_json import loads
from agentguard.trajectory.usage import add_run_totals, parse_usage

_HEADERS = ("header.json", "_journal/start.json")
_SAMPLE_PREFIX = "samples/"
_FACTS = ("epoch", "error", "sandbox", "total_time", "working_time", "started_at", "completed_at")
_LETTERS = {"C": True, "I": False, "N": False}
_ANNOTATION_FIELDS = ("scores", "target", "metadata", "store", "choices")
_ZSTD_METHOD = 93
_LOCAL_HEADER = struct.Struct("<26xHH")


class InspectLog:
    """Importer of Inspect logs."""

    name = "inspect_log"
    summary = "Inspect AI logs (.eval and .json), a run for each sample and epoch"
    suffixes = (".eval",)

    def score_match(self, value: Any) -> float:
        """Return a positive score for a log with its ``eval`` and ``plan``."""
        if not isinstance(value, dict) or not isinstance(value.get("eval"), Mapping):
            return 0.0
        return 0.97 if {"status", "version"} <= value.keys() and "task" in value["eval"] else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs of a log. Raises FormatError if it has no samples."""
        node = JsonNode.from_value(value)
        if "samples" not in node:
            raise node.build_error("samples", "missing", hint="the log was read or written with header_only")
        evaluation = node.node("eval")
        samples = ((one, f"samples[{i}]") for i, one in enumerate(node.items("samples")))
        yield from parse_runs(samples, lambda sample: _parse_sample(sample, evaluation, name))

    def parse_file(self, path: Path, *, name: str) -> Iterator[Record | UnreadableRecord] | None:
        """Yield the runs of an ``.eval`` archive, one sample in memory at a time; None for another file."""
        return _iter_archive(path, name) if zipfile.is_zipfile(path) else None


def _iter_archive(path: Path, name: str) -> Iterator[Record | UnreadableRecord]:
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise FormatError(f"not a readable zip archive: {error}") from None
    with archive:
        members = {info.filename: info for info in archive.infolist()}
        header = next((members[key] for key in _HEADERS if key in members), None)
        if header is None:
            raise FormatError(
                "a zip archive without header.json", hint="only Inspect logs are read from .eval"
            )
        evaluation = JsonNode.from_value(loads(_read_member(archive, header))).node("eval")
        for filename, info in members.items():
            if not filename.startswith(_SAMPLE_PREFIX) or not filename.endswith(".json"):
                continue
            try:
                sample = JsonNode.from_value(loads(_read_member(archive, info)), filename)
                yield _parse_sample(sample, evaluation, name)
            except InputError as error:
                yield UnreadableRecord(
                    error=FormatError(error.reason, field=error.field or filename, hint=error.hint)
                )


def _parse_sample(sample: JsonNode, evaluation: JsonNode, name: str) -> Record:
    content = InspectSample(sample)
    content.collect()
    chat = parse_chat(content.messages, path=sample.field_path("messages"))
    task = evaluation.text_or("task") or name
    id, epoch = sample.scalar("id"), sample.scalar_or("epoch", "1")
    unknown_parts = Counter(chat.unknown_parts)
    unknown_parts.update(content.unknown_events)
    trajectory = Trajectory(
        id=f"{task}/{id}/epoch-{epoch}",
        format=FORMAT.name,
        task=chat.task,
        steps=tuple(_set_end(step, content.end_times) for step in chat.steps),
        tools=parse_tool_specs(list(content.tools.values()), "tools"),
        system_prompts=chat.system_prompts,
        exit_status=_find_exit_status(sample),
        unknown_parts=dict(sorted(unknown_parts.items())),
        extra={
            **{key: sample.raw(key) for key in _FACTS if key in sample},
            **{key: evaluation.raw(key) for key in ("task", "model") if key in evaluation},
        },
    )
    annotation = Annotation(
        failed=_find_outcome(sample.node_or("scores")),
        answer=target if isinstance(target := sample.raw("target"), str) and target.strip() else None,
        group=f"{task}/{id}",
        extra={key: sample.raw(key) for key in _ANNOTATION_FIELDS if key in sample},
    )
    return Record(
        trajectory=add_run_totals(trajectory, _parse_totals(sample, evaluation)), annotation=annotation
    )


def _parse_totals(sample: JsonNode, evaluation: JsonNode) -> list[Usage | None]:
    """Return the usage of the evaluated model, or of each model if the log does not name it.

    The usage of other models is that of scorers and simulated users.
    """
    models = sample.node_or("model_usage")
    name = evaluation.text_or("model")
    return [
        parse_usage(convert_usage(models.node(key))) for key in ([name] if name in models else models.data)
    ]


def _set_end(step: Step, end_times: Mapping[int, float]) -> Step:
    """Return a step with the end of its model call; its message has the index ``source_index``."""
    end = end_times.get(step.source_index) if step.source_index is not None else None
    return step if end is None or step.ended_at is not None else replace(step, ended_at=end)


def _find_exit_status(sample: JsonNode) -> str | None:
    if "limit" in sample:
        return f"{sample.node('limit').text_or('type') or 'unknown'}_limit"
    return "error" if "error" in sample else None


def _find_outcome(scores: JsonNode) -> bool | None:
    """Return whether the run failed if all scores with a clear value agree; otherwise None."""
    verdicts = set()
    for name in scores.data:
        value = scores.node(name).raw("value") if isinstance(scores.raw(name), dict) else None
        letter = _LETTERS.get(value) if isinstance(value, str) else None
        verdicts.add(parse_verdict(value) if letter is None else letter)
    verdicts.discard(None)
    return not verdicts.pop() if len(verdicts) == 1 else None


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Return the content of a member.

    Raises:
        FormatError: the member is damaged, has more than 256 MiB, or needs a package that is not installed.
    """
    try:
        return b"".join(_iter_chunks(archive, info))
    except (OSError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise FormatError(f"member {info.filename!r:.80} is damaged: {error}") from None


def _iter_chunks(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    size = 0
    for chunk in (
        _iter_zstd_chunks(archive, info) if info.compress_type == _ZSTD_METHOD else _read(archive, info)
    ):
        size += len(chunk)
        if size > MAX_RECORD_BYTES:
            raise FormatError(f"member {info.filename!r:.80} has more than {MAX_RECORD_BYTES >> 20} MiB")
        yield chunk


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    with archive.open(info) as stream:
        while chunk := stream.read(1 << 20):
            yield chunk


def _iter_zstd_chunks(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    try:
        import zstandard
    except ModuleNotFoundError:
        reason = "the archive is compressed with Zstandard"
        raise FormatError(reason, hint="pip install zstandard") from None
    stream: BinaryIO = archive.fp  # type: ignore[assignment]
    try:
        stream.seek(info.header_offset)
        stream.seek(sum(_LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))), 1)
        compressed = stream.read(info.compress_size)
        reader = zstandard.ZstdDecompressor().stream_reader(compressed, read_across_frames=True)
        while chunk := reader.read(1 << 20):
            yield chunk
    except (struct.error, zstandard.ZstdError) as error:
        raise zipfile.BadZipFile(str(error)) from None


FORMAT = InspectLog()
