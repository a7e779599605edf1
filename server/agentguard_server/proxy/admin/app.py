"""The application for all that is no model API. The gateway has checked the key before it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from agentguard.errors import AgentGuardError
from agentguard_server.proxy.admin.desired_state import Wish
from agentguard_server.proxy.admin.openapi import AdminEndpoint, described
from agentguard_server.proxy.admin.status import ProxyStatus
from agentguard_server.proxy.admin.status_page import page
from agentguard_server.proxy.admin.viewer_mount import viewer
from agentguard_server.proxy.auth.api_keys import ANYBODY, Caller
from agentguard_server.proxy.litellm import PATH, REQUEST_SCHEMA, Guardrail
from agentguard_server.proxy.telemetry.prometheus import CONTENT_TYPE, render_prometheus
from agentguard_server.security_middleware import secured

_LOG = logging.getLogger("agentguard.proxy")
_MOST: Final = 1000
_NO_STORE: Final = {"cache-control": "no-store"}


class Admin:
    """An ASGI application.

    Args:
        state: what there is to tell.
    """

    def __init__(self, state: ProxyStatus) -> None:
        self.state = state
        self.endpoints = _endpoints(self)
        self._guardrail = Guardrail(state.gateway)
        self._ui = viewer(state)
        self._app = self._built()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._app(scope, receive, secured(send))

    def _built(self) -> Starlette:
        routes: list[Any] = [Route(one.path, one.handler, methods=[one.method]) for one in self.endpoints]
        if self._ui is not None:
            routes.append(Mount("/ui", self._ui))
        return Starlette(
            routes=routes,
            exception_handlers={
                404: _missing,
                405: _missing,
                AgentGuardError: _failed,
                Exception: _unforeseen,
            },
        )

    # -- health

    async def healthz(self, _: Request) -> Response:
        """Whether the process lives."""
        return _json({"ok": True})

    async def readyz(self, _: Request) -> Response:
        """Whether requests should be sent here."""
        why = self.state.ready()
        return _json({"ready": not why, "why": why}, 503 if why else 200)

    async def metrics(self, _: Request) -> Response:
        """All workers' counts, for Prometheus."""
        # Off the loop: with many series it takes milliseconds.
        tally = self.state.tally()
        if tally is None:
            return _error(404, "not_found", "metrics are off: metrics.enabled")
        return Response(
            await asyncio.to_thread(render_prometheus, tally), media_type=CONTENT_TYPE, headers=_NO_STORE
        )

    async def status(self, request: Request) -> Response:
        """All workers' state; a page for who prefers text/html."""
        whole = self.state.aggregate()
        if _wants_page(request):
            body, policy = page(whole)
            headers = {**_NO_STORE, "content-security-policy": policy}
            return Response(body, media_type="text/html; charset=utf-8", headers=headers)
        return _json(whole)

    async def openapi(self, _: Request) -> Response:
        """This description."""
        return _json(described(self.endpoints))

    # -- replicas

    async def replicas(self, _: Request) -> Response:
        """The replicas as this worker sees them, and what was asked of them."""
        return _json(
            {"replicas": self.state.pool.status()["replicas"], "wishes": dict(self.state.wishes.read())}
        )

    async def drain(self, request: Request) -> Response:
        """Send a replica no new requests."""
        return await self._wish(request, "drain")

    async def undrain(self, request: Request) -> Response:
        """Send a drained replica requests again."""
        return await self._wish(request, None)

    async def remove(self, request: Request) -> Response:
        """Take a replica out until the configuration is read anew; what runs on it is finished."""
        return await self._wish(request, "remove")

    async def _wish(self, request: Request, what: Wish | None) -> Response:
        name, state = request.path_params["name"], self.state
        known = {one["name"]: one for one in state.pool.status()["replicas"]}
        if name not in known:
            return _error(404, "not_found", "there is no replica of that name; GET /agentguard/v1/replicas")
        if what == "remove" and len([one for one in known.values() if one["state"] != "leaving"]) == 1:
            return _error(
                409, "last_replica", "the last replica cannot be removed; drain it, or end the proxy"
            )
        try:
            state.wishes.set(name, what)
        except OSError as error:
            return _error(503, "unavailable", f"the workers cannot be told: {error.strerror}")
        await state.wishes.reconcile(state.pool)
        _LOG.warning("replica %s: %s, as was asked for", name, what or "undrain")
        found = [one for one in state.pool.status()["replicas"] if one["name"] == name]
        return _json({"replica": found[0] if found else None, "wish": what}, 202)

    # -- sessions

    async def sessions(self, request: Request) -> Response:
        """Guarded runs of the key's tenant, the latest used first."""
        most = _number(request.query_params.get("most"), 100)
        if most is None:
            return _error(400, "invalid_query", f"most: a number from 1 to {_MOST}")
        found = self.state.sessions(_tenant(request), most=most)
        return _json({"sessions": found or [], "guarded": found is not None})

    async def session(self, request: Request) -> Response:
        """One guarded run: its steps by name, what was found, what was done."""
        found = self.state.session(request.path_params["id"], _tenant(request))
        if found is None:
            return _error(404, "not_found", "this tenant has no such run here now; the viewer has those kept")
        return _json(found)

    async def guardrail(self, request: Request) -> Response:
        """LiteLLM's generic guardrail: judges a request or an answer."""
        if self.state.gateway.guarding is None:
            return _error(404, "not_found", "no guard is configured: the section `guard`")
        return await self._guardrail(request)

    def close(self) -> None:
        """Let go of what waits: pages that listen, runs whose answers are awaited. It may wait for a disk."""
        self._guardrail.close()
        if self._ui is not None:
            self._ui.close()


def _endpoints(admin: Admin) -> tuple[AdminEndpoint, ...]:
    """All endpoints there are."""
    replica = "/agentguard/v1/replicas/{name}"
    told = {202: "done here; every worker follows within a second", 404: "no such replica"}
    most = {"most": {"type": "integer", "minimum": 1, "maximum": _MOST, "default": 100}}
    unready = {200: "they should", 503: "they should not; `why` says it"}
    verdict = {200: "the verdict", 400: "no such request", 404: "no guard is configured"}
    counts = {200: "the text format, 0.0.4", 404: "metrics are off"}
    runs = {200: "the runs", 400: "a wrong query"}
    run = {200: "the run", 404: "no such run of this tenant"}
    return (
        AdminEndpoint("GET", "/healthz", "", admin.healthz, {200: "it does"}),
        AdminEndpoint("GET", "/readyz", "", admin.readyz, unready),
        AdminEndpoint("GET", "/metrics", "read", admin.metrics, counts, makes="text/plain"),
        AdminEndpoint("GET", "/status", "read", admin.status, {200: "the state"}),
        AdminEndpoint("GET", "/agentguard/v1/openapi.json", "read", admin.openapi, {200: "OpenAPI 3.1"}),
        AdminEndpoint("GET", "/agentguard/v1/replicas", "read", admin.replicas, {200: "the replicas"}),
        AdminEndpoint("POST", f"{replica}/drain", "admin", admin.drain, told),
        AdminEndpoint("POST", f"{replica}/undrain", "admin", admin.undrain, told),
        AdminEndpoint("DELETE", replica, "admin", admin.remove, {**told, 409: "it is the last one"}),
        AdminEndpoint("GET", "/agentguard/v1/sessions", "read", admin.sessions, runs, query=most),
        AdminEndpoint("GET", "/agentguard/v1/sessions/{id}", "read", admin.session, run),
        AdminEndpoint("POST", PATH, "call", admin.guardrail, verdict, takes=REQUEST_SCHEMA),
    )


def caller_of(request: Request) -> Caller:
    """Who asks, as the gateway found out."""
    found = request.scope.get("agentguard.caller")
    return found if isinstance(found, Caller) else ANYBODY


def _tenant(request: Request) -> str:
    return caller_of(request).tenant


def _number(text: str | None, default: int) -> int | None:
    if text is None:
        return default
    with contextlib.suppress(ValueError):
        if len(text) <= 6 and 1 <= int(text) <= _MOST:
            return int(text)
    return None


def _wants_page(request: Request) -> bool:
    accepted = request.headers.get("accept", "")
    return "text/html" in accepted and "application/json" not in accepted


def _json(data: Any, status: int = 200) -> Response:
    body = orjson.dumps(data, default=str, option=orjson.OPT_NON_STR_KEYS)
    return Response(body, status, media_type="application/json", headers=_NO_STORE)


def _error(status: int, code: str, message: str) -> Response:
    return _json({"error": {"code": code, "message": message, "type": "agentguard_error"}}, status)


async def _missing(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    made = _error(
        status, "not_found" if status == 404 else "method_not_allowed", "there is nothing of that kind"
    )
    made.headers.update(getattr(error, "headers", None) or {})  # which methods there are
    return made


async def _failed(_: Request, error: Exception) -> Response:
    return _error(503, getattr(error, "code", "agentguard_error"), str(error))


async def _unforeseen(_: Request, error: Exception) -> Response:
    _LOG.error("an administrative request failed: %s", type(error).__name__)
    return _error(500, "internal_error", "the proxy failed; its log says more")
