"""Viewer under ``/ui``: authentication of browsers, and one viewer per tenant.

A browser cannot send an API key with each request. It sends the key once, as ``/ui/?token=KEY``, and gets a
cookie with the name of the key and an expiry time. The secret that signs cookies lasts as long as the proxy
runs. If a key is removed from the configuration, its cookies become invalid.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from agentguard_server.proxy.auth.authorization import ANONYMOUS, Caller, Keyring
from agentguard_server.proxy.config.schema import UiOptions
from agentguard_server.proxy.http.headers import extract_api_key, split_request_headers

if TYPE_CHECKING:
    from agentguard.store.store import Store
    from agentguard_server.proxy.admin.status import ProxyStatus

PREFIX: Final = "/ui"
COOKIE_NAME: Final = "agentguard_ui"
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class ViewerMount:
    """ASGI application that authenticates requests and passes them to the viewer of their tenant.

    Args:
        get_keyring: returns the current keys; None if the proxy has no keys.
        options: section ``ui`` of the configuration.
        host: address on which the proxy listens.
        store_url: URL of the store; by default that of the environment, or the default store.
        secret: secret that signs cookies; the same for all workers.
    """

    def __init__(
        self,
        get_keyring: Callable[[], Keyring | None],
        options: UiOptions,
        *,
        host: str,
        store_url: str | None,
        secret: bytes,
    ) -> None:
        self._get_keyring, self._options, self._host = get_keyring, options, host
        self._store_url, self._secret = store_url, secret
        self._store: Store | None = None
        self._token = secrets.token_urlsafe(24)
        self._viewers: dict[str, Starlette] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate a request and serve it."""
        caller, shown = self._authenticate(scope)
        if caller is None:
            text = "The viewer needs a key with the scope read: open /ui/?token=KEY, or send it as Bearer.\n"
            await PlainTextResponse(text, 401, {"www-authenticate": "Bearer"})(scope, receive, send)
        elif not _is_allowed(caller, scope["method"]):
            await PlainTextResponse("This key does not have the scope.\n", 403)(scope, receive, send)
        elif shown:
            await self._sign_in(scope, caller)(scope, receive, send)
        else:
            viewer = self._viewers.get(caller.tenant) or self._create_viewer(caller.tenant)
            await viewer(self._to_viewer_scope(scope), receive, send)

    def close(self) -> None:
        """Close the viewers' event streams and the store."""
        for viewer in self._viewers.values():
            viewer.state.hub.close()
            viewer.state.diagnosis_queue.stop()
        if self._store is not None:
            self._store.close(1.0)

    def _authenticate(self, scope: Scope) -> tuple[Caller | None, bool]:
        """Return the client, or None, and whether the key was in the URL."""
        keys = self._get_keyring()
        if keys is None:
            return ANONYMOUS, False
        _, proxy_headers = split_request_headers(scope["headers"], forward_api_key=False)
        token = _extract_token(scope)
        if token is not None and scope["method"] in ("GET", "HEAD"):
            return keys.find(token.encode()), True
        if key := extract_api_key(proxy_headers):
            return keys.find(key), False
        return self._find_by_cookie(proxy_headers.get(b"cookie", b"").decode("latin-1")), False

    def _find_by_cookie(self, cookie_header: str) -> Caller | None:
        """Return the client of a cookie; None if the cookie is missing, not valid or expired."""
        try:
            found = SimpleCookie(cookie_header).get(COOKIE_NAME)
        except CookieError:
            return None
        name, _, rest = ("" if found is None else found.value).rpartition(".")[0].partition("~")
        keys = self._get_keyring()
        held = None if keys is None else keys.find_by_name(name)
        if found is None or held is None or not rest.isascii() or not rest.isdigit() or len(rest) > 12:
            return None
        is_signed = hmac.compare_digest(
            self._sign_cookie(name, int(rest), held[0]).encode(), found.value.encode()
        )
        return held[1] if is_signed and time.time() < int(rest) else None

    def _sign_cookie(self, name: str, expires_at: int, digest: bytes) -> str:
        text = f"{name}~{expires_at}"
        signature = hmac.new(self._secret, digest + text.encode(), hashlib.sha256).hexdigest()
        return f"{text}.{signature}"

    def _sign_in(self, scope: Scope, caller: Caller) -> Response:
        """Set a cookie with the key's name and redirect to the URL without the key."""
        keys = self._get_keyring()
        held = None if keys is None else keys.find_by_name(caller.name)
        rest = [(k, v) for k, v in parse_qsl(_decode_query(scope), keep_blank_values=True) if k != "token"]
        # Only the path below the prefix: a location that begins with two slashes names another host.
        path = PREFIX + "/" + scope["path"].removeprefix(PREFIX).lstrip("/")
        response = RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), 303)
        if held is not None:
            max_age = int(self._options.session_lifetime_s)
            value = self._sign_cookie(caller.name, int(time.time()) + max_age, held[0])
            response.set_cookie(
                COOKIE_NAME,
                value,
                max_age=max_age,
                path=PREFIX,
                secure=scope.get("scheme") == "https",
                httponly=True,
                samesite="strict",
            )
        return response

    def _create_viewer(self, tenant: str) -> Starlette:
        """Create a tenant's viewer at its first request, so that other workers do not import SQLAlchemy."""
        from agentguard.store.store import Store
        from agentguard_server.viewer.app import build_app
        from agentguard_server.viewer.settings import ViewerSettings

        settings = ViewerSettings(
            host=self._host,
            token=self._token,
            tenant=tenant,
            evals=self._options.evals,
            prefix=PREFIX,
        )
        if self._store is None:
            self._store = Store.open(self._store_url, connect=False)
        viewer = self._viewers[tenant] = build_app(self._store, settings)
        return viewer

    def _to_viewer_scope(self, scope: Scope) -> Scope:
        """Return the scope for the viewer: with the viewer's token, without the client's credentials."""
        kept = [
            pair for pair in scope["headers"] if pair[0] not in (b"authorization", b"x-api-key", b"cookie")
        ]
        return {**scope, "headers": [*kept, (b"authorization", b"Bearer " + self._token.encode())]}


def build_viewer_mount(proxy_status: ProxyStatus) -> ViewerMount | None:
    """Create the viewer; return None if no store is configured or the viewer is disabled."""
    settings = proxy_status.app_state.settings
    options = settings.ui
    url = options.store
    if url is None and settings.capture is not None:
        url = settings.capture.store or ""
    if not options.enabled or url is None:
        return None
    return ViewerMount(
        lambda: proxy_status.app_state.keyring,
        options,
        host=settings.listen.host,
        store_url=url or None,
        secret=proxy_status.snapshots.load_secret(),
    )


def _is_allowed(caller: Caller, method: str) -> bool:
    """Return whether a client may send a request: safe methods need ``read``, others ``admin``."""
    return "admin" in caller.scopes or ("read" in caller.scopes and method in _SAFE_METHODS)


def _extract_token(scope: Scope) -> str | None:
    try:
        return dict(parse_qsl(_decode_query(scope), keep_blank_values=True, max_num_fields=100)).get("token")
    except ValueError:
        return None


def _decode_query(scope: Scope) -> str:

    found: bytes = scope.get("query_string") or b""
    return found.decode("latin-1")
