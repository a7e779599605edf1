"""Description of the admin endpoints as data, the source of the routes and of the OpenAPI document.

No endpoint takes an address, a command, an import path or a template: only the configuration determines
where the proxy sends requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from agentguard.version import __version__

Handler = Callable[[Request], Awaitable[Response]]
RequiredScope = Literal["", "read", "admin", "call"]

_NAME: Final = {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}
_ID: Final = {"type": "string", "minLength": 1, "maxLength": 256}
_PARAMETERS: Final[dict[str, Any]] = {"name": _NAME, "id": _ID}


@dataclass(frozen=True, slots=True)
class AdminEndpoint:
    """One method of one path. The first line of the handler's docstring is its summary.

    Attributes:
        method: HTTP method.
        path: path with its parameters in braces.
        required_scope: scope that the key must have; empty if no key is needed.
        handler: function that serves the request.
        responses: description of each response by status.
        media_type: media type of the response.
        query: JSON schema of each query parameter by name.
        body_schema: JSON schema of the body; None without a body.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    required_scope: RequiredScope
    handler: Handler
    responses: dict[int, str]
    _: KW_ONLY
    media_type: str = "application/json"
    query: dict[str, Any] | None = None
    body_schema: dict[str, Any] | None = None

    @property
    def summary(self) -> str:
        """Return the summary of the endpoint in one line."""
        return (self.handler.__doc__ or "").partition("\n")[0]


def build_openapi(endpoints: tuple[AdminEndpoint, ...]) -> dict[str, Any]:
    """Build the OpenAPI 3.1 description of endpoints."""
    paths: dict[str, Any] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _build_operation(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "agentguard", "version": __version__, "summary": "Health, status, administration."},
        "paths": paths,
        "components": {
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A key of this proxy."}
            }
        },
    }


def _build_operation(endpoint: AdminEndpoint) -> dict[str, Any]:
    needs = (
        f" Needs a key with the scope `{endpoint.required_scope}`."
        if endpoint.required_scope
        else " Needs no key."
    )
    made: dict[str, Any] = {
        "summary": endpoint.summary,
        "description": endpoint.summary + needs,
        "responses": {str(status): _build_response(endpoint, status) for status in endpoint.responses},
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in _PARAMETERS.items()
        if f"{{{name}}}" in endpoint.path
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in (endpoint.query or {}).items()
    ]
    if parameters:
        made["parameters"] = parameters
    if endpoint.body_schema is not None:
        made["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": endpoint.body_schema}},
        }
    if endpoint.required_scope:
        made["security"] = [{"key": []}]
        made["responses"]["401"] = {"description": "the key is missing or unknown"}
        made["responses"]["403"] = {
            "description": f"the key does not have the scope {endpoint.required_scope}"
        }
    return made


def _build_response(endpoint: AdminEndpoint, status: int) -> dict[str, Any]:
    schema = {"type": "object"} if endpoint.media_type == "application/json" else {"type": "string"}
    return {"description": endpoint.responses[status], "content": {endpoint.media_type: {"schema": schema}}}
