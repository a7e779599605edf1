"""Contract of all formats: an unknown content part or event is read, counted, or reported as an error.

Each case inserts one element into one list of a sample: an element of a new type without known fields, or a
copy of an element with another type, role or status and with other texts.
"""

from __future__ import annotations

import copy
import io
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentguard.trajectory.event_log.recorder import build_events
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Record
from tests.contract.test_formats import FILES, format_of

Path_ = tuple[str | int, ...]

MARK = "zq inserted text"
TYPE_FIELDS = ("type", "kind", "event", "role", "status")
ID_FIELDS = frozenset({"id", "uuid", "name", "source", "agent", "model"})
"""Fields whose other value moves an element to another message, call, speaker or run."""

REPETITIONS = {
    "gemini_cli": r"toolCalls|thoughts",
    "inspect_log": r"samples\.#\.(events_data|messages|output|events\.#\.(input|input_refs|output))(\.|$)",
    "langchain": r"additional_kwargs\.tool_calls|values\.messages\.#\.(invalid_)?tool_calls|\.tasks",
    "langfuse": r"^$|^observations$",
    "langsmith": r"^#\.(inputs|outputs)\.|^(post|patch)\.#\.(inputs\.messages|outputs\.choices)",
    "model_requests": r"outputBodyJson\.#\.message\.content",
    "openai_agents": r"^(model_responses|session_items|last_\w+|current_step)(\.|$)",
    "openhands": r"tool_call_metadata",
    "otel_spans": r"span_data\.input",
    "smolagents": r"model_output_message\.tool_calls",
    "swe_agent": r"^history",
    "tau2_bench": r"raw_data",
    "text_actions": r"extra\.actions",
}
"""Lists whose elements repeat others of the file (a chain repeats the messages of its model calls), or that a
later element of the same id replaces."""

ENVELOPES = {
    "browser_use": r"state\.tabs",
    "claude_code": r"mcp_servers|permission_denials",
    "codex_exec": r"item\.items",
    "event_log": r"tools",
    "inspect_log": r"^plan|^results|events_data\.calls|\.tools|samples\.#\.events$",
    "langchain": r"interrupts|next|tasks",
    "langsmith": r"tools$",
    "mast": r"^annotations",
    "model_requests": r"tools$",
    "openai_agents": r"^generated_items$|\.usage\.|^nested_history",
    "openhands": r"tools",
    "otel_spans": r"links|^$|annotations",
    "otlp_json": r"[sS]pans$|events",
    "tau2_bench": r"^tasks",
    "trail": r"events",
}
"""Lists without content of the run (definitions, links, labels), or with a type that selects no reader."""


def write(value: Any, path: Path) -> bytes:
    return b"\n".join(map(orjson.dumps, value)) if path.suffix == ".jsonl" else orjson.dumps(value)


def parse(path: Path) -> Any:
    data = path.read_bytes()
    return (
        [orjson.loads(line) for line in data.splitlines() if line.strip()]
        if path.suffix == ".jsonl"
        else orjson.loads(data)
    )


def iter_lists(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, list[Any]]]:
    if isinstance(value, list):
        yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from iter_lists(one, (*path, key))


def iter_objects(value: Any, place: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects at a place; ``#`` is every element of a list."""
    if not place:
        yield from [value] if isinstance(value, dict) else []
    elif place[0] == "#":
        for one in value if isinstance(value, list) else []:
            yield from iter_objects(one, place[1:])
    elif isinstance(value, dict) and place[0] in value:
        yield from iter_objects(value[place[0]], place[1:])


def replace_texts(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: replace_texts(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [replace_texts(one, key) for one in value]
    # Ids, times and names select the place of an element; a text has a space, or is the text of a part.
    is_text = isinstance(value, str) and (" " in value or key in ("text", "content"))
    return MARK if is_text else value


def iter_insertions(values: list[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    if not values or isinstance(values[0], dict):
        yield len(values), {"type": "zq_type", "zq_field": MARK}
    for place, element in enumerate(values):
        if isinstance(element, dict):
            for field in TYPE_FIELDS:
                if isinstance(element.get(field), str):
                    ids = {name: f"{element[name]}zq" for name in ("id", "uuid") if name in element}
                    changed = {**replace_texts(element), **ids, field: "zq_type", "zq_field": MARK}
                    yield place + 1, changed


def is_exempt(name: str, path: Path_) -> bool:
    place = ".".join("#" if isinstance(key, int) else key for key in path)
    return any(name in patterns and re.search(patterns[name], place) for patterns in (REPETITIONS, ENVELOPES))


def count_parts(records: list[Record]) -> Counter[str]:
    return sum((Counter(record.trajectory.unknown_parts) for record in records), Counter())


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.suffix != ".txt"], ids=lambda path: path.name
)
def test_unknown_element_is_read_or_counted(path: Path) -> None:
    name, value = format_of(path), parse(path)
    known = count_parts([one for one in read(path) if isinstance(one, Record)])
    silent = []
    for place, values in iter_lists(value):
        if is_exempt(name, place):
            continue
        for index, element in iter_insertions(values):
            original = copy.copy(values)
            values.insert(index, element)
            found = list(read(io.BytesIO(write(value, path)), format=name))
            values[:] = original
            records = [one for one in found if isinstance(one, Record)]
            text = b"".join(orjson.dumps(list(build_events(one)), default=str) for one in records)
            is_reported = any(isinstance(one, UnreadableRecord) for one in found)
            if not (is_reported or MARK.encode() in text or count_parts(records) - known):
                silent.append((place, element))
    assert silent == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_unknown_parts_of_steps_are_in_totals(path: Path) -> None:
    data = path.read_bytes().replace(b'"text"', b'"zq_type"').replace(b'"input_text"', b'"zq_type"')
    for one in read(io.BytesIO(data), format=format_of(path)):
        if isinstance(one, Record):
            run = one.trajectory
            branches = (step for branch in run.branches for step in branch.steps)
            parts = Counter(part for step in (*run.steps, *branches) for part in step.unknown_parts)
            assert not parts - Counter(run.unknown_parts)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("agentdojo.json", "messages.#"),
        ("anthropic_messages.converse.json", "messages.#.content.#.toolUse"),
        ("anthropic_messages.converse.json", "messages.#.content.#.toolResult"),
        ("autogen.events.json", "messages.#.content.#"),
        ("browser_use.json", "history.#.result.#"),
        ("crewai.json", "#"),
        ("gemini_cli.json", "messages.#.toolCalls.#"),
        ("inspect_log.messages.json", "samples.#.messages.#"),
        ("langchain.json", "#.data"),
        ("langchain.json", "#.data.tool_calls.#"),
        ("openai_chat.json", "messages.#"),
        ("openai_chat.json", "messages.#.tool_calls.#"),
        ("tau_bench.json", "#.traj.#"),
        ("text_actions.jsonl", "#.messages.#"),
        ("vercel_ai.json", "messages.#"),
    ],
)
def test_unknown_field_is_kept(name: str, place: str) -> None:
    path = Path(__file__).with_name("samples") / name
    value = parse(path)
    nodes, lost = list(iter_objects(value, place.split("."))), []
    assert nodes
    for node in nodes:
        node["zq_field"] = MARK
        found = list(read(io.BytesIO(write(value, path)), format=format_of(path)))
        del node["zq_field"]
        records = [one for one in found if isinstance(one, Record)]
        text = b"".join(orjson.dumps(list(build_events(one)), default=str) for one in records)
        lost += [] if MARK.encode() in text else [node]
    assert lost == []
