"""``agentguard guard-check``: scripted runs with and without the guard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from agentguard.plugins import import_function
from agentguard.quantity import format_quantity

if TYPE_CHECKING:
    from agentguard.testing.guard_check import GuardCheckReport

OWN_LOOP = "agentguard.testing.guard_check.loop_driver:run_loop_agent"
"""Agent loop of agentguard."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("guard-check")(check_guard)


def check_guard(
    driver: Annotated[
        str,
        typer.Argument(
            metavar="[MODULE:FUNCTION]",
            help="Agent driver: a function that runs an agent under a guard; by default agentguard's loop.",
        ),
    ] = OWN_LOOP,
    policy: Annotated[
        Path | None, typer.Option(help="Policy of the guard; without it, the default policy.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Run only every n-th scenario.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Run scripted agents with and without the guard, and compare the runs.

    Exit status: 1 if a run fails or does more harm because of the guard, or if no run passes without it.
    """
    from agentguard.config.policy import Policy
    from agentguard.guard import Guard
    from agentguard.testing.guard_check import build_scenarios, check_driver, run_guard_check

    function = import_function(driver, default="driver")
    check_driver(function)
    settings = None if policy is None else Policy.load(policy)
    report = run_guard_check(
        function,
        build_scenarios()[::every],
        Guard if settings is None else lambda: Guard.from_policy(settings, schemata=False),
    )
    typer.echo(orjson.dumps(report.to_dict()).decode() if json else _format_report(report))
    if report.list_broken() or not any(one.plain.passes for one in report.comparisons):
        raise typer.Exit(1)


def _format_report(report: GuardCheckReport) -> str:
    data = report.to_dict()
    scenarios = format_quantity(data["scenarios"], "scenario")
    lines = [
        f"{scenarios}: {data['passing_without_guard']} pass without the guard, "
        f"{data['failing_without_guard']} fail",
        *(f"{name:>16}  {count}" for name, count in data["outcomes"].items()),
        f"model calls of passing runs: {data['call_growth']:+.1%}",
        f"messages of the guard in passing runs: {data['needless_messages']}",
        f"model calls saved by early stops: {data['calls_saved']}",
        f"harmful effects: {data['harmful_effects_without_guard']} without the guard, "
        f"{data['harmful_effects_with_guard']} with it",
    ]
    lines += [f"not run, needs {feature}: {count}" for feature, count in data["not_run"].items()]
    lines += [f"failed by the framework: {error}" for error in data["failing_in_framework"]]
    for one in data["broken"]:
        calls = f"{one['plain_calls']} calls without, {one['guarded_calls']} with the guard"
        lines.append(f"{one['outcome']}: {one['scenario']} ({calls}) {one['error']}".rstrip())
    return "\n".join(lines)
