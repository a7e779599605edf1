"""Traces of a LangSmith project.

API: ``GET /sessions`` (the project) and ``POST /runs/query`` (with a cursor), as the SDK uses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentguard.errors import ConfigError
from agentguard.trace_sources.base import TraceEntry, TraceQuery
from agentguard.trace_sources.json_client import JsonClient, require_variable

_CLOUD_URL = "https://api.smith.langchain.com"
_PAGE_SIZE = 100
_ROOT_FIELDS = ("id", "trace_id", "start_time", "end_time", "status")
_RUN_FIELDS = (
    *("id", "name", "run_type", "start_time", "end_time", "inputs", "outputs", "error", "extra", "status"),
    *("parent_run_id", "trace_id", "dotted_order", "session_id", "tags", "feedback_stats"),
    *("prompt_tokens", "completion_tokens", "total_tokens", "total_cost", "reference_example_id"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LangSmithSource:
    """LangSmith, in the cloud or self-hosted."""

    base_url: str
    project: str
    key: str = field(repr=False)
    format: str = "langsmith"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], query: TraceQuery) -> LangSmithSource:
        """Return the source of ``LANGSMITH_ENDPOINT``, ``LANGSMITH_API_KEY`` and ``LANGSMITH_PROJECT``."""
        return cls(
            base_url=environment.get("LANGSMITH_ENDPOINT") or _CLOUD_URL,
            project=query.project or environment.get("LANGSMITH_PROJECT") or "default",
            key=require_variable(environment, "LANGSMITH_API_KEY", "LangSmith"),
        )

    def create_client(self) -> JsonClient:
        """Return a client that sends the key."""
        return JsonClient(
            self.base_url,
            {"x-api-key": self.key},
            key_hint="LANGSMITH_API_KEY",
            url_hint="LANGSMITH_ENDPOINT",
        )

    def list_traces(self, client: JsonClient, query: TraceQuery) -> Iterator[TraceEntry]:
        """Yield the finished root runs."""
        projects = client.get("/sessions", {"name": self.project, "limit": 1})
        if not projects:
            raise ConfigError(f"LangSmith has no project {self.project!r}; write langsmith://PROJECT")
        body = {
            "session": [projects[0]["id"]],
            "is_root": True,
            "select": _ROOT_FIELDS,
            "start_time": query.since_text,
            "filter": f'lt(start_time, "{query.until_text}")' if query.until_text else None,
        }
        for run in _query_runs(client, body):
            if run.get("end_time"):
                yield TraceEntry(id=run.get("trace_id") or run["id"], version=run["end_time"])

    def fetch_trace(self, client: JsonClient, id: str) -> Any:
        """Return all runs of a trace."""
        return {"runs": list(_query_runs(client, {"trace": id, "select": _RUN_FIELDS}))}


def _query_runs(client: JsonClient, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    cursor = None
    while True:
        answer = client.post("/runs/query", {**body, "limit": _PAGE_SIZE, "cursor": cursor})
        yield from answer["runs"]
        cursor = (answer.get("cursors") or {}).get("next")
        if not cursor or not answer["runs"]:
            return
