"""Root command: it imports a command's module when the command is invoked.

A command ``name`` is the module ``agentguard.cli.cmd_<name>`` with the function ``register(app)``. Packages
above this one and third-party packages provide commands by an entry point of the group
``agentguard.commands``: its name is the command, its object is the function ``register``.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

import agentguard
from agentguard import cli
from agentguard.errors import AgentGuardError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

_MODULE_PREFIX = "cmd_"

SUMMARIES: Final = {
    "Runs": {
        "diagnose": "Name the failed runs and the step that caused each failure.",
        "report": "Summarize the verdicts of a batch job: rates, clusters, first divergences.",
        "validate": "Check that runs can be read.",
        "bundle": "Export, inspect, verify, compare, scrub and minimize bundles.",
        "replay": "Run an agent again with the recorded calls of bundles.",
        "convert": "Write runs in another format, as a document, or to a collector of traces.",
        "view": "Show runs, failures and evaluations in the browser.",
        "runs": "List, show and diagnose the runs of a store.",
        "store": "Create, migrate, index, inspect and prune the store.",
    },
    "Servers": {
        "serve": "Run the proxy: reliability and guarding for model endpoints.",
        "mcp": "Guard the tool calls between an MCP client and an MCP server.",
        "judge": "Train, describe and check the embedded judge; serve a judge with vLLM.",
        "doctor": "Check the installation, the configuration, the store and the judge.",
    },
    "Evaluation": {
        "eval": "Measure methods on annotated runs.",
        "dataset": "List, describe, check and build data sets.",
        "inject": "Make failed runs with one known error each.",
        "schemata": "Distil failures to error schemata; search and select them.",
        "taxonomy": "List, show, map and validate taxonomies of failures.",
        "chaos": "Inject faults into an agent's calls, or serve a model endpoint with faults.",
        "guard-check": "Compare scripted runs with and without the guard.",
        "pilot": "Estimate where the guard's interventions help, and write a policy.",
    },
}
"""Commands and their summaries by section of the help.

The help of the root command has them from here, since the import of all commands takes half a second.
"""


class _CommandSummary(TyperCommand):
    """Placeholder of a command in the help and in suggestions, until the command is invoked."""


class _RootGroup(TyperGroup):
    """Group that loads a command on use and shows an agentguard error as one line and exit status 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shows_help = False
        for name in _list_command_names():
            section = next((title for title, summaries in SUMMARIES.items() if name in summaries), None)
            summary = SUMMARIES[section][name] if section else None
            self.commands[name] = _CommandSummary(name, help=summary, rich_help_panel=section)

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        del ctx
        return list(self.commands)

    def get_command(self, ctx: typer.Context, name: str) -> TyperCommand | TyperGroup | None:  # type: ignore[override]
        del ctx
        command = self.commands.get(name)
        if isinstance(command, _CommandSummary) and not (self._shows_help and command.help):
            command = self.commands[name] = _load_command(name)
        return command  # type: ignore[return-value]

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        self._shows_help = True
        _hide_types_of_flags(self)
        super().format_help(ctx, formatter)

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except AgentGuardError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None
        except BrokenPipeError:
            # The reader of the output has closed it (`| head`); Python would report the flush at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None


def _print_version(value: bool) -> None:
    if value:
        typer.echo(agentguard.__version__)
        raise typer.Exit


def build_app() -> typer.Typer:
    """Return the root command."""
    app = typer.Typer(
        cls=_RootGroup,
        no_args_is_help=True,
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

    return app


@cache
def _list_command_names() -> list[str]:
    order = [name for summaries in SUMMARIES.values() for name in summaries]
    modules = (info.name for info in pkgutil.iter_modules(cli.__path__))
    builtin = {
        name.removeprefix(_MODULE_PREFIX).replace("_", "-")
        for name in modules
        if name.startswith(_MODULE_PREFIX)
    }
    available = builtin | set(_find_entry_points().names)
    return [*(name for name in order if name in available), *sorted(available - set(order))]


@cache
def _find_entry_points() -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group="agentguard.commands")


def _load_command(name: str) -> TyperCommand | TyperGroup:
    """Import the module of a command and return the command."""
    points = _find_entry_points()
    register: Callable[[typer.Typer], None]
    if name in points.names:
        register = points[name].load()
    else:
        register = import_module(f"{cli.__name__}.{_MODULE_PREFIX}{name.replace('-', '_')}").register
    app = typer.Typer()
    app.callback()(lambda: None)  # With a callback, the application is a group even for one command.
    register(app)
    command: TyperCommand | TyperGroup = typer.main.get_group(app).commands[name]  # type: ignore[assignment]
    _hide_types_of_flags(command)
    return command


def _hide_types_of_flags(command: TyperCommand | TyperGroup) -> None:
    """Leave ``<bool>`` out of the help of a flag, which takes no value."""
    for parameter in command.get_params(typer.Context(command)):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for child in getattr(command, "commands", {}).values():
        _hide_types_of_flags(child)
