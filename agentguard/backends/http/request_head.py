"""Builder of request heads from validated parts (RFC 9112, 3 and 5; RFC 9110, 7.6.1)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote_plus, urlencode

from agentguard.backends.base import BackendRequest, Headers
from agentguard.backends.http.egress_policy import UpstreamOrigin
from agentguard.errors import BackendError, ConfigError

CONNECTION_FIELDS: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Header fields of one connection, which are never forwarded."""
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
    """Builds request heads for one endpoint; validated parts are cached, since requests are similar.

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
        passes = self._header_filter
        lines = [name + b": " + value for name, value in request.headers if passes[name]]
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
        path, _, given = target.partition("?")
        kept = [
            pair
            for pair in given.split("&")
            if pair and unquote_plus(pair.partition("=")[0]) not in self._query_names
        ]
        return f"{path}?{'&'.join((*kept, self._query))}"


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
