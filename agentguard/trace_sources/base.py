"""Interface of the sources of traces: products that store the traces of agents and have an HTTP API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from agentguard.trace_sources.json_client import JsonClient


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceQuery:
    """Selection of traces.

    Attributes:
        source: name of the product.
        project: name of the project; None is the default of the product.
        since, until: bounds of the start of a trace, in epoch seconds.
        limit: maximum number of traces; the newest traces are read.
        resume: file that lists the traces read so far; a listed trace is read again only if it has changed.
    """

    source: str
    project: str | None = None
    since: float | None = None
    until: float | None = None
    limit: int | None = None
    resume: Path | None = None

    @property
    def since_text(self) -> str | None:
        """Lower bound in ISO 8601."""
        return _format_time(self.since)

    @property
    def until_text(self) -> str | None:
        """Upper bound in ISO 8601."""
        return _format_time(self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEntry:
    """Trace in the list of a product; ``version`` changes when the trace changes."""

    id: str
    version: str = ""


class TraceSource(Protocol):
    """Product that stores traces, such as Langfuse; `agentguard.trace_sources.url.SOURCES` has their names.

    Attributes:
        format: name of the importer for `fetch_trace`.
    """

    format: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], query: TraceQuery) -> TraceSource:
        """Return the source. Raises ConfigError that names the environment variable that is missing."""
        ...

    def create_client(self) -> JsonClient:
        """Return a client with the credentials."""
        ...

    def list_traces(self, client: JsonClient, query: TraceQuery) -> Iterator[TraceEntry]:
        """Yield the finished traces of a query, the newest first."""
        ...

    def fetch_trace(self, client: JsonClient, id: str) -> Any:
        """Return a trace as JSON data that the importer reads."""
        ...


def _format_time(seconds: float | None) -> str | None:
    """Return epoch seconds in ISO 8601."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
