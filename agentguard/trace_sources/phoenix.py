"""Traces of a Phoenix project.

API: ``GET /v1/projects/{project}/traces`` and ``GET /v1/projects/{project}/spans``, both with a cursor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from agentguard.trace_sources.base import TraceEntry, TraceQuery
from agentguard.trace_sources.json_client import JsonClient

_TRACE_PAGE_SIZE = 100
_SPAN_PAGE_SIZE = 1000
_DEFAULT_PORT = "6006"
_BIND_ADDRESSES = ("", "0.0.0.0", "::")  # noqa: S104


@dataclass(frozen=True, slots=True, kw_only=True)
class PhoenixSource:
    """Phoenix, local or hosted."""

    base_url: str
    project: str
    key: str = field(default="", repr=False)
    format: str = "otel_spans"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], query: TraceQuery) -> PhoenixSource:
        """Return the source of ``PHOENIX_COLLECTOR_ENDPOINT`` or ``PHOENIX_HOST``, and ``PHOENIX_API_KEY``.

        Without an address it is Phoenix on this machine.
        """
        return cls(
            base_url=_find_address(environment),
            project=query.project or environment.get("PHOENIX_PROJECT_NAME") or "default",
            key=environment.get("PHOENIX_API_KEY", ""),
        )

    def create_client(self) -> JsonClient:
        """Return a client that sends the key, if there is one."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        return JsonClient(
            self.base_url, headers, key_hint="PHOENIX_API_KEY", url_hint="PHOENIX_COLLECTOR_ENDPOINT"
        )

    def list_traces(self, client: JsonClient, query: TraceQuery) -> Iterator[TraceEntry]:
        """Yield the traces of all pages."""
        params = {
            "limit": _TRACE_PAGE_SIZE,
            "sort": "start_time",
            "order": "desc",
            "start_time": query.since_text,
            "end_time": query.until_text,
        }
        for trace in self._iter_pages(client, "traces", params):
            yield TraceEntry(id=trace["trace_id"], version=str(trace.get("end_time", "")))

    def fetch_trace(self, client: JsonClient, id: str) -> Any:
        """Return all spans of a trace."""
        return {"data": list(self._iter_pages(client, "spans", {"trace_id": id, "limit": _SPAN_PAGE_SIZE}))}

    def _iter_pages(self, client: JsonClient, kind: str, params: Mapping[str, Any]) -> Iterator[Any]:
        cursor = None
        while True:
            path = f"/v1/projects/{quote(self.project, safe='')}/{kind}"
            answer = client.get(path, {**params, "cursor": cursor})
            yield from answer["data"]
            cursor = answer.get("next_cursor")
            if not cursor:
                return


def _find_address(environment: Mapping[str, str]) -> str:
    if endpoint := environment.get("PHOENIX_COLLECTOR_ENDPOINT"):
        return endpoint.rstrip("/").removesuffix("/v1/traces")
    host = environment.get("PHOENIX_HOST", "")
    if host.startswith(("http://", "https://")):
        return host
    port = environment.get("PHOENIX_PORT") or _DEFAULT_PORT
    return f"http://{'localhost' if host in _BIND_ADDRESSES else host}:{port}"
