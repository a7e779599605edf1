"""Checks of `agentguard doctor` for a proxy's configuration and all resources that it names."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Generator, Iterator
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from agentguard._lazy import require_packages
from agentguard.backends.base import BackendRequest, Response, UpstreamError
from agentguard.backends.config import ANY_MODEL, ReplicaOptions
from agentguard.cli.doctor_checks import CheckContext, CheckResult, check_store_access
from agentguard.cli.doctor_judge_checks import check_judges
from agentguard.errors import AgentGuardError, BackendError, ResilienceError
from agentguard.quantity import format_quantity
from agentguard.resilience.deadline import Deadline
from agentguard_server.cmd_serve import REQUIRED_PACKAGES

if TYPE_CHECKING:
    from agentguard.config.policy import Policy
    from agentguard_server.proxy.config.schema import ProxySettings

_MAX_CLOCK_SKEW_S: Final = 30.0


def check_proxy(context: CheckContext) -> Iterator[CheckResult]:
    """Check the configuration, then everything that it names."""
    if context.config is None:
        return
    try:
        require_packages(REQUIRED_PACKAGES, "serve")
        from agentguard_server.proxy.config.loader import ConfigLoader

        settings = ConfigLoader(file=context.config).load()
    except AgentGuardError as error:
        yield CheckResult(
            area="proxy",
            what=str(context.config),
            condition="wrong",
            found=str(error),
            remedy="docs/configuration/proxy.md lists every field",
        )
        return
    yield CheckResult(area="proxy", what=str(context.config), condition="ok", found="valid")
    yield from _check_listen_address(settings)
    yield from _check_certificate(settings)
    policy = yield from _check_guard(settings)
    for name, url in _list_stores(settings):
        line = check_store_access(url)
        yield CheckResult(
            area="proxy",
            what=f"{name}: {line.what}",
            condition=line.condition,
            found=line.found,
            remedy=line.remedy,
        )
    yield from _check_collector(settings)
    yield from _check_replicas(settings, context)
    if policy is not None and policy.judge is not None and context.network:
        yield from check_judges(policy.judge, context)


def _check_listen_address(settings: ProxySettings) -> Iterator[CheckResult]:
    from agentguard_server.listening_socket import bind_socket

    listen = settings.listen
    where = f"{listen.host}:{listen.port}"
    try:
        bind_socket(listen.host, listen.port, name="serve").close()
    except AgentGuardError as error:
        yield CheckResult(
            area="proxy",
            what=where,
            condition="wrong",
            found=str(error),
            remedy="stop the process that uses it (perhaps this proxy), or set listen.port",
        )
    else:
        yield CheckResult(area="proxy", what=where, condition="ok", found="is free")
    keys = settings.keys
    if keys is None:
        yield CheckResult(
            area="proxy",
            what="keys",
            condition="note",
            found="none: the proxy accepts every client that can connect",
            remedy="create one: agentguard serve --new-key NAME",
        )
    else:
        yield CheckResult(area="proxy", what="keys", condition="ok", found=f"{len(keys)}, as hashes")


def _check_certificate(settings: ProxySettings) -> Iterator[CheckResult]:
    from agentguard_server.proxy.http.tls import TlsListener

    options = settings.listen.tls
    if options is None:
        return
    try:
        TlsListener(options)
    except AgentGuardError as error:
        yield CheckResult(
            area="proxy",
            what="listen.tls",
            condition="wrong",
            found=str(error),
            remedy="configure a certificate and its key, both PEM, readable by this user",
        )
    else:
        yield CheckResult(area="proxy", what="listen.tls", condition="ok", found=str(options.cert_file))


def _check_guard(settings: ProxySettings) -> Generator[CheckResult, None, Policy | None]:
    """Check the guard; return its policy."""
    from agentguard.guard import Guard

    try:
        policy = settings.guard.load_policy() if settings.guard else None
        if policy is None:
            yield CheckResult(area="proxy", what="guard", condition="note", found="none: no guard")
            return None
        Guard.from_policy(policy)
    except AgentGuardError as error:
        yield CheckResult(
            area="proxy",
            what="guard",
            condition="wrong",
            found=str(error),
            remedy="correct the policy file",
        )
        return None
    yield CheckResult(area="proxy", what="guard", condition="ok", found="the policy is valid")
    return policy


def _list_stores(settings: ProxySettings) -> Iterator[tuple[str, str | None]]:
    if settings.capture is not None:
        yield "capture.store", settings.capture.store
    if settings.cluster is not None and settings.cluster.store is not None:
        yield "cluster.store", settings.cluster.store
    if settings.ui.store is not None:
        yield "ui.store", settings.ui.store


def _check_collector(settings: ProxySettings) -> Iterator[CheckResult]:
    try:
        target = settings.tracing.resolve_target()
    except AgentGuardError as error:
        yield CheckResult(
            area="proxy",
            what="tracing",
            condition="wrong",
            found=str(error),
            remedy="set the variable, or remove headers_env",
        )
        return
    if target is not None:
        yield CheckResult(
            area="proxy", what="tracing", condition="ok", found=f"spans go to {target.host}; not checked"
        )


def _check_replicas(settings: ProxySettings, context: CheckContext) -> Iterator[CheckResult]:
    replicas = settings.backends.replicas
    if not context.network:
        yield CheckResult(
            area="backends",
            what=f"{len(replicas)} replicas",
            condition="note",
            found="not checked",
            remedy="run without --no-network",
        )
        return
    yield from asyncio.run(_check_all_replicas(replicas, context.timeout_s))


async def _check_all_replicas(replicas: tuple[ReplicaOptions, ...], timeout_s: float) -> list[CheckResult]:
    found = await asyncio.gather(*(_check_replica(one, timeout_s) for one in replicas))
    return [line for lines in found for line in lines]


async def _check_replica(replica: ReplicaOptions, timeout_s: float) -> list[CheckResult]:
    """Check that a replica responds, that it has the configured models, and that its clock is right."""
    from agentguard.backends.backend_factory import build_http_backend_factory

    def line(condition: Any, found: str, remedy: str = "") -> CheckResult:
        return CheckResult(
            area="backends", what=replica.name, condition=condition, found=found, remedy=remedy
        )

    try:
        backend = build_http_backend_factory()(replica)
    except AgentGuardError as error:
        return [line("wrong", str(error), "set the variable, or correct the replica")]
    began = time.monotonic()
    try:
        request = BackendRequest(target="/models", method="GET")
        answer = await backend.send(request, Deadline.after(timeout_s))
    except UpstreamError as error:
        return [_describe_upstream_error(replica, error)]
    except ResilienceError as error:
        remedy = "check that its server runs, and that url ends with /v1"
        return [line("wrong", f"{error.code}: {error}", remedy)]
    finally:
        await backend.aclose()
    if not isinstance(answer, Response):
        return [line("wrong", "the endpoint sent a stream instead of a list of models", "correct its url")]
    seconds = time.monotonic() - began
    return [*_check_models(replica, answer, seconds), *_check_clock(replica, answer)]


def _describe_upstream_error(replica: ReplicaOptions, error: BackendError) -> CheckResult:
    status = error.status
    if status in (401, 403):
        found, remedy = (
            f"the endpoint rejects the key (status {status})",
            "set api_key_env to a variable with a valid key",
        )
    elif status == 404:
        return CheckResult(
            area="backends",
            what=replica.name,
            condition="note",
            found="the endpoint answers, and lists no models (status 404)",
        )
    else:
        found, remedy = f"status {status}", "read the log of the server"
    return CheckResult(area="backends", what=replica.name, condition="wrong", found=found, remedy=remedy)


def _check_models(replica: ReplicaOptions, response: Response, seconds: float) -> Iterator[CheckResult]:
    try:
        document: Any = orjson.loads(response.body)
        names = {str(one["id"]) for one in document["data"]}
    except (ValueError, KeyError, TypeError):
        yield CheckResult(
            area="backends",
            what=replica.name,
            condition="wrong",
            found="the endpoint lists no models",
            remedy="url must end with /v1",
        )
        return
    configured = {served for served in replica.models.values() if served != ANY_MODEL}
    missing = sorted(configured - names)
    if missing:
        yield CheckResult(
            area="backends",
            what=replica.name,
            condition="wrong",
            found=f"the endpoint does not serve {', '.join(missing)}",
            remedy=f"the endpoint serves: {', '.join(sorted(names)[:8])}",
        )
        return
    yield CheckResult(
        area="backends",
        what=replica.name,
        condition="ok",
        found=f"{format_quantity(len(names), 'model')}, answered in {seconds * 1000:.0f} ms",
    )


def _check_clock(replica: ReplicaOptions, response: Response) -> Iterator[CheckResult]:
    date = next((value for name, value in response.headers if name == b"date"), None)
    skew = None
    if date is not None:
        with contextlib.suppress(ValueError, TypeError):
            skew = parsedate_to_datetime(date.decode("latin-1")).timestamp() - time.time()
    if skew is not None and abs(skew) > _MAX_CLOCK_SKEW_S:
        yield CheckResult(
            area="backends",
            what=f"{replica.name}: clock",
            condition="wrong",
            found=f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the clock of this machine",
            remedy="synchronise both clocks (NTP)",
        )
