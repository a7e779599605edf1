"""Admin application for all paths that are not model APIs. The proxy has already checked the API key."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from agentguard.errors import AgentGuardError
from agentguard_server.proxy.admin.desired_state import DesiredState
from agentguard_server.proxy.admin.openapi import AdminEndpoint, build_openapi
from agentguard_server.proxy.admin.status import ProxyStatus
from agentguard_server.proxy.admin.status_page import render_status_page
from agentguard_server.proxy.admin.viewer_mount import build_viewer_mount
from agentguard_server.proxy.auth.authorization import ANONYMOUS, Caller
from agentguard_server.proxy.litellm import PATH, REQUEST_SCHEMA, LiteLLMGuardrail
from agentguard_server.proxy.telemetry.prometheus import CONTENT_TYPE, render_prometheus
from agentguard_server.viewer.security_middleware import add_security_headers

_LOG = logging.getLogger("agentguard.proxy")
_MAX_SESSIONS: Final = 1000
_NO_STORE: Final = {"cache-control": "no-store"}


class AdminApp:
    """ASGI application with the admin endpoints and the viewer.

    Args:
        proxy_status: status of the proxy.
    """

    def __init__(self, proxy_status: ProxyStatus) -> None:
        self.proxy_status = proxy_status
        self.endpoints = _build_endpoints(self)
        self._guardrail = LiteLLMGuardrail(lambda: proxy_status.app_state.interceptor)
        self._viewer_mount = build_viewer_mount(proxy_status)
        self._app = self._build_app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        await self._app(scope, receive, add_security_headers(send))

    def _build_app(self) -> Starlette:
        routes: list[Any] = [Route(one.path, one.handler, methods=[one.method]) for one in self.endpoints]
        if self._viewer_mount is not None:
            routes.append(Mount("/ui", self._viewer_mount))
        return Starlette(
            routes=routes,
            exception_handlers={
                404: _handle_not_found,
                405: _handle_not_found,
                AgentGuardError: _handle_error,
                Exception: _handle_unexpected_error,
            },
        )

    # -- health

    async def healthz(self, _: Request) -> Response:
        """Report that the process runs."""
        return _build_json_response({"ok": True})

    async def readyz(self, _: Request) -> Response:
        """Report whether the worker is ready for requests."""
        why = self.proxy_status.list_unready_reasons()
        return _build_json_response({"ready": not why, "why": why}, 503 if why else 200)

    async def metrics(self, _: Request) -> Response:
        """Return the metrics of all workers for Prometheus."""
        # Rendered in a thread, since many series take milliseconds.
        metrics = self.proxy_status.aggregate_metrics()
        if metrics is None:
            return _build_error_response(404, "not_found", "metrics are disabled: set metrics.enabled")
        return Response(
            await asyncio.to_thread(render_prometheus, metrics), media_type=CONTENT_TYPE, headers=_NO_STORE
        )

    async def status(self, request: Request) -> Response:
        """Return the status of all workers, as JSON or as a page for ``Accept: text/html``."""
        status = self.proxy_status.aggregate()
        if _accepts_html(request):
            body, policy = render_status_page(status)
            headers = {**_NO_STORE, "content-security-policy": policy}
            return Response(body, media_type="text/html; charset=utf-8", headers=headers)
        return _build_json_response(status)

    async def openapi(self, _: Request) -> Response:
        """Return this OpenAPI description."""
        return _build_json_response(build_openapi(self.endpoints))

    # -- replicas

    async def replicas(self, _: Request) -> Response:
        """Return this worker's replicas and their desired states."""
        return _build_json_response(
            {
                "replicas": self.proxy_status.pool.status()["replicas"],
                "desired": dict(self.proxy_status.desired_replicas.read()),
            }
        )

    async def drain(self, request: Request) -> Response:
        """Start to drain a replica: it gets no new requests."""
        return await self._set_desired_state(request, "drain")

    async def undrain(self, request: Request) -> Response:
        """Stop draining a replica: it gets new requests again."""
        return await self._set_desired_state(request, None)

    async def remove(self, request: Request) -> Response:
        """Remove a replica until the next reload of the configuration; its requests in flight finish."""
        return await self._set_desired_state(request, "remove")

    async def _set_desired_state(self, request: Request, desired: DesiredState | None) -> Response:
        name, state = request.path_params["name"], self.proxy_status
        known = {one["name"]: one for one in state.pool.status()["replicas"]}
        if name not in known:
            return _build_error_response(
                404, "not_found", "there is no replica of that name; GET /agentguard/v1/replicas lists them"
            )
        if desired == "remove" and len([one for one in known.values() if one["state"] != "leaving"]) == 1:
            return _build_error_response(
                409, "last_replica", "the last replica cannot be removed; drain it, or stop the proxy"
            )
        try:
            state.desired_replicas.set(name, desired)
        except OSError as error:
            return _build_error_response(
                503, "unavailable", f"the workers cannot be notified: {error.strerror}"
            )
        await state.desired_replicas.reconcile(state.pool)
        _LOG.warning("replica %s: %s, by an administrator", name, desired or "undrain")
        found = [one for one in state.pool.status()["replicas"] if one["name"] == name]
        return _build_json_response({"replica": found[0] if found else None, "desired": desired}, 202)

    # -- sessions

    async def sessions(self, request: Request) -> Response:
        """Return the guarded runs of the key's tenant, the most recently used first."""
        most = _parse_limit(request.query_params.get("most"), 100)
        if most is None:
            return _build_error_response(
                400, "invalid_query", f"most must be a number from 1 to {_MAX_SESSIONS}"
            )
        found = self.proxy_status.list_sessions(_get_tenant(request), limit=most)
        return _build_json_response({"sessions": found or [], "guarded": found is not None})

    async def session(self, request: Request) -> Response:
        """Return one guarded run with its steps, findings and recoveries."""
        found = self.proxy_status.find_session(request.path_params["id"], _get_tenant(request))
        if found is None:
            return _build_error_response(
                404, "not_found", "no worker has this run of the tenant; the viewer shows stored runs"
            )
        return _build_json_response(found)

    async def guardrail(self, request: Request) -> Response:
        """Judge a request or a response for LiteLLM's generic guardrail API."""
        if self.proxy_status.app_state.interceptor is None:
            return _build_error_response(404, "not_found", "no guard is configured: set the section `guard`")
        return await self._guardrail(request)

    def close(self) -> None:
        """Close the guardrail and the viewer with its open event streams. May wait for the disk."""
        self._guardrail.close()
        if self._viewer_mount is not None:
            self._viewer_mount.close()


def _build_endpoints(admin: AdminApp) -> tuple[AdminEndpoint, ...]:
    replica = "/agentguard/v1/replicas/{name}"
    change = {202: "applied by this worker; the others follow within a second", 404: "no such replica"}
    most = {"most": {"type": "integer", "minimum": 1, "maximum": _MAX_SESSIONS, "default": 100}}
    ready = {200: "the worker is ready", 503: "the worker is not ready; `why` has the reasons"}
    verdict = {200: "the verdict", 400: "the request is not valid", 404: "no guard is configured"}
    metrics = {200: "the text format, 0.0.4", 404: "metrics are disabled"}
    runs = {200: "the runs", 400: "the query is not valid"}
    run = {200: "the run", 404: "no such run of this tenant"}
    return (
        AdminEndpoint("GET", "/healthz", "", admin.healthz, {200: "the process runs"}),
        AdminEndpoint("GET", "/readyz", "", admin.readyz, ready),
        AdminEndpoint("GET", "/metrics", "read", admin.metrics, metrics, media_type="text/plain"),
        AdminEndpoint("GET", "/status", "read", admin.status, {200: "the status"}),
        AdminEndpoint("GET", "/agentguard/v1/openapi.json", "read", admin.openapi, {200: "OpenAPI 3.1"}),
        AdminEndpoint("GET", "/agentguard/v1/replicas", "read", admin.replicas, {200: "the replicas"}),
        AdminEndpoint("POST", f"{replica}/drain", "admin", admin.drain, change),
        AdminEndpoint("POST", f"{replica}/undrain", "admin", admin.undrain, change),
        AdminEndpoint("DELETE", replica, "admin", admin.remove, {**change, 409: "it is the last replica"}),
        AdminEndpoint("GET", "/agentguard/v1/sessions", "read", admin.sessions, runs, query=most),
        AdminEndpoint("GET", "/agentguard/v1/sessions/{id}", "read", admin.session, run),
        AdminEndpoint("POST", PATH, "call", admin.guardrail, verdict, body_schema=REQUEST_SCHEMA),
    )


def get_caller(request: Request) -> Caller:
    """Return the client of a request, as the proxy authorized it."""
    found = request.scope.get("agentguard.caller")
    return found if isinstance(found, Caller) else ANONYMOUS


def _get_tenant(request: Request) -> str:
    return get_caller(request).tenant


def _parse_limit(text: str | None, default: int) -> int | None:
    if text is None:
        return default
    with contextlib.suppress(ValueError):
        if len(text) <= 6 and 1 <= int(text) <= _MAX_SESSIONS:
            return int(text)
    return None


def _accepts_html(request: Request) -> bool:
    accepted = request.headers.get("accept", "")
    return "text/html" in accepted and "application/json" not in accepted


def _build_json_response(data: Any, status: int = 200) -> Response:
    body = orjson.dumps(data, default=str, option=orjson.OPT_NON_STR_KEYS)
    return Response(body, status, media_type="application/json", headers=_NO_STORE)


def _build_error_response(status: int, code: str, message: str) -> Response:
    return _build_json_response(
        {"error": {"code": code, "message": message, "type": "agentguard_error"}}, status
    )


async def _handle_not_found(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # for mypy: Starlette raises it for both statuses
    response = _build_error_response(
        error.status_code,
        "not_found" if error.status_code == 404 else "method_not_allowed",
        "the proxy has no resource at this path; a client's base URL ends in /v1, but Anthropic's does not",
    )
    response.headers.update(error.headers or {})  # the ``Allow`` header
    return response


async def _handle_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, AgentGuardError)  # for mypy: it is registered for this class
    return _build_error_response(503, error.code, str(error))


async def _handle_unexpected_error(_: Request, error: Exception) -> Response:
    _LOG.error("an administrative request failed: %s", type(error).__name__)
    return _build_error_response(500, "internal_error", "the proxy failed; see its log")
