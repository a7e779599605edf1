"""Parser of a client's request: body with limits, fields, headers, and conversion for the backend pool."""

from __future__ import annotations

import asyncio
import re
from hashlib import blake2b
from typing import Any, Final

import msgspec

from agentguard.backends.base import BackendRequest, Headers
from agentguard.model_api import API_FORMATS
from agentguard.resilience.base import RequestPriority
from agentguard_server.proxy.auth.authorization import Caller
from agentguard_server.proxy.config.schema import LimitsOptions
from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.hooks import ProxyRequest
from agentguard_server.proxy.http.headers import HeaderPairs
from agentguard_server.proxy.http.request_cycle import RequestCycle
from agentguard_server.proxy.requests.response_affinity import ResponseAffinity
from agentguard_server.proxy.routes import BASE_PATH, Route

_IDEMPOTENT_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""Idempotent methods: RFC 9110, 9.2.2."""
_METHODS: Final = _IDEMPOTENT_METHODS | {"POST", "PATCH"}
_QUERY: Final = re.compile(rb"[!\"$-\[\]-~]*")
"""Visible ASCII without ``#`` and the backslash, which some servers treat as a slash."""
_PRIORITIES: Final = {one.name.lower().encode(): one for one in RequestPriority}
_MAX_QUORUM_SIZE: Final = 9
_RUN_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")  # the guard and capture ignore a longer ID
_EMPTY: Final = msgspec.Raw()
_PREFIX_BYTES: Final = 4096
"""Length of the hashed prefix of a text."""
_MAX_MESSAGES: Final = 8
"""Upper bound on the hashed messages if there is no user message."""


class ClientDisconnected(Exception):
    """Disconnect of the client before the end of its request."""


class BodyMemory:
    """Memory that the incomplete bodies of one worker use.

    Attributes:
        buffered_bytes: bytes of all incomplete bodies.
    """

    __slots__ = ("buffered_bytes",)

    def __init__(self) -> None:
        self.buffered_bytes = 0


def take_buffered_body(
    cycle: RequestCycle, limits: LimitsOptions, content_length: bytes | None
) -> bytes | None:
    """Return the body if it is complete; None if `read_body` must wait for the rest.

    Raises:
        ProxyError: 413 if the body, or the length that its header declares, exceeds the limit.
    """
    if (
        content_length is not None
        and len(content_length) < 20
        and int(content_length) > limits.max_body_bytes
    ):
        raise _build_size_error(limits.max_body_bytes)
    body = cycle.complete_body()
    if body is not None and len(body) > limits.max_body_bytes:
        raise _build_size_error(limits.max_body_bytes)
    return body


async def read_body(cycle: RequestCycle, limits: LimitsOptions, memory: BodyMemory) -> bytes:
    """Wait for the body, and return it.

    Raises:
        ProxyError: 413 if the body is too long; 408 if it takes too long; 503 if the incomplete bodies of all
            requests use too much memory.
        ClientDisconnected: the client has disconnected.
    """
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            return await _receive_body(cycle, limits, memory)
    except TimeoutError:
        raise ProxyError(
            408, "request_timeout", "the body did not arrive in time", closes_connection=True
        ) from None
    finally:
        cycle.resume_reading()


async def _receive_body(cycle: RequestCycle, limits: LimitsOptions, memory: BodyMemory) -> bytes:
    parts, size = [], 0
    try:
        while True:
            part = await cycle.receive_part()
            if part is None:
                raise ClientDisconnected
            if part:
                parts.append(part)
                size += len(part)
                memory.buffered_bytes += len(part)
                if size > limits.max_body_bytes:
                    raise _build_size_error(limits.max_body_bytes)
                if memory.buffered_bytes > limits.max_buffered_bytes:
                    raise ProxyError(
                        503,
                        "overloaded",
                        "the incomplete bodies exceed the memory limit",
                        retry_after_s=1,
                        closes_connection=True,
                    )
            if not cycle.more_body:
                return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        memory.buffered_bytes -= size


def _build_size_error(limit: int) -> ProxyError:
    return ProxyError(
        413, "request_too_large", f"the body exceeds the limit of {limit:,} bytes", closes_connection=True
    )


class RequestFields(msgspec.Struct, gc=False):
    """Fields of a body that all model APIs share; their values are not validated.

    Attributes:
        model: model of the request.
        stream: true for a streamed response.
        background: true if the client fetches the response later (responses API).
    """

    model: Any = None
    stream: Any = None
    background: Any = None
    prompt_cache_key: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    user: Any = None

    @property
    def session_key(self) -> str:
        """Return the first identifier that the requests of a session share; empty if the body has none."""
        if self.prompt_cache_key is None and self.conversation is None and self.user is None:
            return ""
        for given in (self.prompt_cache_key, self.conversation, self.user):
            if isinstance(given, str) and given:
                return given
        return ""


class _PromptFields(RequestFields, gc=False):
    """Fields of a body, and the parts of its prompt; decoding takes slightly longer."""

    messages: msgspec.Raw = _EMPTY
    input: msgspec.Raw = _EMPTY
    prompt: msgspec.Raw = _EMPTY
    system: msgspec.Raw = _EMPTY
    instructions: msgspec.Raw = _EMPTY


class _Message(msgspec.Struct, gc=False):
    role: Any = None


_FIELDS_DECODER: Final = msgspec.json.Decoder(RequestFields)
_PROMPT_DECODER: Final = msgspec.json.Decoder(_PromptFields)
_ITEMS_DECODER: Final = msgspec.json.Decoder(list[msgspec.Raw])
_MESSAGE_DECODER: Final = msgspec.json.Decoder(_Message)


def inspect_body(body: bytes) -> RequestFields:
    """Parse a body. Raises ProxyError with status 400 if it is not a JSON object."""
    try:
        return _FIELDS_DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise _build_json_error(error) from None


def inspect_body_with_prefix(body: bytes) -> tuple[RequestFields, bytes]:
    """Parse a body and hash the prefix of its prompt, up to the first user message.

    Requests of one run share this prefix. Runs of one task share it, too, and a replica may have it cached.

    Raises:
        ProxyError: status 400 if the body is not a JSON object.
    """
    try:
        found = _PROMPT_DECODER.decode(body)
        digest = blake2b(digest_size=16)
        for text in (found.system, found.instructions, found.prompt):
            digest.update(bytes(text)[:_PREFIX_BYTES])
        for part in (found.messages, found.input):
            _hash_prefix(digest, bytes(part))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise _build_json_error(error) from None
    return found, digest.digest()


def _hash_prefix(digest: blake2b, part: bytes) -> None:
    if not part.startswith(b"["):
        digest.update(part[:_PREFIX_BYTES])
        return
    for item in _ITEMS_DECODER.decode(part)[:_MAX_MESSAGES]:
        whole = bytes(item)
        digest.update(whole)
        if whole.startswith(b"{") and _MESSAGE_DECODER.decode(whole).role == "user":
            return


def _build_json_error(error: Exception) -> ProxyError:
    if isinstance(error, RecursionError):
        return ProxyError(400, "invalid_json", "the body is nested too deeply")
    if isinstance(error, msgspec.ValidationError):
        return ProxyError(400, "invalid_json", "the body must be a JSON object")
    return ProxyError(400, "invalid_json", "the body is not valid JSON")


_NO_FIELDS: Final = RequestFields()


def build_request(
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
    """Build a request from its head; `parse_request` adds the rest."""
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
    request: ProxyRequest,
    cycle: RequestCycle,
    proxy_headers: dict[bytes, bytes],
    *,
    is_model: bool,
    response_affinity: ResponseAffinity,
    needs_prefix_digest: bool,
) -> None:
    """Set the fields of a request that come from its body and from the headers for the proxy.

    Raises:
        ProxyError: 400 if the body is not JSON, or if an agentguard header or the query is not valid; 405
            for an unsupported method; 415 if the body has a Content-Encoding.
    """
    found, method = _NO_FIELDS, request.method
    if cycle.query_string or method != "POST":
        require_forwardable(cycle)
    if is_model:
        if b"content-encoding" in proxy_headers and proxy_headers[b"content-encoding"] != b"identity":
            raise ProxyError(415, "unsupported_encoding", "the body must not have a Content-Encoding")
        if needs_prefix_digest:
            found, request.prefix_digest = inspect_body_with_prefix(request.body)
        else:
            found = inspect_body(request.body)
    request.stream = bool(found.stream)
    request.model = found.model if isinstance(found.model, str) else ""
    request.idempotent = (is_model and not found.background) or method in _IDEMPOTENT_METHODS
    request.session_id = found.session_key
    if b"agentguard-run" in proxy_headers and proxy_headers[b"agentguard-run"] != b"off":
        request.session_id = _parse_run_id(proxy_headers[b"agentguard-run"])
    if b"agentguard-quorum" in proxy_headers:
        request.quorum_size = _parse_quorum_size(proxy_headers[b"agentguard-quorum"])
    if b"agentguard-priority" in proxy_headers:
        request.priority = _parse_priority(proxy_headers[b"agentguard-priority"])
    if not is_model or found.previous_response_id is not None:
        request.pinned_replica = response_affinity.lookup(_find_stored_response_id(cycle.raw_path, found))


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
        raise ProxyError(405, "method_not_allowed", "the method is not supported")
    query = cycle.query_string
    if query and _QUERY.fullmatch(query) is None:
        raise ProxyError(400, "invalid_request", "the query contains a character that must be encoded")


def build_target(cycle: RequestCycle) -> str:
    """Return path and query as the client sent them."""
    path, query = cycle.raw_path, cycle.query_string
    return (path + b"?" + query if query else path).decode("latin-1")


def _find_stored_response_id(path: bytes, fields: RequestFields) -> str:
    """Return the ID of the stored response that a request continues or addresses; empty without one."""
    if path.startswith(b"/v1/responses/"):
        return path[len(b"/v1/responses/") :].partition(b"/")[0].decode("latin-1")
    given = fields.previous_response_id
    return given if isinstance(given, str) else ""


def _parse_run_id(value: bytes) -> str:
    if _RUN_ID.fullmatch(value) is None:
        raise ProxyError(
            400, "invalid_header", "agentguard-run: 1 to 128 visible characters of ASCII, or off"
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
