"""Security middleware of the viewer: request checks and security headers.

The viewer shows texts from untrusted programs. The middleware therefore checks each request:

- Host, on loopback: a web site can point its own domain name at 127.0.0.1 and would then read the pages as
  pages with the same origin (DNS rebinding).
- Token, on a non-loopback address: the comparison takes constant time.
- Origin, of a request that changes data: it must come from a page of the viewer (OWASP, "Cross-Site Request
  Forgery Prevention": Fetch Metadata and Origin).

Each response has a content security policy under which a page runs and loads only the viewer's own files.
"""

from __future__ import annotations

import hashlib
import hmac
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentguard.loopback import is_loopback

if TYPE_CHECKING:
    from agentguard_server.viewer.settings import ViewerSettings

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
COOKIE_NAME: Final = "agentguard_view"
MAX_TARGET_BYTES: Final = 8 * 1024
"""Upper bound on the size of the path, and on that of the query."""
MAX_BODY_BYTES: Final = 64 * 1024
"""Upper bound on the size of a request body."""

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


class _RejectedRequest(Exception):
    """Request that is answered with an error."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class SecurityMiddleware:
    """ASGI middleware that checks requests before it passes them to the application.

    Args:
        app: protected application.
        settings: address, token and prefix of the viewer.
    """

    def __init__(self, app: ASGIApp, settings: ViewerSettings) -> None:
        self._app, self._settings = app, settings
        self._is_loopback = is_loopback(settings.host)
        self._token = None if settings.token is None else _hash_token(settings.token)
        self._cookie = "" if settings.token is None else _derive_cookie(settings.token)
        # cookies are shared by all ports of a host, so several viewers on a machine need different names
        self._cookie_name = f"{COOKIE_NAME}_{self._cookie[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request; pass it to the application, or reject it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        send_secured = add_security_headers(send)
        try:
            headers = Headers(scope=scope)
            _require_valid_target(scope)
            self._require_local_host(headers)
            credential = self._authenticate(scope, headers)
            if scope["method"] not in _SAFE_METHODS:
                _require_same_origin(headers, is_bearer=credential == "bearer")
        except _RejectedRequest as error:
            await _send_response(send_secured, error.status, error.reason)
            return
        if credential == "query":
            await self._sign_in(scope, send_secured)
            return
        await self._app(scope, _limit_body(receive), send_secured)

    def _require_local_host(self, headers: Headers) -> None:
        """Check on loopback that the Host header names a loopback address or the configured host."""
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            raise _RejectedRequest(HTTPStatus.BAD_REQUEST, "A request must name exactly one host.")
        if not self._is_loopback:
            return
        name = _parse_host(hosts[0])
        if name is None or not (is_loopback(name) or name == self._settings.host):
            raise _RejectedRequest(
                HTTPStatus.MISDIRECTED_REQUEST,
                "This viewer accepts only names of this machine: use http://127.0.0.1 or localhost, or "
                "start it with --host.",
            )

    def _authenticate(self, scope: Scope, headers: Headers) -> str:
        """Return the place of the token: ``"bearer"``, ``"cookie"`` or ``"query"``, else ``""``."""
        if self._token is None:
            return ""
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(_hash_token(token.strip()), self._token):
            return "bearer"
        cookies = cookie_parser("; ".join(headers.getlist("cookie")))
        if hmac.compare_digest(_hash_token(cookies.get(self._cookie_name, "")), _hash_token(self._cookie)):
            # even with a valid cookie, the redirect removes the token from the URL
            return "query" if _extract_token(scope) is not None else "cookie"
        token = _extract_token(scope) or ""
        if scope["method"] in ("GET", "HEAD") and hmac.compare_digest(_hash_token(token), self._token):
            return "query"
        raise _RejectedRequest(
            HTTPStatus.UNAUTHORIZED,
            "This viewer needs its token: open the link that `agentguard view` printed, with its ?token=.",
        )

    async def _sign_in(self, scope: Scope, send: Send) -> None:
        """Set the cookie and redirect to the URL without the token, which the history would keep."""
        root = scope.get("root_path", "")
        path = scope.get("raw_path", scope["path"].encode()).decode("ascii", "replace")
        parameters = [
            (k, v) for k, v in parse_qsl(_query_string(scope), keep_blank_values=True) if k != "token"
        ]
        # a target that begins with two slashes names another host
        target = "/" + path.lstrip("/") + (f"?{urlencode(parameters)}" if parameters else "")
        cookie = f"{self._cookie_name}={self._cookie}; Path={root or '/'}; HttpOnly; SameSite=Strict"
        if scope.get("scheme") == "https":
            cookie += "; Secure"
        await _send_response(send, HTTPStatus.SEE_OTHER, "", (("location", target), ("set-cookie", cookie)))


def _require_valid_target(scope: Scope) -> None:
    if scope["method"] not in _ALLOWED_METHODS:
        raise _RejectedRequest(HTTPStatus.METHOD_NOT_ALLOWED, "This viewer supports GET, HEAD and POST.")
    if (
        len(scope.get("raw_path") or b"") > MAX_TARGET_BYTES
        or len(scope.get("query_string") or b"") > MAX_TARGET_BYTES
    ):
        raise _RejectedRequest(
            HTTPStatus.REQUEST_URI_TOO_LONG, f"An address has at most {MAX_TARGET_BYTES:,} bytes."
        )
    if "\x00" in scope["path"]:
        raise _RejectedRequest(HTTPStatus.BAD_REQUEST, "The address contains U+0000.")


def _require_same_origin(headers: Headers, *, is_bearer: bool) -> None:
    """Check that a page of the viewer, or a program with the token, sent a request that changes data."""
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    if site is not None and site != "same-origin":
        raise _RejectedRequest(HTTPStatus.FORBIDDEN, "The request comes from a page of another site.")
    if origin is not None:
        if not _is_same_origin(origin, headers):
            raise _RejectedRequest(HTTPStatus.FORBIDDEN, "The request comes from a page of another origin.")
    elif site is None and not is_bearer:
        raise _RejectedRequest(
            HTTPStatus.FORBIDDEN,
            "The sender is unknown: a browser sends Origin, a program sends its token as Bearer.",
        )
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length) > MAX_BODY_BYTES:
        raise _RejectedRequest(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A form has at most {MAX_BODY_BYTES:,} bytes."
        )


def _is_same_origin(origin: str, headers: Headers) -> bool:
    try:
        origin_url = urlsplit(origin)
    except ValueError:
        return False
    # a proxy in front of the viewer may terminate TLS, so the schemes may differ
    return (
        origin_url.scheme in ("http", "https")
        and origin_url.netloc.lower() == headers.get("host", "").lower()
    )


def _parse_host(host: str) -> str | None:
    """Return the name in a Host header, without its port; None if the header is not valid."""
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
    """Return a hash of fixed length, so that a comparison does not leak the length of the token."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _derive_cookie(token: str) -> str:
    """Return the value of the cookie; the token cannot be derived from it."""
    return hmac.new(token.encode("utf-8", "surrogatepass"), b"agentguard view", hashlib.sha256).hexdigest()


def add_security_headers(send: Send) -> Send:
    """Return a ``send`` that adds the missing security headers to a response."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _SECURITY_HEADERS:
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers


def _limit_body(receive: Receive) -> Receive:
    """Return a ``receive`` that disconnects if the body has more than `MAX_BODY_BYTES`.

    A client can omit Content-Length, or send more than it declares.
    """
    received_bytes = 0

    async def receive_limited() -> Message:
        nonlocal received_bytes
        message = await receive()
        if message["type"] == "http.request":
            received_bytes += len(message.get("body", b""))
            if received_bytes > MAX_BODY_BYTES:
                return {"type": "http.disconnect"}
        return message

    return receive_limited


async def _send_response(
    send: Send, status: HTTPStatus, reason: str, headers: tuple[tuple[str, str], ...] = ()
) -> None:
    body = f"{status.phrase}. {reason}\n".encode() if reason else b""
    fields = [("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(body))), *headers]
    if status is HTTPStatus.UNAUTHORIZED:
        fields.append(("www-authenticate", "Bearer"))
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        fields.append(("allow", "GET, HEAD, POST"))
    encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in fields]
    await send({"type": "http.response.start", "status": int(status), "headers": encoded})
    await send({"type": "http.response.body", "body": body})
