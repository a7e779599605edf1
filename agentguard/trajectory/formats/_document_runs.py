"""Runs of one document, read one by one: a run with an error does not hide the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from agentguard.errors import InputError
from agentguard.trajectory._json_node import JsonNode
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.model import Record


def parse_runs(
    values: Iterable[tuple[object, str]], parse: Callable[[JsonNode], Record]
) -> Iterator[Record | UnreadableRecord]:
    """Yield the run of each ``(value, path)``; a value with an error becomes an UnreadableRecord."""
    for value, path in values:
        try:
            yield parse(JsonNode.from_value(value, path))
        except InputError as error:
            yield UnreadableRecord(error=error)
