"""Backend for one endpoint over HTTP/1.1."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal
from urllib.parse import unquote_plus, urlencode

import msgspec

from agentguard.backends.base import BackendRequest, Headers, Response, UpstreamError
from agentguard.backends.http.api_key_file import ApiKeyFile
from agentguard.backends.http.connection import HttpConnection
from agentguard.backends.http.connection_pool import ConnectionPool
from agentguard.backends.http.egress_policy import EgressPolicy, UpstreamOrigin, check_origin, parse_origin
from agentguard.backends.http.limits import HttpLimits
from agentguard.backends.http.response_parser import CONNECTION_FIELDS
from agentguard.backends.http.response_stream import HttpStream
from agentguard.backends.http.websocket_tunnel import open_websocket_tunnel
from agentguard.errors import BackendError, ConfigError, DeadlineExceeded
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.retry_after import parse_pushback

_ZLIB_WINDOW_BITS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}


def decompress(body: bytes, coding: bytes, *, max_bytes: int) -> bytes | None:
    """Return the decoded body; None if the coding is unknown, malformed, or exceeds ``max_bytes``.

    The limit applies to the decoded size, and is enforced during decoding (CVE-2025-48956 and similar).
    """
    window = _ZLIB_WINDOW_BITS.get(coding)
    if window is None:
        return None
    decoder = zlib.decompressobj(window)
    try:
        data = decoder.decompress(body, max_bytes + 1)
    except zlib.error:
        return None
    return data if decoder.eof and len(data) <= max_bytes and not decoder.unused_data else None


def remove_header(headers: Headers, name: bytes) -> Headers:
    """Return the headers without those of the given name."""
    return tuple(field for field in headers if field[0] != name)


def is_complete_json(body: bytes) -> bool:
    """Return whether a body is one JSON object or array, which shows that it is not truncated."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


Auth = Literal["bearer", "x-api-key", "api-key"]
"""Header that carries the key: ``Authorization: Bearer``, Anthropic's header, or Azure's."""

_CLOCK_TOLERANCE_S: Final = 1e-6
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_RETRY_FIELDS: Final = frozenset({b"retry-after", b"retry-after-ms", b"x-should-retry", b"date"})


class HttpBackend:
    """Backend for one endpoint, with its own connections. All calls must use the same event loop.

    Args:
        url: base URL to which targets are appended, e.g. ``http://127.0.0.1:8000/v1``.
        name: name of the endpoint in responses; by default the URL's host and port.
        key: the endpoint's API key; None if it needs none. With a key, the caller's own keys are not sent.
        headers: sent with every request, in place of the caller's headers of the same name.
        auth: header that carries the key.
        query: query parameters of every request, such as ``api-version``.
        key_file: file with the key, in place of ``key``; a changed key applies to the next request.
        egress: policy on addresses and trusted certificates.
        limits: limits on sizes, times and connections.

    Raises:
        ConfigError: the URL, the key or a header is invalid, or the address is refused.
        MissingExtra: the extra ``serve`` is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "",
        key: str | None = None,
        headers: Headers = (),
        auth: Auth = "bearer",
        query: Mapping[str, str] = MappingProxyType({}),
        key_file: ApiKeyFile | None = None,
        egress: EgressPolicy | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        egress = egress or EgressPolicy()
        self._origin = origin = check_origin(parse_origin(url), egress)
        self._egress = egress
        self.name = name or origin.authority
        self._limits = limits or HttpLimits()
        self._key_file = key_file

        def create_head_builder(key: str | None) -> RequestHeadBuilder:
            return RequestHeadBuilder(origin, key=key, auth=auth, headers=headers, query=query)

        self._create_head_builder = create_head_builder
        self._head_builder = create_head_builder(key if key_file is None else key_file.key)
        self._connection_pool = ConnectionPool(origin, egress, self._limits)

    @property
    def connection_count(self) -> int:
        """Return the current number of connections."""
        return self._connection_pool.count

    async def send(self, request: BackendRequest, deadline: Deadline) -> Response | HttpStream:
        """Send a request; return an event stream while it arrives, any other response when it is complete.

        A streaming request without an API gets every successful response as a stream.

        A request that is not idempotent gets a new connection if one may be opened. The endpoint may close an
        idle connection at the same moment, and then the client cannot know whether the request was received
        (RFC 9112, 9.3.1).

        Raises:
            UpstreamError: the endpoint responded with a status of 400 or more.
            BackendError: the endpoint was not reached (``unsent``), or its response is invalid or incomplete
                (``sent``).
            DeadlineExceeded: the deadline has passed.
        """
        if self._key_file is not None and self._key_file.refresh():
            self._head_builder = self._create_head_builder(self._key_file.key)
        head = self._head_builder.build(request)
        if request.is_tunnel:
            return await open_websocket_tunnel(
                head,
                self._origin,
                self._egress,
                self._limits,
                deadline,
                tls_arguments=self._connection_pool.tls_arguments,
                name=self.name,
            )
        remaining_s = deadline.at - deadline.clock.now()
        if remaining_s <= _CLOCK_TOLERANCE_S:
            raise DeadlineExceeded("the deadline passed before the call", stage="unsent")
        may_reuse = request.idempotent or not self._connection_pool.has_capacity
        connection, now = self._connection_pool.acquire_idle() if may_reuse else None, time.monotonic()
        if connection is None:
            connection = await self._connection_pool.acquire(deadline)
            remaining_s, now = deadline.remaining(), time.monotonic()
        try:
            self._connection_pool.start_request(connection, now + remaining_s)
            raw = request.stream and request.api is None
            await connection.send_request(head, request.body, bodiless=request.method == "HEAD", raw=raw)
        except BaseException:
            connection.abort()
            raise
        if connection.parser.is_streaming:
            return self._build_stream(request, connection)
        return self._build_response(request, connection)

    async def aclose(self) -> None:
        """Close all connections. Pending requests fail."""
        await self._connection_pool.aclose()

    def _build_stream(self, request: BackendRequest, connection: HttpConnection) -> HttpStream:
        reader = connection.parser
        if reader.encoding and request.api is not None:
            connection.abort()
            raise BackendError("the endpoint sent an encoded stream that was not requested", stage="sent")
        release = self._connection_pool.release
        return HttpStream(connection, release, self._limits, replica=self.name).start(request.api)

    def _build_response(self, request: BackendRequest, connection: HttpConnection) -> Response:
        reader = connection.parser
        status, headers, body = reader.status, reader.headers, reader.take_body()
        encoding, until_close = reader.encoding, reader.ends_at_close
        self._connection_pool.release(connection)
        if status == 200 and not encoding and not until_close:
            return Response(status=status, headers=headers, body=body, replica=self.name)
        if status >= 300:
            self._raise_for_status(status, headers, body)
        if until_close and not is_complete_json(body):
            raise BackendError("the response has no length, so it may be truncated", stage="sent")
        if encoding and request.api is not None:
            decoded_body = decompress(body, encoding, max_bytes=self._limits.max_body_bytes)
            if decoded_body is None:
                raise BackendError(
                    "the endpoint sent an encoded response that was not requested", stage="sent"
                )
            headers, body = remove_header(headers, b"content-encoding"), decoded_body
        return Response(status=status, headers=headers, body=body, replica=self.name)

    def _raise_for_status(self, status: int, headers: Headers, body: bytes) -> None:
        """Raise for a redirect or an error status; 304 and similar pass."""
        if status in _REDIRECTS:
            raise BackendError(
                "the endpoint answered with a redirect, which the proxy does not follow",
                status=status,
                stage="sent",
            )
        if status < 400:
            return
        if len(body) > self._limits.max_error_bytes:
            raise BackendError(
                f"{self.name} answered with status {status}, with a body above the limit",
                status=status,
                stage="sent",
            )
        answer = Response(status=status, headers=headers, body=body, replica=self.name)
        retry_fields = {
            name.decode(): value.decode("latin-1") for name, value in headers if name in _RETRY_FIELDS
        }
        raise UpstreamError(answer, retry_after_s=parse_pushback(retry_fields) if retry_fields else None)


_RESERVED_FIELDS: Final = CONNECTION_FIELDS | {
    b"host",
    b"content-length",
    b"accept-encoding",
    b"expect",
    b"proxy-authorization",
    b"http2-settings",
}
_API_KEY_FIELDS: Final = frozenset({b"authorization", b"x-api-key", b"api-key"})
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET: Final = re.compile(r"(?:(?:/(?!/)|\?)[!\"$-\[\]-~]*)?", re.ASCII)
_METHOD: Final = re.compile(r"(?!CONNECT$|TRACE$)[A-Z]{1,20}", re.ASCII)
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
_MAX_CACHED: Final = 1024


class RequestHeadBuilder:
    """Builder of request heads for one endpoint; it caches validated parts, since requests are similar.

    Args:
        origin: the endpoint.
        key: API key of the endpoint; None if it needs none. With a key, the caller's own keys are dropped.
        auth: header that carries the key: ``bearer`` means ``Authorization: Bearer``.
        headers: sent with every request, in place of the caller's headers of the same name.
        query: query parameters of every request, in place of the caller's parameters of the same name.
    """

    def __init__(
        self,
        origin: UpstreamOrigin,
        *,
        key: str | None,
        auth: str,
        headers: Headers,
        query: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        fixed = [(b"host", origin.authority.encode()), (b"accept-encoding", b"identity"), *headers]
        if key is not None:
            field = (b"authorization", b"Bearer ") if auth == "bearer" else (auth.encode(), b"")
            fixed.append((field[0], field[1] + key.encode()))
        for name, value in fixed:
            if not (_TOKEN.fullmatch(name) and _VALUE.fullmatch(value)):
                raise ConfigError("a backend's key, or one of its headers, contains forbidden characters")
        self._path, self._query, self._query_names = origin.path, urlencode(query), frozenset(query)
        own_fields = frozenset(name.lower() for name, _ in fixed) | (
            _API_KEY_FIELDS if key is not None else frozenset()
        )
        self._fixed_fields = b"".join(b"%s: %s\r\n" % field for field in fixed)
        self._starts: dict[tuple[str, str], bytes] = {}
        self._header_filter = _HeaderFilter(own_fields)

    def build(self, request: BackendRequest) -> bytes:
        """Return the head with its blank line. Raises BackendError (400, unsent) for an invalid request."""
        try:
            start = self._starts[request.method, request.target]
        except KeyError:
            start = self._build_start(request.method, request.target)
        is_forwarded = self._header_filter
        lines = [name + b": " + value for name, value in request.headers if is_forwarded[name]]
        lines.append(b"")
        block, breaks = b"\r\n".join(lines), len(lines) - 1
        if block.count(b"\r") != breaks or block.count(b"\n") != breaks or b"\0" in block:
            raise _build_error("a header contains forbidden characters")
        if request.body or request.method not in _BODILESS:
            return b"%b%bcontent-length: %d\r\n\r\n" % (start, block, len(request.body))
        return start + block + b"\r\n"

    def _build_start(self, method: str, target: str) -> bytes:
        """Build the request line and the fixed header fields."""
        if not _METHOD.fullmatch(method):
            raise _build_error("its method is not permitted")
        if not _TARGET.fullmatch(target) or _escapes_base_path(target):
            raise _build_error("its target is not permitted")
        path = self._path + (self._add_query(target) if self._query else target)
        line = f"{method} {path if path.startswith('/') else '/' + path} HTTP/1.1\r\n"
        start = line.encode() + self._fixed_fields
        if len(self._starts) < _MAX_CACHED and len(target) < 256:
            self._starts[method, target] = start
        return start

    def _add_query(self, target: str) -> str:
        path, _, query = target.partition("?")
        pairs = [
            pair
            for pair in query.split("&")
            if pair and unquote_plus(pair.partition("=")[0]) not in self._query_names
        ]
        return f"{path}?{'&'.join((*pairs, self._query))}"


class _HeaderFilter(dict[bytes, bool]):
    """Cache of whether a header is forwarded, by name; headers of agentguard's proxy are dropped."""

    def __init__(self, own_fields: frozenset[bytes]) -> None:
        super().__init__()
        self._own_fields = own_fields

    def __missing__(self, name: bytes) -> bool:
        if not _TOKEN.fullmatch(name):
            raise _build_error("the name of a header contains forbidden characters")
        lower_name = name.lower()
        is_forwarded = (
            lower_name not in _RESERVED_FIELDS
            and lower_name not in self._own_fields
            and not lower_name.startswith(b"agentguard-")
        )
        if len(self) < _MAX_CACHED and len(name) < 128:
            self[name] = is_forwarded
        return is_forwarded


def _escapes_base_path(target: str) -> bool:
    """Return whether a path leaves the base URL by dot segments or backslashes, encoded or not."""
    segments = target.partition("?")[0].lower().replace("%2e", ".").replace("%2f", "/").split("/")
    return "." in segments or ".." in segments or "%5c" in target.lower()


def _build_error(reason: str) -> BackendError:
    return BackendError(f"the request cannot be sent: {reason}", status=400, stage="unsent")
