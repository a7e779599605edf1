"""Parser of a client's request, and its conversion into the request for the backend pool."""

from __future__ import annotations

import re
from typing import Final

from agentguard.backends.base import BackendRequest, Headers
from agentguard.model_api import API_FORMATS
from agentguard.resilience.base import RequestPriority
from agentguard_server.proxy.auth.api_keys import Caller
from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.hooks import ProxyRequest
from agentguard_server.proxy.http.request_cycle import RequestCycle
from agentguard_server.proxy.requests.body import (
    RequestFields,
    inspect_body,
    inspect_body_with_prefix,
)
from agentguard_server.proxy.requests.response_affinity import ResponseAffinity
from agentguard_server.proxy.routes import BASE_PATH, Route

_IDEMPOTENT_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""Idempotent methods: RFC 9110, 9.2.2."""
_METHODS: Final = _IDEMPOTENT_METHODS | {"POST", "PATCH"}
_QUERY: Final = re.compile(rb"[!\"$-\[\]-~]*")
"""Visible ASCII without ``#`` and the backslash, which some servers treat as a slash."""
_PRIORITIES: Final = {one.name.lower().encode(): one for one in RequestPriority}
_MAX_QUORUM_SIZE: Final = 9
_RUN_ID: Final = re.compile(rb"[\x21-\x7e]{1,256}")
_NO_FIELDS: Final = RequestFields()

HeaderPairs = list[tuple[bytes, bytes]]


def build_rejected_request(
    cycle: RequestCycle,
    route: Route,
    forwarded_headers: HeaderPairs,
    proxy_headers: dict[bytes, bytes],
    body: bytes,
    *,
    caller: Caller,
    request_id: str,
    started_at: float,
) -> ProxyRequest:
    """Build the request for the observers if the proxy rejected it before it parsed the body."""
    return ProxyRequest(
        api=route.api,
        method=cycle.method,
        target=build_target(cycle),
        headers=tuple(forwarded_headers),
        body=body,
        stream=False,
        model="",
        tenant=caller.tenant,
        run_id=proxy_headers.get(b"agentguard-run", b"").decode("latin-1"),
        request_id=request_id,
        started_at=started_at,
    )


def parse_request(
    cycle: RequestCycle,
    route: Route,
    forwarded_headers: HeaderPairs,
    proxy_headers: dict[bytes, bytes],
    body: bytes,
    *,
    caller: Caller,
    request_id: str,
    started_at: float,
    response_affinity: ResponseAffinity,
    needs_prefix_digest: bool,
) -> ProxyRequest:
    """Parse a request whose body is complete.

    Raises:
        ProxyError: 400 if the body is not JSON, or if an agentguard header or the query is not valid; 405
            for an unsupported method; 415 if the body has a Content-Encoding.
    """
    found, prefix, is_model = _NO_FIELDS, b"", route.kind == "model"
    method = cycle.method
    if cycle.query_string or method != "POST":
        require_forwardable(cycle)
    if is_model:
        if b"content-encoding" in proxy_headers and proxy_headers[b"content-encoding"] != b"identity":
            raise ProxyError(
                415, "unsupported_encoding", "a body must come as it is, without Content-Encoding"
            )
        if needs_prefix_digest:
            found, prefix = inspect_body_with_prefix(body)
        else:
            found = inspect_body(body)
    session, quorum_size, priority, replica = found.session_key, 1, RequestPriority.CRITICAL, ""
    if b"agentguard-run" in proxy_headers and proxy_headers[b"agentguard-run"] != b"off":
        session = _parse_run_id(proxy_headers[b"agentguard-run"])
    if b"agentguard-quorum" in proxy_headers:
        quorum_size = _parse_quorum_size(proxy_headers[b"agentguard-quorum"])
    if b"agentguard-priority" in proxy_headers:
        priority = _parse_priority(proxy_headers[b"agentguard-priority"])
    if not is_model or found.previous_response_id is not None:
        replica = response_affinity.lookup(_stored_response_id(cycle.raw_path, found))
    return ProxyRequest(
        api=route.api,
        method=method,
        target=build_target(cycle),
        headers=tuple(forwarded_headers),
        body=body,
        stream=bool(found.stream),
        model=found.model if isinstance(found.model, str) else "",
        tenant=caller.tenant,
        run_id=proxy_headers.get(b"agentguard-run", b"").decode("latin-1"),
        request_id=request_id,
        started_at=started_at,
        idempotent=(is_model and not found.background) or method in _IDEMPOTENT_METHODS,
        priority=priority,
        session_id=session,
        prefix_digest=prefix,
        quorum_size=quorum_size,
        pinned_replica=replica,
    )


def to_backend_request(
    request: ProxyRequest, *, headers: Headers, body: bytes, stream: bool
) -> BackendRequest:
    """Convert a request for the pool; the guard and tracing may replace its body and its headers."""
    return BackendRequest(
        target=request.target[len(BASE_PATH) :],
        method=request.method,
        headers=headers,
        body=body,
        api=API_FORMATS.get(request.api),
        stream=stream if request.api else request.method != "HEAD",  # downloads may be large
        idempotent=request.idempotent,
        priority=request.priority,
        model=request.model,
        session_id=request.session_id,
        prefix_digest=request.prefix_digest,
        quorum_size=request.quorum_size,
        pinned_replica=request.pinned_replica,
    )


def require_forwardable(cycle: RequestCycle) -> None:
    """Reject requests that cannot be forwarded; in the pool they would count as failures of a replica.

    Raises:
        ProxyError: 405 for the method, 400 for the query.
    """
    if cycle.method not in _METHODS:
        raise ProxyError(405, "method_not_allowed", "no such method is passed on")
    query = cycle.query_string
    if query and _QUERY.fullmatch(query) is None:
        raise ProxyError(400, "invalid_request", "a query has a character that none may have: encode it")


def build_target(cycle: RequestCycle) -> str:
    """Return path and query as the client sent them."""
    path, query = cycle.raw_path, cycle.query_string
    return (path + b"?" + query if query else path).decode("latin-1")


def _stored_response_id(path: bytes, fields: RequestFields) -> str:
    """Return the ID of the stored response that a request continues or addresses; empty without one."""
    if path.startswith(b"/v1/responses/"):
        return path[len(b"/v1/responses/") :].partition(b"/")[0].decode("latin-1")
    given = fields.previous_response_id
    return given if isinstance(given, str) else ""


def _parse_run_id(value: bytes) -> str:
    if _RUN_ID.fullmatch(value) is None:
        raise ProxyError(
            400, "invalid_header", "agentguard-run: 1 to 256 visible characters of ASCII, or off"
        )
    return value.decode()


def _parse_quorum_size(value: bytes) -> int:
    if not value.isdigit() or len(value) > 2 or not 1 <= int(value) <= _MAX_QUORUM_SIZE:
        raise ProxyError(400, "invalid_header", f"agentguard-quorum: a number from 1 to {_MAX_QUORUM_SIZE}")
    return int(value)


def _parse_priority(value: bytes) -> RequestPriority:
    found = _PRIORITIES.get(value.lower())
    if found is None:
        known = ", ".join(one.decode() for one in _PRIORITIES)
        raise ProxyError(400, "invalid_header", f"agentguard-priority: one of {known}")
    return found
