"""``agentguard view``: runs of a store, or of files, in a browser."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(view)


def view(
    url: Annotated[str | None, typer.Option("--store", help="A path or postgresql://... of a store.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 0,
    token: Annotated[str | None, typer.Option(help="What a browser must show; needed off loopback.")] = None,
) -> None:
    """Show the runs of a store in a browser."""
    import uvicorn

    from agentguard.store.store import Store
    from agentguard_server.settings import ViewerSettings
    from agentguard_server.viewer.app import build

    settings = ViewerSettings(host=host, port=port, token=token)
    with Store.open(url) as store:
        uvicorn.run(build(store, settings), host=settings.host, port=settings.port, log_level="warning")
