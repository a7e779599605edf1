"""Who is let in: deny by default, before anything else of a request is looked at."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from agentguard_server.net import is_loopback
from agentguard_server.proxy.auth.api_keys import ANYBODY, Caller
from agentguard_server.proxy.config.schema import Scope as Permission
from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.http.headers import extract_api_key
from agentguard_server.proxy.routes import Route
from agentguard_server.proxy.state import AppState, Scope

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SITES: Final = frozenset({b"host", b"origin", b"sec-fetch-site"})
_TRUSTED: dict[bytes, bool] = {}
_MOST_NAMES: Final = 256


def authorize(gateway: AppState, scope: Scope, route: Route, ours: dict[bytes, bytes]) -> Caller:
    """Whose request it is, if it may do what it asks for.

    Raises:
        Refusal: 401 without a key that is known, 403 for one that may not do this, 403 where there are no
            keys and a web site is behind it.
    """
    keys = gateway.keys
    if keys is None:
        if not gateway.settings.listen.without_keys:
            _check_site(scope)
        return ANYBODY
    caller = keys.find(extract_api_key(ours))
    if caller is None:
        raise ProxyError(401, "invalid_api_key", "a key of this proxy is needed: Authorization: Bearer ag-…")
    needed = _needed(scope["method"], route)
    if needed not in caller.scopes and not (needed == "read" and "admin" in caller.scopes):
        raise ProxyError(403, "insufficient_scope", f"this key lacks the scope {needed}")
    return caller


def _needed(method: str, route: Route) -> Permission:
    if route.kind != "admin" or route.api == "guardrail":
        return "call"
    return "read" if method in _READS else "admin"


def _check_site(scope: Scope) -> None:
    """Without keys only this machine is let in, and no web site that a browser on it has open.

    A site can point a name of its own at 127.0.0.1 (DNS rebinding), and can send forms anywhere.
    """
    for name, value in scope["headers"]:
        if name not in _SITES:
            continue
        if name == b"sec-fetch-site":
            if value == b"cross-site":
                raise ProxyError(403, "foreign_site", "this was sent by a page of another site")
        elif not (_TRUSTED.get(value) or _ours(value)):
            raise ProxyError(
                403, "foreign_site", "without keys only this machine is answered, by its own name"
            )


def _ours(value: bytes) -> bool:
    """Whether a Host or an Origin is this machine's; kept, as it comes with each request."""
    known = _TRUSTED.get(value)
    if known is None:
        text = value.decode("latin-1")
        try:
            parts = urlsplit(text if "://" in text else f"//{text}")
            known = parts.hostname is not None and "@" not in text and is_loopback(parts.hostname.rstrip("."))
        except ValueError:
            known = False
        if len(_TRUSTED) < _MOST_NAMES:
            _TRUSTED[value] = known
    return known
