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

MODEL_ROUTES: Final = {
    b"/v1/chat/completions": Route("model", "chat"),
    b"/v1/completions": Route("model", "completions"),
    b"/v1/embeddings": Route("model", "embeddings"),
    b"/v1/responses": Route("model", "responses"),
    b"/v1/messages": Route("model", "messages", "messages"),
}
"""Routes of the model APIs: a POST to exactly one of these paths."""
_PUBLIC_PATHS: Final = frozenset({b"/healthz", b"/readyz"})
"""Public paths besides the viewer, which authenticates browsers itself by key and cookie."""
_LITELLM_PATH: Final = b"/beta/litellm_basic_guardrail_api"
_ENCODED_UNRESERVED: Final = re.compile(rb"%(2[DdEe]|3[0-9]|[46][1-9A-Fa-f]|[57][0-9Aa]|5[Ff]|7[Ee])")
_MODEL_PREFIXES: Final = (b"/v1/", b"/openai/")
_AZURE_V1_PREFIX: Final = b"/openai/v1/"
_AZURE_PREFIXES: Final = (b"/openai/", b"/v1/deployments/")
_AZURE_DEPLOYMENT: Final = re.compile(
    rb"/(?:openai|v1)/deployments/[\w.~%-]{1,200}(/(?:chat/completions|completions|embeddings))/?", re.ASCII
)
# Paths that an endpoint may normalise to another path: dot segments, plain or encoded, and encoded slashes.
_AMBIGUOUS_PATH: Final = re.compile(rb"/\.{1,2}(?:/|$)|%2e|%2f|%5c|%00|\\|//|[^\x21-\x7e]", re.IGNORECASE)


def normalize_target(path: bytes, query: bytes) -> tuple[bytes, bytes]:
    """Return path and query in one spelling, so that route, guard and endpoint see the same path.

    The function decodes encoded letters (RFC 3986, 6.2.2.2), and removes a final slash of model APIs. Paths
    of Azure's clients, ``/openai/deployments/NAME/chat/completions?api-version=…``, become
    ``/v1/chat/completions``.
    """
    if b"%" in path:
        decoded = _ENCODED_UNRESERVED.sub(lambda found: bytes([int(found[1], 16)]), path)
        path = decoded if decoded.startswith(_MODEL_PREFIXES) else path  # admin paths have one spelling
    if path.startswith(_AZURE_PREFIXES):
        path, query = _normalize_azure_target(path, query)
    return (path[:-1] if path.endswith(b"/") and path[:-1] in MODEL_ROUTES else path), query


def _normalize_azure_target(path: bytes, query: bytes) -> tuple[bytes, bytes]:
    if path.startswith(_AZURE_V1_PREFIX):
        path = BASE_PATH + path[len(_AZURE_V1_PREFIX) - 1 :]
    elif found := _AZURE_DEPLOYMENT.fullmatch(path):
        path = BASE_PATH + found[1]
    else:
        return path, query
    return path, b"&".join(pair for pair in query.split(b"&") if not pair.startswith(b"api-version="))


def match_route(method: str, path: bytes) -> Route:
    """Return the route of a request.

    Args:
        method: HTTP method. The proxy reads only a POST to a model API; it forwards other methods.
        path: path as `normalize_target` returns it, so that authorisation and endpoint see the same path.
    """
    if method == "POST":
        found = MODEL_ROUTES.get(path)
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
