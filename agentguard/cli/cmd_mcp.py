"""``agentguard mcp``: guard of the tool calls between an MCP client and an MCP server."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mcp")(guard_mcp_server)


def guard_mcp_server(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="Command and arguments of the MCP server.")
    ],
    policy: Annotated[
        Path | None, typer.Option(help="Policy of the guard; without it, the default policy.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Store of the run, its findings and its effects.")
    ] = None,
    run_id: Annotated[
        str | None,
        typer.Option(help="ID of the run; with --store, an earlier run of this id continues."),
    ] = None,
) -> None:
    """Start an MCP server, relay its messages over standard input and output, and guard its tool calls.

    Exit status: that of the server; 2 if it cannot be started.
    """
    from agentguard.config.policy import Policy
    from agentguard.guard import Guard
    from agentguard.integrations.mcp import McpToolGuard, run_stdio_relay

    with _open_store(store) as opened_store:
        settings = Policy() if policy is None else Policy.load(policy)
        with Guard.from_policy(settings, store=opened_store) as guard:
            resume = opened_store is not None and run_id is not None
            tool_guard = McpToolGuard(guard, run_id=run_id, resume=resume)
            status = run_stdio_relay(command, tool_guard)
    raise typer.Exit(status)


def _open_store(url: str | None) -> Any:
    if url is None:
        return nullcontext()
    from agentguard.store import Store

    return Store.open(url)
