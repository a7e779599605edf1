"""List of models from the configuration, since replicas may use other model names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

import orjson

from agentguard.backends.base import Response
from agentguard.backends.config import ANY_MODEL, BackendsOptions
from agentguard_server.proxy.errors import ProxyError

PATH: Final = b"/v1/models"


def build_model_list_response(options: BackendsOptions, path: bytes) -> Response | None:
    """Build the response to a request for the list of models, or for one model.

    The response has the fields of both OpenAI's and Anthropic's API.

    Args:
        options: section ``backends`` with the current replicas.
        path: path as the client sent it.

    Returns:
        None if a replica may serve models that the configuration does not name; forward the request then.

    Raises:
        ProxyError: 404 if the model does not exist.
    """
    replica_models = [replica.models for replica in options.replicas]
    if not all(replica_models) or any(ANY_MODEL in models for models in replica_models):
        return None
    names = sorted({name for models in replica_models for name in models})
    if path in (PATH, PATH + b"/"):
        return _build_response(_build_list(names))
    name = unquote(path[len(PATH) + 1 :].decode("latin-1"))
    if name not in names:
        raise ProxyError(404, "model_not_found", "there is no such model; GET /v1/models lists the models")
    return _build_response(_build_model(name))


def _build_list(names: Iterable[str]) -> dict[str, Any]:
    data = [_build_model(name) for name in names]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return {"object": "list", "data": data, "has_more": False, **ends}


def _build_model(name: str) -> dict[str, Any]:
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "agentguard"}
    return {**openai, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def _build_response(data: dict[str, Any]) -> Response:
    return Response(status=200, headers=((b"content-type", b"application/json"),), body=orjson.dumps(data))
