"""Root command: it finds the command modules of this package and of installed packages, which add commands.

Packages above this one and third-party packages provide commands by an entry point of the group
``agentguard.commands``: a function that receives the Typer application.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated

import typer

import agentguard
from agentguard import cli
from agentguard.errors import AgentGuardError


class _RootGroup(typer.core.TyperGroup):
    """Shows an agentguard error as one clear line and exit status 2, not as a traceback."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except AgentGuardError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None


def _print_version(value: bool) -> None:
    if value:
        typer.echo(agentguard.__version__)
        raise typer.Exit


def build_app(*, only_command: str | None = None) -> typer.Typer:
    """Return the command with every module ``agentguard.cli.cmd_*`` registered.

    Args:
        alone: a command that is all that is asked for: if it comes by an entry point, nothing else is loaded,
            since a server must start at once.
    """
    app = typer.Typer(
        cls=_RootGroup,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Find the step that made an LLM agent fail.",
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        pass

    points = entry_points(group="agentguard.commands")
    if only_command is not None and only_command in points.names:
        points[only_command].load()(app)
        return app
    for info in pkgutil.iter_modules(cli.__path__):
        if info.name.startswith("cmd_"):
            import_module(f"{cli.__name__}.{info.name}").register(app)
    for point in points:
        point.load()(app)
    return app
