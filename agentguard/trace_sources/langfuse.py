"""Traces of a Langfuse project; its keys select the project.

API: ``GET /api/public/traces`` (pages) and ``GET /api/public/traces/{id}``.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from agentguard.errors import ConfigError
from agentguard.trace_sources.base import TraceEntry, TraceQuery
from agentguard.trace_sources.json_client import JsonClient, require_variable

_PAGE_SIZE = 100
_CLOUD_URL = "https://cloud.langfuse.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class LangfuseSource:
    """Langfuse, in the cloud or self-hosted."""

    base_url: str
    public_key: str
    secret_key: str = field(repr=False)
    format: str = "langfuse"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], query: TraceQuery) -> LangfuseSource:
        """Return the source of ``LANGFUSE_BASE_URL`` (or ``LANGFUSE_HOST``) and the two keys."""
        if query.project is not None:
            raise ConfigError("langfuse: the keys select the project; write langfuse: without a project")
        return cls(
            base_url=environment.get("LANGFUSE_BASE_URL") or environment.get("LANGFUSE_HOST") or _CLOUD_URL,
            public_key=require_variable(environment, "LANGFUSE_PUBLIC_KEY", "Langfuse"),
            secret_key=require_variable(environment, "LANGFUSE_SECRET_KEY", "Langfuse"),
        )

    def create_client(self) -> JsonClient:
        """Return a client that sends the keys."""
        credentials = b64encode(f"{self.public_key}:{self.secret_key}".encode()).decode()
        return JsonClient(
            self.base_url,
            {"authorization": f"Basic {credentials}"},
            key_hint="LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY",
            url_hint="LANGFUSE_BASE_URL",
        )

    def list_traces(self, client: JsonClient, query: TraceQuery) -> Iterator[TraceEntry]:
        """Yield the traces of all pages."""
        params = {
            "limit": _PAGE_SIZE,
            "orderBy": "timestamp.desc",
            "fields": "core",
            "fromTimestamp": query.since_text,
            "toTimestamp": query.until_text,
        }
        page = 1
        while True:
            answer = client.get("/api/public/traces", {**params, "page": page})
            for trace in answer["data"]:
                yield TraceEntry(id=trace["id"], version=str(trace.get("updatedAt", "")))
            if page >= answer["meta"]["totalPages"]:
                return
            page += 1

    def fetch_trace(self, client: JsonClient, id: str) -> Any:
        """Return a trace with its observations and scores."""
        return client.get(f"/api/public/traces/{quote(id, safe='')}")
