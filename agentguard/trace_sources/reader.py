"""Reader of the traces of a product; it yields runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from agentguard.errors import BackendError, ConfigError, FormatError, InputError
from agentguard.trace_sources.base import TraceEntry, TraceQuery, TraceSource
from agentguard.trace_sources.json_client import JsonClient
from agentguard.trajectory.formats import UnreadableRecord, read
from agentguard.trajectory.model import Record

_MISSING_FIELD = (KeyError, TypeError, AttributeError)
"""Errors of a source if an answer does not have the form of the product's API."""
_CLASSES = {"langfuse": "LangfuseSource", "langsmith": "LangSmithSource", "phoenix": "PhoenixSource"}


def read_traces(
    query: TraceQuery, *, environment: Mapping[str, str] | None = None
) -> Iterator[Record | UnreadableRecord]:
    """Yield the runs of the traces of a query, the newest first, each as soon as it has arrived.

    A trace that cannot be fetched or read is an UnreadableRecord; the next ones are still read. The file
    ``query.resume`` gets a line for each trace after the caller has taken its runs.

    Args:
        query: the product and the selection.
        environment: variables with the address and the keys; the default is the process's environment.

    Raises:
        ConfigError: a variable is missing, its address is not reachable, or there is no such project.
        BackendError: the list of traces cannot be fetched, or an answer does not have the form of the API.
        DeadlineExceeded, RetriesExhausted: the product did not answer, or not in time.
        MissingExtra: the extra ``traces`` is not installed.
    """
    source = _create_source(query, os.environ if environment is None else environment)
    progress = _Progress(query.resume)
    with source.create_client() as client:
        for entry in islice(_iter_new(source, client, query, progress), query.limit):
            try:
                document = source.fetch_trace(client, entry.id)
            except _MISSING_FIELD:
                raise _build_form_error(query) from None
            except BackendError as error:
                if error.status not in (404, 422):
                    raise
                yield UnreadableRecord(error=FormatError(error.reason, file=_name_trace(query, entry)))
                continue
            yield from _read_document(document, source.format, _name_trace(query, entry))
            progress.add(entry)


def _create_source(query: TraceQuery, environment: Mapping[str, str]) -> TraceSource:
    source_class: type[TraceSource] = getattr(
        import_module(f"agentguard.trace_sources.{query.source}"), _CLASSES[query.source]
    )
    return source_class.from_environment(environment, query)


def _iter_new(
    source: TraceSource, client: JsonClient, query: TraceQuery, progress: _Progress
) -> Iterator[TraceEntry]:
    """Yield each trace once: if new traces arrive during the listing, the next page repeats earlier ones."""
    visited: set[str] = set()
    try:
        for entry in source.list_traces(client, query):
            if entry.id not in visited and not progress.has(entry):
                visited.add(entry.id)
                yield entry
    except _MISSING_FIELD:
        raise _build_form_error(query) from None


def _build_form_error(query: TraceQuery) -> BackendError:
    reason = f"{query.source}: the answer does not have the form of the product's API; check the address"
    return BackendError(reason, status=400)


def _name_trace(query: TraceQuery, entry: TraceEntry) -> str:
    return f"{query.source}:{query.project or ''}#{entry.id}"


def _read_document(document: Any, format: str, name: str) -> Iterator[Record | UnreadableRecord]:
    try:
        for record in read(document, format=format):
            if isinstance(record, UnreadableRecord):
                yield UnreadableRecord(error=record.error.with_location(file=name))
            else:
                yield record
    except InputError as error:
        yield UnreadableRecord(error=error.with_location(file=name))


class _Progress:
    """Ids and versions of the traces read so far, in a file of JSON Lines; a trace appends a line."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._versions: dict[str, str] = {}
        if path is not None and path.exists():
            self._versions = dict(_read_lines(path))

    def has(self, entry: TraceEntry) -> bool:
        """Return True if this version of the trace was read."""
        return self._versions.get(entry.id) == entry.version

    def add(self, entry: TraceEntry) -> None:
        """Append a trace."""
        self._versions[entry.id] = entry.version
        if self._path is None:
            return
        line = orjson.dumps({"id": entry.id, "version": entry.version}, option=orjson.OPT_APPEND_NEWLINE)
        try:
            with self._path.open("ab") as file:
                file.write(line)
        except OSError as error:
            raise ConfigError(f"resume={self._path} cannot be written: {error.strerror}") from None


def _read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the ids and versions of a file; skip a last line that a crash cut off."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"resume={path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        try:
            entry = orjson.loads(line) if line.strip() else None
            if entry is not None:
                yield entry["id"], entry["version"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            if number < len(lines):
                hint = "delete it to read all traces again"
                raise ConfigError(f"resume={path}: line {number} is not an entry; {hint}") from None
