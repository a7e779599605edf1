"""Command ``agentguard serve``: the proxy in front of model endpoints."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from agentguard._lazy import require_packages
from agentguard.cli.json_output import print_json
from agentguard.errors import ConfigError

if TYPE_CHECKING:
    from agentguard_server.proxy.config.loader import ConfigLoader
    from agentguard_server.proxy.config.schema import ProxySettings

_UVLOOP: Final = () if sys.platform == "win32" else ("uvloop",)
REQUIRED_PACKAGES: Final = ("uvicorn", "starlette", "httptools", "msgspec", "prometheus_client", *_UVLOOP)
"""Packages of the extra ``serve``, by the names under which they are imported."""


def register(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(serve)


def serve(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Configuration file in YAML.")
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="Base URL of an endpoint, e.g. http://127.0.0.1:8000/v1; repeatable."
        ),
    ] = None,
    guard: Annotated[
        Path | None, typer.Option(metavar="POLICY", help="Policy of the guard; by default there is no guard.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; by default 127.0.0.1.")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port to listen on; 0 selects a free port, by default 8080."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes that share the port.")
    ] = None,
    no_keys: Annotated[
        bool, typer.Option("--no-keys", help="Permit a non-loopback address without API keys.")
    ] = False,
    new_key: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Create an API key, and print it once with its lines of YAML."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the configuration and exit.")] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Print routes, the order of the strategies, and the policy, and exit."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Run a proxy in front of model endpoints, with fault tolerance and a guard of the runs.

    The command prints the base URL for the clients. SIGHUP reloads the configuration. SIGTERM and Ctrl-C end
    the proxy after its open requests; a second signal ends it at once.
    """
    require_packages(REQUIRED_PACKAGES, "serve")
    if new_key is not None:
        return _print_new_key(new_key, json=json)
    gc.disable()  # nearly all objects of the start stay alive; collections take a sixth of its time
    try:
        config_loader = _build_config_loader(
            config, backend or [], guard, _build_listen_overrides(host, port, workers, no_keys)
        )
        settings = config_loader.load()
        if explain or check:
            return _explain(settings, is_verbose=explain, json=json)
        return _run(config_loader, settings, json=json)
    finally:
        gc.enable()


def _build_listen_overrides(
    host: str | None, port: int | None, workers: int | None, no_keys: bool
) -> dict[str, Any]:
    options = {"host": host, "port": port, "workers": workers, "allow_unauthenticated": no_keys or None}
    return {name: value for name, value in options.items() if value is not None}


def _build_config_loader(
    config: Path | None, backends: list[str], guard: Path | None, listen: dict[str, Any]
) -> ConfigLoader:
    from agentguard_server.proxy.config.loader import ConfigLoader

    if config is None and not backends:
        raise ConfigError("serve: name a configuration with --config, or an endpoint with --backend")
    for url in backends:
        if urlsplit(url).path.strip("/") == "":
            typer.echo(
                f"warning: --backend {url} has no path; most endpoints need /v1: {url.rstrip('/')}/v1",
                err=True,
            )
    overrides: dict[str, Any] = {}
    if listen:
        overrides["listen"] = listen
    if backends:
        overrides["backends"] = {
            "replicas": [{"name": f"b{n}", "url": url} for n, url in enumerate(backends, 1)]
        }
    if guard is not None:
        overrides["guard"] = {"policy": str(guard)}
    return ConfigLoader(file=config, overrides=overrides)


def _run(config_loader: ConfigLoader, settings: ProxySettings, *, json: bool) -> None:
    from agentguard_server.listening_socket import bind_socket, build_url
    from agentguard_server.proxy.process.server import BACKLOG

    # the embedded judge multiplies small matrices, for which more threads are slower
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    listen = settings.listen
    listening_socket = bind_socket(listen.host, listen.port, name="serve", backlog=BACKLOG)
    address = build_url(listening_socket, listen.host, scheme="http" if listen.tls is None else "https")

    def on_ready() -> None:
        _print_address(address, listen.workers, json=json)

    if listen.workers == 1:
        from agentguard_server.proxy.process.worker import run_worker

        return run_worker(config_loader, settings, listening_socket, on_ready=on_ready)
    from agentguard_server.proxy.process.supervisor import WorkerSupervisor

    supervisor = WorkerSupervisor(config_loader, settings, listening_socket, on_ready=on_ready)
    gc.enable()  # a worker enables it itself, but the supervisor does not
    if status := supervisor.run():
        raise typer.Exit(status)
    return None


def _print_address(address: str, workers: int, *, json: bool) -> None:
    if json:
        print_json({"url": address, "base_url": f"{address}/v1", "workers": workers})
    else:
        typer.echo(f"agentguard serve: {address}/v1\nStop it with Ctrl-C.")
    sys.stdout.flush()


def _explain(settings: ProxySettings, *, is_verbose: bool, json: bool) -> None:
    from agentguard_server.proxy.diagnostics.explain import describe_configuration

    lines = describe_configuration(settings)
    if json:
        print_json({"valid": True, **({"explained": lines} if is_verbose else {})})
    else:
        typer.echo("\n".join(lines) if is_verbose else "the configuration is valid")


def _print_new_key(name: str, *, json: bool) -> None:
    from agentguard_server.proxy.auth.authorization import generate_key
    from agentguard_server.proxy.config.schema import KeyOptions

    key, hashed = generate_key()
    try:
        KeyOptions(name=name, hash=hashed)
    except ValueError:
        raise ConfigError("serve: a key's name has letters, digits, dots and dashes, 64 at most") from None
    if json:
        return print_json({"key": key, "name": name, "hash": hashed})
    typer.echo(f"{key}\n\nIt is not shown again. In the configuration:\n\nkeys:")
    typer.echo(f'  - {{name: {name}, hash: "{hashed}", scopes: [call]}}')
    return None
