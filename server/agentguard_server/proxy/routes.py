"""Which path is which API, and what its answers look like when they are errors of ours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

ErrorShape = Literal["openai", "messages"]
RouteKind = Literal["model", "models", "through", "admin", "open", "none"]


@dataclass(frozen=True, slots=True)
class Route:
    """What becomes of a path.

    Attributes:
        kind: a model API that is read; the models; what passes through; our own, open or not; nothing.
        api: name of the model API; empty if it is none.
        shape: of our errors.
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
"""Beside the viewer, which asks for the key itself: a browser shows it once, and a cookie from then on."""
_LITELLM_PATH: Final = b"/beta/litellm_basic_guardrail_api"
# A path that a server below might read as another: dot segments, plain or encoded, and encoded slashes.
_AMBIGUOUS_PATH: Final = re.compile(rb"/\.{1,2}(?:/|$)|%2e|%2f|%5c|%00|\\|//|[^\x21-\x7e]", re.IGNORECASE)


def match_route(method: str, path: bytes) -> Route:
    """What becomes of a request.

    Args:
        method: of HTTP; a model API is read when it is asked with POST, anything else of it passes through.
        path: as it came, not decoded: what decides who gets in is what is sent on.
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
