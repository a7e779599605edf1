"""Requests as recorders are told of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from agentguard_server.proxy.hooks import CompletedRequest, ProxyRequest

_ASKED = {one.name for one in fields(ProxyRequest)}


def recorded(**given: Any) -> CompletedRequest:
    """A request that went well, but for what is given of it."""
    asked = {
        "api": "chat",
        "method": "POST",
        "target": "/v1/chat/completions",
        "headers": (),
        "body": b'{"model":"m"}',
        "stream": False,
        "model": "m",
        "tenant": "t",
        "run": "",
        "id": "r1",
        "started": 0.0,
    } | {name: value for name, value in given.items() if name in _ASKED}
    rest = {
        "sent": None,
        "status": 200,
        "answer": b"{}",
        "complete": True,
        "replica": "a",
        "error": "",
        "guarded": False,
        "notes": (),
        "first_s": 0.01,
        "seconds": 0.02,
    } | {name: value for name, value in given.items() if name not in _ASKED}
    return CompletedRequest(request=ProxyRequest(**asked), **rest)
