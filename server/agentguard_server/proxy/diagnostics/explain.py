"""Explanation of a configuration, line by line: address, limits, keys, routes, backends and guard."""

from __future__ import annotations

from agentguard.quantity import format_quantity
from agentguard_server.proxy.config.schema import ProxySettings, TlsOptions
from agentguard_server.proxy.guard.options import GuardOptions
from agentguard_server.proxy.http.tls import TlsListener
from agentguard_server.proxy.process.bootstrap import Bootstrap

ROUTES = (
    "/v1/chat/completions, …/completions, …/embeddings, …/responses, …/messages (POST): read, guarded",
    "/v1/models (GET): from the configuration if it names all models, else forwarded",
    "/v1/… with any other path or method: forwarded unchanged",
    "/healthz, /readyz: without a key",
    "other paths: status, metrics and administration, by scope",
)


def describe_configuration(settings: ProxySettings) -> list[str]:
    """Return the explanation as lines. Create all configured components, so that errors are found.

    Raises:
        ConfigError: a component cannot be created.
    """
    listen, limits = settings.listen, settings.limits
    keys = settings.keys
    bootstrap = Bootstrap(settings)
    if listen.tls is not None:
        TlsListener(listen.tls)
    return [
        f"listen: {listen.host}:{listen.port}, {format_quantity(listen.workers, 'worker')}, shutdown timeout {listen.shutdown_timeout_s:g} s",  # noqa: E501
        _describe_tls(listen.tls),
        f"limits: head {limits.max_header_bytes:,} bytes in {limits.header_timeout_s:g} s, body {limits.max_body_bytes:,} bytes "  # noqa: E501
        f"in {limits.body_timeout_s:g} s, pending response data read in {limits.write_timeout_s:g} s",
        "keys: none, every client that reaches the address is accepted"
        if keys is None
        else "keys: " + ", ".join(f"{key.name} ({', '.join(key.scopes)})" for key in keys),
        "routes:",
        *(f"  {line}" for line in ROUTES),
        "backends:",
        *(f"  {line}" for line in bootstrap.pool.explain()),
        *_describe_guard(settings.guard),
    ]


def _describe_tls(tls: TlsOptions | None) -> str:
    if tls is None:
        return "tls: off, plain HTTP"
    clients = "" if tls.client_ca_file is None else f", client certificates of {tls.client_ca_file} required"
    return f"tls: {tls.min_version} or newer, certificate {tls.cert_file}{clients}"


def _describe_guard(guard: GuardOptions | None) -> list[str]:
    if guard is None:
        return ["guard: off"]
    policy = guard.load_policy()
    detectors = (
        "all that are enabled by default"
        if policy.enabled_detectors is None
        else ", ".join(policy.enabled_detectors)
    )
    off = [name for name, options in policy.detectors.items() if options is False]
    return [
        f"guard: stream_mode {guard.stream_mode}, mode {guard.mode}",
        f"  detectors: {detectors}" + (f", without {', '.join(off)}" if off else ""),
        f"  recoveries: {policy.recover.on_fail or 'the default escalation'}; budgets {policy.budgets}",
    ]
