"""What stands before every page: who may ask, from where, and what a browser may do with the answer.

The viewer shows what untrusted programs wrote to whoever can reach its port, so that three things are
checked of each request before any page sees it:

- the name it was sent to, on loopback: a web site can point a name of its own at 127.0.0.1 and would then
  read the pages as if they were its own (DNS rebinding);
- a token, off loopback, compared in constant time;
- that a request which changes something comes from a page of the viewer itself (OWASP, "Cross-Site Request
  Forgery Prevention": Fetch Metadata and Origin).

Each answer carries a content security policy under which no page runs or loads what is not the viewer's own.
"""

from __future__ import annotations

import hashlib
import hmac
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentguard_server.viewer.settings import ViewerSettings, is_loopback

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
COOKIE_NAME: Final = "agentguard_view"
MAX_TARGET_BYTES: Final = 8 * 1024
"""Bytes of a path, and of a query."""
MAX_BODY_BYTES: Final = 64 * 1024

_SECURITY_HEADERS: Final = (
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
    ("cache-control", "private, no-cache"),
)
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_ALLOWED_METHODS: Final = _SAFE_METHODS | {"POST"}


class _Denied(Exception):
    """The request goes no further."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class SecurityMiddleware:
    """An ASGI application before another.

    Args:
        app: what is protected.
        settings: address, token and prefix.
    """

    def __init__(self, app: ASGIApp, settings: ViewerSettings) -> None:
        self._app, self._settings = app, settings
        self._is_loopback = is_loopback(settings.host)
        self._token = None if settings.token is None else _hash_token(settings.token)
        self._cookie = "" if settings.token is None else _derive_cookie(settings.token)
        # Cookies know no ports: viewers of one machine must not take each other's away.
        self._cookie_name = f"{COOKIE_NAME}_{self._cookie[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        secure = add_security_headers(send)
        try:
            headers = Headers(scope=scope)
            _require_valid_target(scope)
            self._require_local_host(headers)
            shown = self._authenticate(scope, headers)
            if scope["method"] not in _SAFE_METHODS:
                _require_same_origin(headers, is_bearer=shown == "bearer")
        except _Denied as denied:
            await _send_response(secure, denied.status, denied.reason)
            return
        if shown == "query":
            await self._sign_in(scope, secure)
            return
        await self._app(scope, _limit_body(receive), secure)

    def _require_local_host(self, headers: Headers) -> None:
        """On loopback, that the request was sent to a name of loopback."""
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            raise _Denied(HTTPStatus.BAD_REQUEST, "A request names one host.")
        if not self._is_loopback:
            return
        name = _host_name(hosts[0])
        if name is None or not (is_loopback(name) or name == self._settings.host):
            raise _Denied(
                HTTPStatus.MISDIRECTED_REQUEST,
                "This viewer answers to names of this machine alone: use http://127.0.0.1 or localhost, or "
                "start it with --host.",
            )

    def _authenticate(self, scope: Scope, headers: Headers) -> str:
        """How a request shows the token: ``"bearer"``, ``"cookie"``, ``"query"``; ``""`` if none is asked."""
        if self._token is None:
            return ""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(_hash_token(given.strip()), self._token):
            return "bearer"
        cookies = cookie_parser("; ".join(headers.getlist("cookie")))
        if hmac.compare_digest(_hash_token(cookies.get(self._cookie_name, "")), _hash_token(self._cookie)):
            # A link with the token in it loses the token also where it is not needed any more.
            return "query" if _extract_token(scope) is not None else "cookie"
        given = _extract_token(scope) or ""
        if scope["method"] in ("GET", "HEAD") and hmac.compare_digest(_hash_token(given), self._token):
            return "query"
        raise _Denied(
            HTTPStatus.UNAUTHORIZED,
            "This viewer needs its token: open the link that `agentguard view` printed, with its ?token=.",
        )

    async def _sign_in(self, scope: Scope, send: Send) -> None:
        """Keep the token in a cookie and take it out of the address, the history and what others are sent."""
        root = scope.get("root_path", "")
        path = scope.get("raw_path", scope["path"].encode()).decode("ascii", "replace")
        rest = [(k, v) for k, v in parse_qsl(_query_string(scope), keep_blank_values=True) if k != "token"]
        # Two slashes at the beginning would name another host.
        target = "/" + path.lstrip("/") + (f"?{urlencode(rest)}" if rest else "")
        kept = f"{self._cookie_name}={self._cookie}; Path={root or '/'}; HttpOnly; SameSite=Strict"
        if scope.get("scheme") == "https":
            kept += "; Secure"
        await _send_response(send, HTTPStatus.SEE_OTHER, "", (("location", target), ("set-cookie", kept)))


def _require_valid_target(scope: Scope) -> None:
    if scope["method"] not in _ALLOWED_METHODS:
        raise _Denied(HTTPStatus.METHOD_NOT_ALLOWED, "This viewer knows GET, HEAD and POST.")
    if (
        len(scope.get("raw_path") or b"") > MAX_TARGET_BYTES
        or len(scope.get("query_string") or b"") > MAX_TARGET_BYTES
    ):
        raise _Denied(HTTPStatus.REQUEST_URI_TOO_LONG, f"An address has at most {MAX_TARGET_BYTES:,} bytes.")
    if "\x00" in scope["path"]:
        raise _Denied(HTTPStatus.BAD_REQUEST, "An address holds no U+0000.")


def _require_same_origin(headers: Headers, *, is_bearer: bool) -> None:
    """That a request which changes something was made by a page of ours, or by a program with the token."""
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    if site is not None and site != "same-origin":
        raise _Denied(HTTPStatus.FORBIDDEN, "This was sent by a page of another site.")
    if origin is not None:
        if not _is_same_origin(origin, headers):
            raise _Denied(HTTPStatus.FORBIDDEN, "This was sent by a page of another origin.")
    elif site is None and not is_bearer:
        raise _Denied(
            HTTPStatus.FORBIDDEN,
            "The sender is unknown: a browser sends Origin, a program sends its token as Bearer.",
        )
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length) > MAX_BODY_BYTES:
        raise _Denied(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A form has at most {MAX_BODY_BYTES:,} bytes.")


def _is_same_origin(origin: str, headers: Headers) -> bool:
    try:
        given = urlsplit(origin)
    except ValueError:
        return False
    # A proxy before the viewer may end TLS: host and port must agree, the scheme may be another.
    return given.scheme in ("http", "https") and given.netloc.lower() == headers.get("host", "").lower()


def _host_name(host: str) -> str | None:
    """The name in a Host header, without its port; None if it is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc != host or "@" in host or parts.path or parts.query or parts.fragment:
        return None
    return (parts.hostname or "").rstrip(".") or None


def _query_string(scope: Scope) -> str:
    return (scope.get("query_string") or b"").decode("latin-1")


def _extract_token(scope: Scope) -> str | None:
    try:
        return dict(parse_qsl(_query_string(scope), keep_blank_values=True, max_num_fields=100)).get("token")
    except ValueError:
        return None


def _hash_token(text: str) -> bytes:
    """Of one length, so that comparing tells nothing of the token's."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _derive_cookie(token: str) -> str:
    """What the cookie holds: who sees it cannot tell the token."""
    return hmac.new(token.encode("utf-8", "surrogatepass"), b"agentguard view", hashlib.sha256).hexdigest()


def add_security_headers(send: Send) -> Send:
    """Give answers the headers that bind a browser, where they have none of those names yet."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _SECURITY_HEADERS:
                headers.setdefault(name, value)
        await send(message)

    return sending


def _limit_body(receive: Receive) -> Receive:
    """The body without its end where it is too long: whatever its length was said to be."""
    seen = 0

    async def receiving() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > MAX_BODY_BYTES:
                return {"type": "http.disconnect"}
        return message

    return receiving


async def _send_response(
    send: Send, status: HTTPStatus, reason: str, headers: tuple[tuple[str, str], ...] = ()
) -> None:
    body = f"{status.phrase}. {reason}\n".encode() if reason else b""
    told = [("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(body))), *headers]
    if status is HTTPStatus.UNAUTHORIZED:
        told.append(("www-authenticate", "Bearer"))
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        told.append(("allow", "GET, HEAD, POST"))
    encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in told]
    await send({"type": "http.response.start", "status": int(status), "headers": encoded})
    await send({"type": "http.response.body", "body": body})
