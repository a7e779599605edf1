"""Importers and the reader accept any input: the result is a record or a typed error."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, note, settings, strategies as st

from agentguard.errors import AgentGuardError, InputError
from agentguard.trajectory.event_log.recorder import build_events
from agentguard.trajectory.formats._stream_reader import CHUNK_BYTES, detect_content
from agentguard.trajectory.formats.base import UnreadableRecord, formats
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import (
    Annotation,
    Branch,
    Observation,
    Record,
    RootCause,
    Source,
    Step,
    ToolCall,
    ToolSpec,
    Trajectory,
    Usage,
)
from agentguard.trajectory.redaction import Redactor
from agentguard.trajectory.safe_json import dumps, loads, normalize_json

SAMPLES = Path(__file__).parents[1] / "contract" / "samples"
FILES = sorted(path for path in SAMPLES.iterdir() if path.is_file() and path.suffix != ".txt")
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

any_text = st.text(st.characters(codec=None), max_size=12)  # includes lone surrogates
text = st.text(st.characters(codec="utf-8"), max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | any_text
    | st.sampled_from(
        [10**30, "1e400", float("nan"), "\ud800", "user", "assistant", "tool", "[{", '{"a": 1}']
    )
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
extras = st.dictionaries(text, plain, max_size=3)


def sample_values(path: Path) -> Any:
    data = path.read_text("utf-8")
    return [json.loads(line) for line in data.splitlines()] if path.suffix == ".jsonl" else json.loads(data)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) of a JSON value."""
    found: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        node = stack.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            found.append((node, key))
            stack.append(node[key])
    return found


def assert_survives(name: str, value: Any) -> None:
    format, value = formats().get(name), normalize_json(value)
    assert 0 <= format.score_match(value) <= 1
    try:
        records = list(format.parse(value, name="fuzz"))
    except InputError:
        return
    for record in records:
        if isinstance(record, UnreadableRecord):
            assert isinstance(record.error, InputError)
            continue
        assert [step.index for step in record.trajectory.steps] == list(range(len(record.trajectory.steps)))


def assert_every_format_survives(value: Any) -> None:
    for name in formats().names():
        note(f"format: {name}")
        assert_survives(name, value)


@FEW
@given(value=values)
def test_arbitrary_json_gives_typed_error_or_record(value: Any) -> None:
    assert_every_format_survives(value)


KNOWN = (
    *("messages", "history", "traj", "steps", "output", "input", "items", "trace", "trajectory", "event"),
    *("step", "resourceSpans", "info", "metadata", "agent", "tools", "id", "reward", "mistake_step"),
    *("step_labels", "failures", "root_cause", "spans", "extra", "object"),
)


@FEW
@given(value=st.fixed_dictionaries({}, optional=dict.fromkeys(KNOWN, values)))
def test_arbitrary_values_under_known_keys_give_typed_error_or_record(value: Any) -> None:
    assert_every_format_survives(value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@FEW
@given(data=st.data())
def test_mutated_sample_gives_typed_error_or_record(path: Path, data: st.DataObject) -> None:
    value = copy.deepcopy(sample_values(path))
    for _ in range(data.draw(st.integers(1, 3))):
        if spots := places(value):
            container, key = data.draw(st.sampled_from(spots))
            if data.draw(st.booleans()):
                container[key] = data.draw(values)
            else:
                del container[key]
    name = path.name.partition(".")[0]
    for one in value if isinstance(value, list) else [value]:
        assert_survives(name, one)
    try:
        found = list(read(value, format=name))
    except InputError:
        return
    for one in found:
        # Every imported run can be exported, imported again and redacted.
        if isinstance(one, Record):
            lines = b"\n".join(dumps(event) for event in build_events(one))
            assert list(read(io.BytesIO(lines), format="event_log")) == [one]
            assert not isinstance(Redactor().redact(one).record, UnreadableRecord)
        else:
            assert "the importer failed" not in one.error.reason


@FEW
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_give_typed_error_or_record(data: bytes) -> None:
    for name in (None, "openai_chat", "event_log"):
        try:
            found = list(read(io.BytesIO(data), format=name))
        except AgentGuardError:
            continue
        assert all(isinstance(one, Record | UnreadableRecord) for one in found)


@FEW
@given(value=values)
def test_every_json_document_is_read(value: Any) -> None:
    parsed = loads(json.dumps(value))
    assert loads(orjson.dumps(parsed)) == parsed
    assert loads(dumps(value)) == loads(dumps(parsed))


class Drip(io.RawIOBase):
    """Stream that returns a few bytes per read, so that reads end at every position."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size

    def read(self, size: int = -1) -> bytes:
        size = min(self._size, size) if size >= 0 else self._size
        taken, self._data = self._data[:size], self._data[size:]
        return taken


@FEW
@given(items=st.lists(plain, min_size=1, max_size=6), indent=st.sampled_from([None, 1]))
def test_array_is_split_at_json_boundaries(items: list[Any], indent: int | None) -> None:
    data = json.dumps(items, indent=indent).encode()
    padding = b" " * (CHUNK_BYTES - len(data) // 2)  # the array crosses the end of the first chunk
    for stream in (io.BytesIO(data), io.BytesIO(b"[" + padding + data[1:])):
        found = detect_content(stream)  # type: ignore[arg-type]
        if found.kind == "sequence":
            assert [item.value for item in found.items] == loads(data) or indent is None


@FEW
@given(
    items=st.lists(st.dictionaries(text, plain, max_size=3), min_size=2, max_size=5), size=st.integers(1, 7)
)
def test_chunk_size_does_not_change_result(items: list[Any], size: int) -> None:
    array = json.dumps(items).encode()
    lines = b"\n".join(json.dumps(item).encode() for item in items)
    for data in (array, lines):
        found = detect_content(Drip(data, size))  # type: ignore[arg-type]
        assert found.kind == "sequence"
        assert [item.value for item in found.items] == loads(array)


steps = st.builds(
    Step,
    index=st.just(0),
    source=st.sampled_from(Source),
    agent=text,
    content=text,
    reasoning=text,
    modules=st.dictionaries(text, text, max_size=2),
    tool_calls=st.lists(
        st.builds(
            ToolCall,
            id=text,
            name=text,
            arguments=st.none() | extras,
            raw_arguments=st.none() | text,
            extra=extras,
        ),
        max_size=2,
    ).map(tuple),
    observations=st.lists(
        st.builds(
            Observation,
            content=text,
            call_id=st.none() | text,
            tool=st.none() | text,
            is_error=st.none() | st.booleans(),
            extra=extras,
        ),
        max_size=2,
    ).map(tuple),
    started_at=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    ended_at=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    usage=st.none()
    | st.builds(Usage, prompt_tokens=st.none() | st.integers(0, 99), cost_usd=st.none() | st.just(0.5)),
    model=st.none() | text,
    source_index=st.none() | st.integers(0, 99),
    extra=extras,
)


def numbered(line: list[Step], begins: int = 0) -> tuple[Step, ...]:
    from dataclasses import replace

    return tuple(replace(step, index=begins + i) for i, step in enumerate(line))


@st.composite
def records(draw: st.DrawFn) -> Record:
    live = numbered(draw(st.lists(steps, max_size=3)))
    fork = draw(st.integers(0, len(live)))
    left = numbered(draw(st.lists(steps, max_size=2)), fork)
    branch = Branch(id=draw(text), fork_step=fork, steps=left, reason=draw(text), extra=draw(extras))
    cause = draw(
        st.none()
        | st.builds(
            RootCause,
            step=st.none() | st.integers(0, 9),
            agent=st.none() | text,
            module=st.none() | text,
            codes=st.lists(text, max_size=2).map(tuple),
            reason=text,
        )
    )
    run = Trajectory(
        id=draw(text),
        format=draw(st.sampled_from(["atif", "who_and_when", "openai_chat", "event_log"])),
        task=draw(text),
        steps=live,
        tools=(
            ToolSpec(name=draw(text), description=draw(text), parameters=draw(extras), extra=draw(extras)),
        ),
        system_prompts=draw(st.dictionaries(text, text, max_size=2)),
        branches=(branch,) if draw(st.booleans()) else (),
        extra=draw(extras),
    )
    judged = Annotation(
        failed=draw(st.none() | st.booleans()),
        root_cause=cause,
        failures=(cause,) if cause else (),
        step_labels=draw(st.dictionaries(st.integers(0, 9), st.sampled_from([1, 0, -1]), max_size=2)),
        modes=draw(st.dictionaries(text, st.booleans(), max_size=2)),
        answer=draw(st.none() | text),
        group=draw(st.none() | text),
        extra=draw(extras),
    )
    return Record(trajectory=run, annotation=judged)


@pytest.mark.parametrize("name", ["event_log", "atif"])
@settings(parent=FEW, max_examples=150)
@given(record=records())
def test_formats_round_trip(name: str, record: Record) -> None:
    data = loads(dumps(formats().get(name).dump(record, annotation=True)))  # type: ignore[attr-defined]
    assert list(read(data, format=name)) == [record]


@settings(parent=FEW, max_examples=150)
@given(record=records())
def test_atif_export_of_any_run_is_valid(record: Record) -> None:
    import atif

    document = formats().get("atif").dump(record, annotation=True)  # type: ignore[attr-defined]
    atif.Trajectory.model_validate(loads(dumps(document)))
