"""HTTP transport of a judge over several servers: requests go through a pool with failover.

Every judge with an `agentguard.judge.llm.client.JudgeEndpoint` can use it: the chat judge and the pooling
judge. The endpoint's client sends its requests to an `agentguard.backends.pool.Pool`, not over its own
connections. The pool sends all questions about a run to one replica, whose prefix cache has the run. If that
replica fails, another one processes the run again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from agentguard.backends.backend_factory import read_api_key
from agentguard.backends.base import BackendRequest, Response, UpstreamError
from agentguard.backends.config import BackendsOptions
from agentguard.backends.pool import Pool
from agentguard.errors import (
    BackendError,
    ConfigError,
    DeadlineExceeded,
    MissingExtra,
    ResilienceError,
    RetriesExhausted,
    Stalled,
)
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import EndpointOptions
from agentguard.model_api import API_FORMATS
from agentguard.resilience import Deadline

if TYPE_CHECKING:
    import httpx2

PLACEHOLDER_URL: Final = "http://replicas.invalid/v1"
"""Base URL of an endpoint over replicas; a host name reserved by RFC 2606."""

_API_BY_PATH: Final = {
    "/v1/chat/completions": API_FORMATS["chat"],
    "/v1/embeddings": API_FORMATS["embeddings"],
}
_DEFAULT_TIMEOUT_S: Final = 60.0


def build_replicated_endpoint(
    replicas: Sequence[str | Mapping[str, Any]],
    *,
    model: str | None = None,
    key_env: str | None = None,
    options: EndpointOptions | None = None,
    pool: Mapping[str, Any] | None = None,
) -> JudgeEndpoint:
    """Build an endpoint over several servers of the same model.

    Args:
        replicas: URLs up to and with ``/v1``, or mappings as in the ``backends`` section, where ``url`` is
        such a URL and ``name`` is optional.
        model: name of the model; None selects the first that a replica lists.
        key_env: environment variable with the API key, for replicas without ``api_key_env``.
        options: deadlines and limits of a call.
        pool: other options of the ``backends`` section, e.g. ``policy`` or ``health``.

    Raises:
        ConfigError: there is no replica, a URL or option is invalid, or a key is missing.
        MissingExtra: the openai package, or a requirement of the pool's client, is not installed.
    """
    endpoint_options = options or EndpointOptions()
    pool_options = build_pool_options(
        replicas, key_env=key_env, deadline_s=endpoint_options.deadline_s, overrides=pool or {}
    )
    return JudgeEndpoint(
        PLACEHOLDER_URL,
        model=model,
        options=endpoint_options,
        transport=lambda: build_transport(pool_options),
    )


def build_pool_options(
    replicas: Sequence[str | Mapping[str, Any]],
    *,
    key_env: str | None,
    deadline_s: float,
    overrides: Mapping[str, Any],
) -> BackendsOptions:
    """Build the pool options of a judge: session affinity per run, and time for a second attempt.

    Raises:
        ConfigError: as for `build_replicated_endpoint`.
    """
    entries = [_parse_replica(index, replica, key_env) for index, replica in enumerate(replicas)]
    defaults = {
        # A bound on the load would move some of the concurrent questions of a run to another replica, which
        # would process the run again. The hashes of many runs distribute the load well enough.
        "load_balancing": {"name": "prefix_affinity", "max_load_factor": 0},
        "health": {"path": "/v1/models", "interval_s": 5.0, "unhealthy_threshold": 2, "healthy_threshold": 1},
        # A hedged request would cost a second prefill of a long prompt.
        "pipeline": {"hedge": "off", "attempt_timeout": {"seconds": deadline_s / 2}},
    }
    pool_options = BackendsOptions.parse({**defaults, **overrides, "replicas": entries}, source="judge")
    for replica in pool_options.replicas:
        read_api_key(replica)
    return pool_options


def build_transport(options: BackendsOptions) -> httpx2.AsyncBaseTransport:
    """Build a transport that sends an HTTP client's requests to its own pool.

    The pool starts on the event loop of the first request.

    Raises:
        MissingExtra: httpx2 is not installed.
    """
    try:
        import httpx2
    except ModuleNotFoundError:
        raise MissingExtra("httpx2", "chat") from None

    class PoolTransport(httpx2.AsyncBaseTransport):
        def __init__(self) -> None:
            self._pool: Pool | None = None

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            """Return the response of a replica; raise errors of the pool as errors of the HTTP client."""
            if self._pool is None:
                self._pool = Pool(options)
                await self._pool.start()
            body = await request.aread()
            limit = request.extensions.get("timeout", {}).get("read") or _DEFAULT_TIMEOUT_S
            try:
                answer = await self._pool.send(
                    to_backend_request(request.method, request.url.path, body), Deadline.after(limit)
                )
            except ResilienceError as error:
                return _to_response(httpx2, request, error)
            if not isinstance(answer, Response):
                await answer.aclose()
                raise httpx2.RemoteProtocolError(
                    "the endpoint sent a stream that was not requested", request=request
                )
            return _build_response(httpx2, answer)

        async def aclose(self) -> None:
            """Close the pool and its connections."""
            if self._pool is not None:
                pool, self._pool = self._pool, None
                await pool.aclose()

    return PoolTransport()


def to_backend_request(method: str, path: str, body: bytes) -> BackendRequest:
    """Convert a client's request to a request of the pool, with the prompt's first line as affinity key."""
    data = _parse_json_object(body)
    prompt_digest = _compute_prompt_digest(data)
    return BackendRequest(
        target=path,
        method=method,
        headers=((b"content-type", b"application/json"),) if body else (),
        body=body,
        api=_API_BY_PATH.get(path),
        model=data["model"] if isinstance(data.get("model"), str) else "",
        session_id=prompt_digest,
        prefix_digest=prompt_digest.encode(),
    )


def _to_response(sdk: Any, request: httpx2.Request, error: ResilienceError) -> httpx2.Response:
    """Return the response of an upstream error; raise any other error as an error of the HTTP client."""
    last = error.last if isinstance(error, RetriesExhausted) else error
    if isinstance(last, UpstreamError):
        return _build_response(sdk, last.response)
    if isinstance(last, DeadlineExceeded | Stalled):
        raise sdk.ReadTimeout("no replica answered in time", request=request)
    if isinstance(last, BackendError) and last.status is not None:
        return _build_response(sdk, Response(status=last.status, body=b"{}"))
    raise sdk.ConnectError("no replica can be reached", request=request)


def _build_response(sdk: Any, answer: Response) -> httpx2.Response:
    headers = [pair for pair in answer.headers if pair[0] not in (b"content-length", b"content-encoding")]
    response: httpx2.Response = sdk.Response(answer.status, headers=headers, content=answer.body)
    return response


def _parse_replica(index: int, replica: str | Mapping[str, Any], key_env: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"url": replica} if isinstance(replica, str) else dict(replica)
    url = entry.get("url")
    if not isinstance(url, str) or not url.rstrip("/").endswith("/v1"):
        raise ConfigError(f"judge: replicas[{index}]: url must be a URL that ends with /v1")
    entry["url"] = url.rstrip("/").removesuffix("/v1")
    entry.setdefault("name", f"judge-{index + 1}")
    if key_env is not None and "api_key_file" not in entry:
        entry.setdefault("api_key_env", key_env)
    return entry


def _parse_json_object(body: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError:
        return {}
    return data if isinstance(data, dict) else {}


def _compute_prompt_digest(body: Mapping[str, Any]) -> str:
    """Compute a digest of the prompt's first line, which contains the run's fence number."""
    first_line = ""
    messages, texts = body.get("messages"), body.get("input") or body.get("text_2")
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        first_line = str(messages[-1].get("content", "")).split("\n", 1)[0]
    elif isinstance(texts, list) and texts:
        first_line = str(texts[0])[:200]
    return hashlib.sha256(first_line.encode("utf-8", "replace")).hexdigest()[:32] if first_line else ""
