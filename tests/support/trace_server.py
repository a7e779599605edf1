"""Local servers with the contracts of the APIs of Langfuse, LangSmith and Phoenix.

Sources: Langfuse's API definition (fern/apis/server), the requests of langsmith-sdk's client, and the
OpenAPI document of Phoenix (``/openapi.json``). The server
rejects what the contract does not permit: 401 without the keys, 400 or 422 for an unknown parameter, 404 for
an unknown id.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

PAGE = 2


@dataclass(slots=True)
class Answer:
    """Status, JSON data and headers of an answer."""

    data: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class Product(Protocol):
    """Contract of a product."""

    failures: list[Answer]
    requests: list[str]

    def answer(self, method: str, path: str, params: dict[str, str], body: Any, headers: Any) -> Answer:
        """Return the answer to a request."""
        ...


@dataclass(slots=True, kw_only=True)
class LangfuseContract:
    """Langfuse with traces by id.

    Attributes:
        traces: the traces.
        hidden: ids of traces in the list that are deleted before the client fetches them.
        failures: answers to the first requests.
        requests: requests so far.
    """

    traces: dict[str, dict[str, Any]]
    hidden: set[str] = field(default_factory=set)
    failures: list[Answer] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, params: dict[str, str], body: Any, headers: Any) -> Answer:
        """Return the answer to a request."""
        key = base64.b64encode(b"pk:sk").decode()
        if headers["authorization"] != f"Basic {key}":
            return Answer({"message": "Invalid credentials"}, 401)
        if path.startswith("/api/public/traces/"):
            id = path.rpartition("/")[2]
            trace = None if id in self.hidden else self.traces.get(id)
            return Answer(trace) if trace else Answer({"message": "Trace not found"}, 404)
        permitted = {"page", "limit", "orderBy", "fields", "fromTimestamp", "toTimestamp"}
        if path != "/api/public/traces" or not params.keys() <= permitted or int(params["limit"]) > 100:
            return Answer({"message": "Invalid request data"}, 400)
        rows = [
            {key: item for key, item in trace.items() if key != "observations"}
            for trace in sorted(self.traces.values(), key=lambda one: one["timestamp"], reverse=True)
            if params.get("fromTimestamp", "") <= trace["timestamp"]
        ]
        page = int(params["page"])
        meta = {"page": page, "limit": PAGE, "totalItems": len(rows), "totalPages": -(-len(rows) // PAGE)}
        return Answer({"data": rows[(page - 1) * PAGE : page * PAGE], "meta": meta})


@dataclass(slots=True, kw_only=True)
class LangSmithContract:
    """LangSmith with one project of runs; ``failures`` are the answers to the first requests."""

    project: str
    runs: list[dict[str, Any]]
    failures: list[Answer] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, params: dict[str, str], body: Any, headers: Any) -> Answer:
        """Return the answer to a request."""
        if headers["x-api-key"] != "ls-key":
            return Answer({"detail": "Invalid token"}, 401)
        if (method, path) == ("GET", "/sessions"):
            return Answer([{"id": "p-1", "name": self.project}] if params["name"] == self.project else [])
        if (method, path) != ("POST", "/runs/query") or not ({"session", "trace"} & body.keys()):
            return Answer({"detail": "unprocessable"}, 422)
        rows = [run for run in self.runs if "trace" not in body or run["trace_id"] == body["trace"]]
        if body.get("is_root"):
            rows = [run for run in rows if run.get("parent_run_id") is None]
        rows = sorted(rows, key=lambda run: str(run["start_time"]), reverse=True)
        begin = int(body.get("cursor") or 0)
        page = [{key: run[key] for key in body["select"] if key in run} for run in rows[begin : begin + PAGE]]
        following = begin + PAGE
        return Answer({"runs": page, "cursors": {"next": str(following) if following < len(rows) else None}})


@dataclass(slots=True, kw_only=True)
class PhoenixContract:
    """Phoenix with one project of spans; ``failures`` are the answers to the first requests."""

    project: str
    spans: list[dict[str, Any]]
    failures: list[Answer] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, params: dict[str, str], body: Any, headers: Any) -> Answer:
        """Return the answer to a request."""
        prefix, _, kind = path.rpartition("/")
        if (method, prefix) != ("GET", f"/v1/projects/{self.project}"):
            return Answer("Project not found", 404)
        rows = self._list_traces() if kind == "traces" else self._list_spans(params["trace_id"])
        begin = int(params.get("cursor", 0))
        following = begin + PAGE
        more = str(following) if following < len(rows) else None
        return Answer({"data": rows[begin:following], "next_cursor": more})

    def _list_traces(self) -> list[dict[str, Any]]:
        ends = {span["context"]["trace_id"]: span["end_time"] for span in self.spans}
        return [{"trace_id": id, "end_time": end} for id, end in ends.items()]

    def _list_spans(self, trace_id: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["context"]["trace_id"] == trace_id]


@contextmanager
def serve(product: Product) -> Iterator[str]:
    """Serve a product on loopback and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        disable_nagle_algorithm = True  # head and body are two segments: the second would wait for an ACK

        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def log_message(self, *_: object) -> None:
            return

        def _answer(self, method: str) -> None:
            parts = urlsplit(self.path)
            product.requests.append(f"{method} {self.path}")
            size = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            answer = (
                product.failures.pop(0)
                if product.failures
                else product.answer(method, parts.path, dict(parse_qsl(parts.query)), body, self.headers)
            )
            data = json.dumps(answer.data).encode()
            self.send_response(answer.status)
            for name, value in {"content-length": str(len(data)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
