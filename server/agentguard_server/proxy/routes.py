"""Routes of the proxy: API, authentication and error format by path."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

ErrorShape = Literal["openai", "messages"]
RouteKind = Literal["model", "models", "through", "admin", "open", "none"]


@dataclass(frozen=True, slots=True)
class Route:
    """Route of a path.

    Attributes:
        kind: ``model``: model API whose body the proxy reads. ``models``: list of models. ``through``: other
            path of the endpoint. ``admin``: admin application. ``open``: admin path without a key check.
            ``none``: no route.
        api: name of the model API; empty for other paths.
        error_shape: format of the proxy's errors.
    """

    kind: RouteKind
    api: str = ""
    error_shape: ErrorShape = "openai"


BASE_PATH: Final = b"/v1"
_PASSTHROUGH: Final = Route("through")
_MESSAGES_PASSTHROUGH: Final = Route("through", error_shape="messages")
_ADMIN: Final = Route("admin")
_GUARDRAIL: Final = Route("admin", "guardrail")
_PUBLIC: Final = Route("open")
_NOT_FOUND: Final = Route("none")
_MODEL_LIST: Final = Route("models")

_MODEL_ROUTES: Final = {
    b"/v1/chat/completions": Route("model", "chat"),
    b"/v1/completions": Route("model", "completions"),
    b"/v1/embeddings": Route("model", "embeddings"),
    b"/v1/responses": Route("model", "responses"),
    b"/v1/messages": Route("model", "messages", "messages"),
}
_PUBLIC_PATHS: Final = frozenset({b"/healthz", b"/readyz"})
"""Public paths besides the viewer, which authenticates browsers itself by key and cookie."""
_LITELLM_PATH: Final = b"/beta/litellm_basic_guardrail_api"
_AZURE_V1_PREFIX: Final = b"/openai/v1/"
_AZURE_PREFIXES: Final = (b"/openai/", b"/v1/deployments/")
_AZURE_DEPLOYMENT: Final = re.compile(
    rb"/(?:openai|v1)/deployments/[\w.~%-]{1,200}(/(?:chat/completions|completions|embeddings))", re.ASCII
)
# Paths that an endpoint may normalise to another path: dot segments, plain or encoded, and encoded slashes.
_AMBIGUOUS_PATH: Final = re.compile(rb"/\.{1,2}(?:/|$)|%2e|%2f|%5c|%00|\\|//|[^\x21-\x7e]", re.IGNORECASE)


def normalize_target(path: bytes, query: bytes) -> tuple[bytes, bytes]:
    """Return path and query of a request below ``/v1``; Azure's clients use other paths.

    ``/openai/deployments/NAME/chat/completions?api-version=…`` becomes ``/v1/chat/completions``.
    """
    if not path.startswith(_AZURE_PREFIXES):
        return path, query
    if path.startswith(_AZURE_V1_PREFIX):
        path = BASE_PATH + path[len(_AZURE_V1_PREFIX) - 1 :]
    elif found := _AZURE_DEPLOYMENT.fullmatch(path):
        path = BASE_PATH + found[1]
    else:
        return path, query
    kept = [pair for pair in query.split(b"&") if not pair.startswith(b"api-version=")]
    return path, b"&".join(kept)


def match_route(method: str, path: bytes) -> Route:
    """Return the route of a request.

    Args:
        method: HTTP method; only a POST to a model API is read, other methods pass through.
        path: path as the client sent it, not decoded, so that authorisation and endpoint see the same path.
    """
    if method == "POST":
        found = _MODEL_ROUTES.get(path)
        if found is not None:
            return found
    if path in _PUBLIC_PATHS or path == b"/ui" or path.startswith(b"/ui/"):
        return _PUBLIC
    if not path.startswith(b"/v1/"):
        return _GUARDRAIL if path == _LITELLM_PATH else _ADMIN
    if _AMBIGUOUS_PATH.search(path):
        return _NOT_FOUND
    if method == "GET" and (path == b"/v1/models" or path.startswith(b"/v1/models/")):
        return _MODEL_LIST
    return _MESSAGES_PASSTHROUGH if path.startswith(b"/v1/messages") else _PASSTHROUGH
