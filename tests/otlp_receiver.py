"""OTLP/HTTP collector for tests, as a process: rejects every violation of the protocol.

``python -m tests.otlp_receiver LOG [--answers 503,429] [--retry-after 1] [--reject N] [--header A=B]``
prints its port, and writes a line of JSON for every request to LOG. The rules are those of the protobuf
definitions and of the OTLP 1.x specification; the messages are parsed with ``opentelemetry-proto``.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

_HEX = re.compile(r"[0-9a-f]+")
_INTEGERS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "agentguard.step.index")
_TEXTS = ("gen_ai.operation.name", "gen_ai.agent.name", "gen_ai.tool.name", "gen_ai.output.messages")
_OPERATIONS = {"chat", "execute_tool", "invoke_agent", "invoke_workflow"}
_KINDS = {"LLM", "TOOL", "AGENT", "CHAIN", "GUARDRAIL"}


class Wrong(Exception):
    """Violation of the protocol."""


def need(holds: object, what: str) -> None:
    """Raise `Wrong` if the condition is false."""
    if not holds:
        raise Wrong(what)


class Checker:
    """Check of requests; it keeps the spans to resolve parents and links."""

    def __init__(self) -> None:
        self.spans: dict[tuple[bytes, bytes], bytes] = {}

    def traces(self, request: Any) -> int:
        need(request.resource_spans, "no resource spans")
        for resource in request.resource_spans:
            self._resource(resource.resource)
            for scope in resource.scope_spans:
                need(scope.scope.name, "a scope without a name")
                need(scope.spans, "a scope without spans")
                for span in scope.spans:
                    self._span(span)
        return sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)

    def logs(self, request: Any) -> int:
        need(request.resource_logs, "no resource logs")
        for resource in request.resource_logs:
            self._resource(resource.resource)
            for scope in resource.scope_logs:
                for record in scope.log_records:
                    need(
                        record.event_name == "gen_ai.evaluation.result", "a log record without its event name"
                    )
                    need(record.time_unix_nano > 0, "a log record without a time")
                    need((record.trace_id, record.span_id) in self.spans, "a log record of no span")
                    self._evaluation(self._attributes(record.attributes))
        return sum(len(s.log_records) for r in request.resource_logs for s in r.scope_logs)

    def parents(self) -> None:
        """Check, after the last request, that every parent is a span of the same trace."""
        for (trace, span), parent in self.spans.items():
            need(not parent or (trace, parent) in self.spans, f"the parent of {span.hex()} never came")
            need(parent != span, "a span inside itself")

    def _resource(self, resource: Any) -> None:
        need("service.name" in self._attributes(resource.attributes), "a resource without service.name")

    def _span(self, span: Any) -> None:
        need(len(span.trace_id) == 16 and any(span.trace_id), "a trace id that is not 16 bytes, not all zero")
        need(len(span.span_id) == 8 and any(span.span_id), "a span id that is not 8 bytes, not all zero")
        need(len(span.parent_span_id) in (0, 8), "a parent id that is neither absent nor 8 bytes")
        need(span.name, "a span without a name")
        need(1 <= span.kind <= 5, "a span without a kind")
        need(span.start_time_unix_nano > 0, "a span without a start")
        need(span.end_time_unix_nano >= span.start_time_unix_nano, "a span that ends before it starts")
        need(span.status.code in (0, 1, 2), "no status code")
        need(span.status.code == 2 or not span.status.message, "a message without an error")
        key = (span.trace_id, span.span_id)
        need(self.spans.get(key, span.parent_span_id) == span.parent_span_id, "one span with two parents")
        self.spans[key] = span.parent_span_id
        held = self._attributes(span.attributes)
        need(held.get("openinference.span.kind") in _KINDS, "no OpenInference kind")
        need(held.get("gen_ai.operation.name", "chat") in _OPERATIONS, "no operation of the conventions")
        for name in ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.definitions"):
            need(isinstance(json.loads(held.get(name, "[]")), list), f"{name} is no list")
        for event in span.events:
            need(event.name, "an event without a name")
            need(event.time_unix_nano > 0, "an event without a time")
            self._evaluation(self._attributes(event.attributes))

    def _evaluation(self, held: dict[str, Any]) -> None:
        need(isinstance(held.get("gen_ai.evaluation.name"), str), "an evaluation without a name")
        score = held.get("gen_ai.evaluation.score.value")
        need(score is None or isinstance(score, float), "a score that is no double")
        need(score is not None or "gen_ai.evaluation.score.label" in held, "an evaluation without a score")

    def _attributes(self, pairs: Any) -> dict[str, Any]:
        names = [pair.key for pair in pairs]
        need(all(names), "an attribute without a name")
        need(len(set(names)) == len(names), "an attribute given twice")
        found: dict[str, Any] = {}
        for pair in pairs:
            kind = pair.value.WhichOneof("value")
            need(kind, f"the attribute {pair.key} without a value")
            found[pair.key] = getattr(pair.value, kind)
            if pair.key in _INTEGERS:
                need(kind == "int_value", f"{pair.key} is no whole number")
            if pair.key in _TEXTS:
                need(kind == "string_value", f"{pair.key} is no text")
        return found


def parsed(body: bytes, kind: type, content_type: str) -> Any:
    """Parse a request of either encoding; reject fields that the definitions do not contain."""
    if content_type == "application/x-protobuf":
        message = kind.FromString(body)
        need(message.SerializeToString(deterministic=True), "an empty request")
        before = message.ByteSize()
        message.DiscardUnknownFields()
        need(message.ByteSize() == before, "fields that the definitions do not know")
        return message
    need(content_type == "application/json", f"no encoding of the protocol: {content_type}")
    return ParseDict(_with_base64(json.loads(body)), kind())


def _with_base64(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _with_base64(held, key) for key, held in value.items()}
    if isinstance(value, list):
        return [_with_base64(one) for one in value]
    if name in ("traceId", "spanId", "parentSpanId"):
        need(isinstance(value, str) and _HEX.fullmatch(value), f"{name} is not lower-case hexadecimal")
        return base64.b64encode(bytes.fromhex(value)).decode()
    if name.endswith("UnixNano") or name == "intValue":
        need(isinstance(value, str), f"{name} is a 64-bit number and must be text")
    return value


class Handler(BaseHTTPRequestHandler):
    """Request handler that checks a request and sends the configured answer."""

    server: Receiver

    def do_POST(self) -> None:
        status, body, note = self._looked_at()
        self.server.note({**note, "status": status, "path": self.path})
        self.send_response(status)
        if status in (429, 503):
            self.send_header("Retry-After", str(self.server.options.retry_after))
        if status in (301, 302, 307, 308):
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.send_header("Content-Type", self.headers.get("Content-Type", "text/plain"))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _looked_at(self) -> tuple[int, bytes, dict[str, Any]]:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        options, note = self.server.options, {"bytes": len(raw)}
        if options.header:
            name, _, value = options.header.partition("=")
            if self.headers.get(name) != value:
                return 401, b"", note
        answer = self.server.answer()
        if answer != 200:
            return answer, b"the secret of the collector", note
        try:
            return self._taken(raw, note)
        except (Wrong, ValueError, OSError, KeyError) as error:
            return 400, b"", {**note, "wrong": f"{type(error).__name__}: {error}"}

    def _taken(self, raw: bytes, note: dict[str, Any]) -> tuple[int, bytes, dict[str, Any]]:
        body = gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw
        kind = self.headers.get("Content-Type", "")
        options, checker = self.server.options, self.server.checker
        if self.path.endswith("/v1/traces"):
            request = parsed(body, ExportTraceServiceRequest, kind)
            note["spans"] = checker.traces(request)
            response = ExportTraceServiceResponse()
            response.partial_success.rejected_spans = options.reject
        else:
            need(self.path.endswith("/v1/logs"), f"no path of the protocol: {self.path}")
            request = parsed(body, ExportLogsServiceRequest, kind)
            note["records"] = checker.logs(request)
            response = ExportLogsServiceResponse()
            response.partial_success.rejected_log_records = options.reject
        if options.reject:
            response.partial_success.error_message = "too old"
        else:
            response.ClearField("partial_success")
        note["request"] = _hexed(MessageToDict(request))
        if kind == "application/json":
            return 200, json.dumps(MessageToDict(response)).encode(), note
        return 200, response.SerializeToString(), note

    def log_message(self, format: str, *args: Any) -> None:
        """Suppress the log."""


class Receiver(HTTPServer):
    """The server with its configured answers."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.options = options
        self.checker = Checker()
        self._answers = [int(one) for one in options.answers.split(",") if one]
        self._log = Path(options.log)

    def answer(self) -> int:
        return self._answers.pop(0) if self._answers else 200

    def note(self, what: dict[str, Any]) -> None:
        try:
            self.checker.parents()
        except Wrong as error:
            what["parents"] = str(error)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(what) + "\n")


def _hexed(value: Any, name: str = "") -> Any:
    """Return the received message as OTLP JSON, which the importer reads."""
    if isinstance(value, dict):
        return {key: _hexed(held, key) for key, held in value.items()}
    if isinstance(value, list):
        return [_hexed(one) for one in value]
    if name in ("traceId", "spanId", "parentSpanId"):
        return base64.b64decode(value).hex()
    return value


@dataclass(frozen=True)
class Running:
    """A running receiver."""

    url: str
    log: Path

    def noted(self) -> list[dict[str, Any]]:
        """Return the received requests."""
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]

    def checked(self) -> list[dict[str, Any]]:
        """Return the received requests after the check that all are valid and no parent is missing."""
        found = self.noted()
        assert found, "nothing was received"
        assert not [one["wrong"] for one in found if "wrong" in one]
        assert "parents" not in found[-1], found[-1]["parents"]
        return found

    def export(self) -> dict[str, Any]:
        """Return all received spans as one export in OTLP JSON."""
        taken = [one["request"] for one in self.checked() if "spans" in one]
        return {"resourceSpans": [resource for one in taken for resource in one["resourceSpans"]]}


@contextmanager
def receiving(folder: Path, *options: str) -> Iterator[Running]:
    """Run a receiver, and end it by its process id."""
    log = folder / "received.jsonl"
    log.touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.otlp_receiver", str(log), *options],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[1], env={**os.environ},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port.isdigit(), "the receiver did not start"
        yield Running(url=f"http://127.0.0.1:{port}", log=log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        process.stdout.close()


def main() -> None:
    """Serve until the process ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("log")
    parser.add_argument("--answers", default="")
    parser.add_argument("--retry-after", default="0")
    parser.add_argument("--reject", type=int, default=0)
    parser.add_argument("--header", default="")
    server = Receiver(parser.parse_args())
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
