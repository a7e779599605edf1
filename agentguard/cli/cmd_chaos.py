"""``agentguard chaos``: a local model endpoint that fails according to a script."""

from __future__ import annotations

import signal
import sys
import threading
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from agentguard.testing.fake_backend import FaultBackend, RecordedRequest

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
_POLL_INTERVAL_S = 0.2


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Serve a fake model endpoint that fails on command.")
    group.command()(serve)
    group.command()(faults)
    app.add_typer(group, name="chaos")


def serve(
    script: Annotated[
        Path | None, typer.Argument(help="YAML file with the script; without it nothing fails.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0 takes a free one.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Seed of the schedule, in place of the script's.")] = None,
    json: Json = False,
) -> None:
    """Serve until Ctrl-C, and print what became of each request: never its contents."""
    from agentguard.config.policy import load_yaml
    from agentguard.testing.fake_backend.script_file import build_backend

    ended = threading.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda *_: ended.set())
    try:
        with build_backend(None if script is None else load_yaml(script), port=port, seed=seed) as backend:
            _print_values({"url": backend.url}, json=json)
            _print_requests(backend, ended, json=json)
    except OSError as error:
        typer.echo(f"error: port {port} cannot be used: {error.strerror}", err=True)
        raise typer.Exit(2) from None


def faults(json: Json = False) -> None:
    """List the faults and their options."""
    from agentguard.testing.fake_backend.script_file import FAULT_TYPES

    descriptions: list[dict[str, Any]] = [
        {"fault": name, "does": (kind.__doc__ or "").split("\n")[0], "options": _list_options(kind)}
        for name, kind in sorted(FAULT_TYPES.items())
    ]
    if json:
        for description in descriptions:
            _print_values(description, json=True)
        return
    table = Table("fault", "does", "options", box=None, header_style="bold")
    for description in descriptions:
        options = ", ".join(f"{name}={value!r}" for name, value in description["options"].items())
        table.add_row(*map(escape, (description["fault"], description["does"], options)))
    Console().print(table)


def _list_options(fault_type: type[Any]) -> dict[str, Any]:
    defaults = {field.name: field.default for field in fields(fault_type) if field.default is not MISSING}
    return {
        name: str(value) if isinstance(value, bytes | float) else value for name, value in defaults.items()
    }


def _print_requests(backend: FaultBackend, ended: threading.Event, *, json: bool) -> None:
    """Tell of each request once it is over, in the order in which they came."""
    printed_count = 0
    while not ended.wait(_POLL_INTERVAL_S):
        while printed_count < len(backend.requests) and backend.requests[printed_count].is_finished:
            _print_values(_format_request(backend.requests[printed_count]), json=json)
            backend.requests[printed_count].body = b""  # free the body: a long run would fill the memory
            printed_count += 1


def _format_request(request: RecordedRequest) -> dict[str, Any]:
    end = request.disconnected_at if request.answered_at is None else request.answered_at
    return {
        "number": request.number,
        "api": request.api,
        "stream": request.stream,
        "key": request.key,
        "attempt": request.attempt,
        "fault": type(request.fault).__name__,
        "tokens": request.tokens,
        "client_left": request.is_cancelled,
        "seconds": round((end or request.received_at) - request.received_at, 3),
    }


def _print_values(value: dict[str, Any], *, json: bool) -> None:
    text = orjson.dumps(value).decode() if json else "  ".join(f"{key}={item}" for key, item in value.items())
    typer.echo(text)
    sys.stdout.flush()
