"""Builders of completed requests for the tests of telemetry."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from agentguard_server.proxy.hooks import CompletedRequest, ProxyRequest

_REQUEST_FIELDS = {one.name for one in fields(ProxyRequest)}


def recorded(**given: Any) -> CompletedRequest:
    """Return a completed request; the keywords replace fields of its defaults."""
    asked = {
        "api": "chat",
        "method": "POST",
        "target": "/v1/chat/completions",
        "headers": (),
        "body": b'{"model":"m"}',
        "stream": False,
        "model": "m",
        "tenant": "t",
        "run_id": "",
        "request_id": "r1",
        "started_at": 0.0,
    } | {name: value for name, value in given.items() if name in _REQUEST_FIELDS}
    rest = {
        "sent_body": None,
        "status": 200,
        "response_body": b"{}",
        "is_complete": True,
        "replica": "a",
        "error_code": "",
        "guard_outcome": None,
        "notes": (),
        "time_to_first_byte_s": 0.01,
        "duration_s": 0.02,
    } | {name: value for name, value in given.items() if name not in _REQUEST_FIELDS}
    return CompletedRequest(request=ProxyRequest(**asked), **rest)
