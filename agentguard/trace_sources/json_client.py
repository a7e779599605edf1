"""HTTP client for JSON APIs with retries that respect Retry-After; errors name URL, status and remedy.

It does not follow redirects, because headers contain keys and must only reach the configured address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from agentguard.errors import BackendError, ConfigError, DeadlineExceeded, MissingExtra
from agentguard.resilience import (
    AttemptTimeoutOptions,
    Backoff,
    BasicRequest,
    Deadline,
    Pipeline,
    RetryOptions,
    TimeoutOptions,
    parse_pushback,
)
from agentguard.version import __version__

if TYPE_CHECKING:
    import httpx2

_CONNECT_TIMEOUT_S: Final = 5.0
_MAX_FIRST_CONNECTS: Final = 2
"""Attempts to connect before the first connection: a wrong address is reported within seconds."""

_ATTEMPT_TIMEOUT_S: Final = 60.0
_TOTAL_TIMEOUT_S: Final = 300.0
_STRATEGIES = (
    TimeoutOptions(total_s=_TOTAL_TIMEOUT_S),
    RetryOptions(max_attempts=6, backoff=Backoff(initial_delay_s=0.5, max_delay_s=30.0)),
    AttemptTimeoutOptions(seconds=_ATTEMPT_TIMEOUT_S),
)


class JsonClient:
    """Client with a persistent connection; a context manager. Not for use in a running event loop.

    Args:
        base_url: address to which paths are appended.
        headers: headers with credentials; never shown.
        key_hint: names of the environment variables with the credentials, for errors.
        url_hint: name of the environment variable with the address, for errors.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], *, key_hint: str, url_hint: str) -> None:
        self._base_url = check_base_url(base_url, url_hint)
        self._headers, self._key_hint, self._url_hint = headers, key_hint, url_hint
        self._runner = asyncio.Runner()
        self._client: httpx2.AsyncClient | None = None
        self._has_connected, self._failed_connects = False, 0
        self._send = Pipeline(_STRATEGIES).bind(self._send_once)

    def __enter__(self) -> Self:
        try:
            import httpx2
        except ImportError:
            raise MissingExtra("httpx2", "traces") from None
        self._client = httpx2.AsyncClient(
            headers={**self._headers, "user-agent": f"agentguard/{__version__}"},
            timeout=httpx2.Timeout(_ATTEMPT_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
            follow_redirects=False,
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._runner.run(self._client.aclose())
        self._runner.close()

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON data of a GET request; parameters that are None are not sent."""
        given = {name: value for name, value in (params or {}).items() if value is not None}
        return self._send_and_wait("GET", path, {"params": given})

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON data of a POST request that only queries; fields that are None are not sent."""
        return self._send_and_wait("POST", path, {"json": {k: v for k, v in body.items() if v is not None}})

    def _send_and_wait(self, method: str, path: str, arguments: Mapping[str, Any]) -> Any:
        request = BasicRequest(payload=(method, f"{self._base_url}{path}", arguments))
        return self._runner.run(self._send(request, Deadline.never()))

    async def _send_once(self, request: BasicRequest, _deadline: Deadline) -> Any:
        import httpx2

        method, url, arguments = request.payload
        if self._client is None:
            raise RuntimeError("use a JsonClient as a context manager")
        try:
            response = await self._client.request(method, url, **arguments)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise self._build_connect_error(f"{method} {url}", error) from None
        except httpx2.TimeoutException:
            raise DeadlineExceeded(f"{method} {url}: no answer in time", stage="sent") from None
        except httpx2.TransportError as error:
            reason = f"{method} {url}: not reachable ({type(error).__name__}); check {self._url_hint}"
            raise BackendError(reason, stage="sent") from None
        self._has_connected = True
        if response.status_code != 200:
            raise self._build_error(method, url, response)
        try:
            return response.json()
        except ValueError:
            reason = f"{method} {url}: the answer is not JSON; check {self._url_hint}"
            raise BackendError(reason, status=400) from None

    def _build_connect_error(self, request: str, error: Exception) -> BackendError | ConfigError:
        """Return a retryable error, or a ConfigError after `_MAX_FIRST_CONNECTS` attempts at an address."""
        reason = f"{request}: not reachable ({type(error).__name__}); check {self._url_hint}"
        self._failed_connects += 1
        if not self._has_connected and self._failed_connects >= _MAX_FIRST_CONNECTS:
            return ConfigError(reason)
        return BackendError(reason, stage="unsent")

    def _build_error(self, method: str, url: str, response: httpx2.Response) -> BackendError:
        status = response.status_code
        headers = {name.lower(): value for name, value in response.headers.items()}
        hints = {401: f"check {self._key_hint}", 403: f"check {self._key_hint}"}
        hints[404] = f"check the name of the project and {self._url_hint}"
        if 300 <= status < 400:
            hints[status] = f"it redirects to {headers.get('location')}; set {self._url_hint} to that address"
        reason = f"{method} {url}: status {status}"
        hint = hints.get(status)
        return BackendError(
            f"{reason}; {hint}" if hint else reason,
            status=status,
            stage="sent",
            retry_after_s=parse_pushback(headers),
        )


def check_base_url(url: str, variable: str) -> str:
    """Return an address without a slash at its end. Raises ConfigError if it is not http or https."""
    if not url.startswith(("http://", "https://")) or not url.isprintable() or " " in url:
        raise ConfigError(f"{variable} is not an address; an address begins with http:// or https://")
    return url.rstrip("/")


def require_variable(environment: Mapping[str, str], name: str, product: str) -> str:
    """Return an environment variable. Raises ConfigError if it is not set."""
    if value := environment.get(name, "").strip():
        return value
    raise ConfigError(f"{name} is not set; {product} needs it, see docs/trace-sources.md")
