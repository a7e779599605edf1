"""Filters and builders of request and response headers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agentguard.backends.base import Headers
from agentguard_server.proxy.hooks import GuardOutcome

_HOP_BY_HOP: Final = {
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    b"http2-settings", b"proxy-authorization", b"proxy-authenticate",
}  # fmt: skip
"""Hop-by-hop headers: RFC 9110, 7.6.1."""
_CREDENTIALS: Final = {b"authorization", b"x-api-key", b"api-key", b"cookie"}
"""Credentials of the client; a cookie may be the viewer's."""
_PROXY_HEADERS: Final = {b"agentguard-run", b"agentguard-quorum", b"agentguard-priority"}
_RECOMPUTED: Final = {b"host", b"content-length", b"expect", b"accept-encoding"}
"""Headers that the upstream request sets again."""
_NOT_FORWARDED: Final = frozenset(
    _HOP_BY_HOP | _CREDENTIALS | _PROXY_HEADERS | _RECOMPUTED | {b"content-encoding"}
)
_NOT_RETURNED: Final = frozenset(_HOP_BY_HOP | {b"content-length"})
_API_KEY_HEADERS: Final = frozenset({b"authorization", b"x-api-key", b"api-key"})
_FORWARDED_AND_READ: Final = frozenset({b"content-encoding"})
"""Headers that the proxy forwards and also reads."""
_FORWARDED_AND_READ_WITH_KEYS: Final = _FORWARDED_AND_READ | _API_KEY_HEADERS

_MAX_CACHED_NAMES: Final = 1024
_MAX_CACHED_NAME_BYTES: Final = 128

HeaderPairs = Iterable[tuple[bytes, bytes]]


class _ForwardedNames(dict[bytes, bool]):
    """Cache of whether a header is only forwarded, by name; headers of this proxy are dropped."""

    def __missing__(self, name: bytes) -> bool:
        is_forwarded = name not in _NOT_FORWARDED and not name.startswith(b"agentguard-")
        if len(self) < _MAX_CACHED_NAMES and len(name) < _MAX_CACHED_NAME_BYTES:
            self[name] = is_forwarded
        return is_forwarded


_FORWARDED_NAMES: Final = _ForwardedNames()


def split_request_headers(
    headers: HeaderPairs, *, forward_api_key: bool
) -> tuple[list[tuple[bytes, bytes]], dict[bytes, bytes]]:
    """Split the headers of a request into those to forward and those for the proxy.

    Args:
        headers: headers as the client sent them, with names in lower case.
        forward_api_key: True to forward the client's API key, since the proxy has no keys itself.

    Returns:
        The headers to forward, in their order, and the headers for the proxy by name. A repeated header for
        the proxy has its first value.
    """
    forwarded: list[tuple[bytes, bytes]] = []
    proxy_headers: dict[bytes, bytes] = {}
    both = _FORWARDED_AND_READ_WITH_KEYS if forward_api_key else _FORWARDED_AND_READ
    for pair in headers:
        name = pair[0]
        if _FORWARDED_NAMES[name]:
            forwarded.append(pair)
            continue
        if name not in _NOT_FORWARDED:
            continue
        if name not in proxy_headers:
            proxy_headers[name] = pair[1]
        elif name in _API_KEY_HEADERS:
            proxy_headers[name] = b""  # two values are rejected, since the endpoint may read the other one
        elif name == b"connection":
            proxy_headers[name] += b"," + pair[1]
        if name in both:
            forwarded.append(pair)
    named = proxy_headers.get(b"connection", b"close")
    if named not in (b"keep-alive", b"close"):
        hop_by_hop = {token.strip().lower() for token in named.split(b",")}
        forwarded = [pair for pair in forwarded if pair[0] not in hop_by_hop]
    return forwarded, proxy_headers


def filter_response_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the upstream headers that the client gets; the caller adds the content length."""
    return [
        pair for pair in headers if pair[0] not in _NOT_RETURNED and not pair[0].startswith(b"agentguard-")
    ]


def build_guard_headers(outcome: GuardOutcome) -> list[tuple[bytes, bytes]]:
    """Build the response headers that describe the actions of the guard."""
    headers = [
        (b"agentguard-run", outcome.run_id.encode("latin-1", "replace")),
        (b"agentguard-step", b"%d" % outcome.step),
    ]
    if outcome.findings:
        codes = ",".join(code for code, _ in outcome.findings)
        headers.append((b"agentguard-findings", _to_visible_ascii(codes)))
    if outcome.recoveries:
        recoveries = ",".join(f"{strategy}@{step}" for strategy, step in outcome.recoveries)
        headers.append((b"agentguard-recoveries", _to_visible_ascii(recoveries)))
    if outcome.is_unjoined:
        headers.append((b"agentguard-unjoined", b"1"))
    if outcome.stopped:
        headers.append((b"agentguard-stopped", b"1"))
    if outcome.stream_mode:
        headers.append((b"agentguard-stream-mode", outcome.stream_mode.encode()))
    return headers


def _to_visible_ascii(text: str) -> bytes:
    return "".join(one if "!" <= one <= "~" else "?" for one in text).encode()


def is_retry(headers: HeaderPairs) -> bool:
    """Return whether a client marks its request as a retry, as the OpenAI and Anthropic SDKs do."""
    for name, value in headers:
        if name == b"x-stainless-retry-count":
            return value != b"0"
    return False


def extract_api_key(proxy_headers: dict[bytes, bytes]) -> bytes:
    """Return the API key from the header of OpenAI's, Anthropic's or Azure's clients; empty without one."""
    authorization = proxy_headers.get(b"authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(b" ")
        return key.strip() if scheme.lower() == b"bearer" else b""
    return proxy_headers.get(b"x-api-key") or proxy_headers.get(b"api-key") or b""
