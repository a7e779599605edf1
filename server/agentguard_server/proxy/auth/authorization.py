"""Authorisation of requests: deny by default, before any other part of a request is processed."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from agentguard.net import is_loopback
from agentguard_server.proxy.auth.api_keys import ANONYMOUS, Caller, Keyring
from agentguard_server.proxy.config.schema import Scope
from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.http.headers import HeaderPairs, extract_api_key
from agentguard_server.proxy.routes import Route

_READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SITE_HEADERS: Final = frozenset({b"host", b"origin", b"sec-fetch-site"})
_trusted_values: dict[bytes, bool] = {}
_MAX_CACHED_VALUES: Final = 256


def authorize(
    keyring: Keyring | None,
    route: Route,
    method: str,
    headers: HeaderPairs,
    proxy_headers: dict[bytes, bytes],
    *,
    allow_unauthenticated: bool,
) -> Caller:
    """Return the client of a request if the client may send it.

    Raises:
        ProxyError: 401 without a known key; 403 if the key lacks the scope; 403 for a request of a web site
            if no keys are configured.
    """
    if keyring is None:
        if not allow_unauthenticated:
            _require_local_site(headers)
        return ANONYMOUS
    caller = keyring.find(extract_api_key(proxy_headers))
    if caller is None:
        raise ProxyError(401, "invalid_api_key", "a key of this proxy is needed: Authorization: Bearer ag-…")
    needed = _required_scope(method, route)
    if needed not in caller.scopes and not (needed == "read" and "admin" in caller.scopes):
        raise ProxyError(403, "insufficient_scope", f"this key lacks the scope {needed}")
    return caller


def _required_scope(method: str, route: Route) -> Scope:
    if route.kind != "admin" or route.api == "guardrail":
        return "call"
    return "read" if method in _READ_METHODS else "admin"


def _require_local_site(headers: HeaderPairs) -> None:
    """Check that a request without a key was sent to a local name, and not by a web site in a browser.

    A site can point its domain name at 127.0.0.1 (DNS rebinding), and can send forms to any address.
    """
    for name, value in headers:
        if name not in _SITE_HEADERS:
            continue
        if name == b"sec-fetch-site":
            if value == b"cross-site":
                raise ProxyError(403, "foreign_site", "this was sent by a page of another site")
        elif not (_trusted_values.get(value) or _is_local(value)):
            raise ProxyError(
                403, "foreign_site", "without keys only this machine is answered, by its own name"
            )


def _is_local(value: bytes) -> bool:
    """Return whether a Host or Origin is a loopback name; results are cached, as each request has one."""
    known = _trusted_values.get(value)
    if known is None:
        text = value.decode("latin-1")
        try:
            parts = urlsplit(text if "://" in text else f"//{text}")
            known = parts.hostname is not None and "@" not in text and is_loopback(parts.hostname.rstrip("."))
        except ValueError:
            known = False
        if len(_trusted_values) < _MAX_CACHED_VALUES:
            _trusted_values[value] = known
    return known
