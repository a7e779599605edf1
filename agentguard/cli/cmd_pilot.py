"""``agentguard pilot``: estimate whether the guard's interventions help, and write a policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from agentguard.cli.cmd_guard_check import OWN_LOOP
from agentguard.cli.json_output import print_json
from agentguard.cli.outcome_file import KnownOutcomes
from agentguard.cli.run_input import read_path
from agentguard.errors import ConfigError
from agentguard.plugins import import_function
from agentguard.quantity import format_quantity
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.config.policy import Policy
    from agentguard.evals.pilot import OutcomeRun, PilotReport
    from agentguard.guard import Guard
    from agentguard.store import Store


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("pilot")(run_pilot)


def run_pilot(
    driver: Annotated[
        str,
        typer.Argument(
            metavar="[MODULE:FUNCTION]",
            help="Agent driver: a function that runs a scripted agent under a guard.",
        ),
    ] = OWN_LOOP,
    without: Annotated[
        list[Path] | None,
        typer.Option("--without", help="Recorded runs without the guard; repeatable."),
    ] = None,
    guarded: Annotated[
        str | None,
        typer.Option("--with", metavar="STORE", help="Store with runs of the same tasks under the guard."),
    ] = None,
    outcomes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|recorded",
            help="Known outcomes, as for diagnose; by default the policy's acceptance rules.",
        ),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="Policy of the guard; without it, the default policy.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Tenant of the runs in the store.")] = "",
    every: Annotated[int, typer.Option(min=1, help="Run only every n-th scenario.")] = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the policy to this file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the estimates as JSON.")] = False,
) -> None:
    """Estimate from runs with and without the guard where its interventions help, and write a policy.

    Without --without and --with, the scenarios of guard-check run with each strategy.
    """
    from agentguard.config.policy import Policy
    from agentguard.evals.pilot import format_estimate, format_policy, propose_policy, run_scripted_pilot
    from agentguard.testing.guard_check import build_scenarios

    if bool(without) != bool(guarded):
        raise ConfigError("recorded runs are compared in pairs: give --without RUNS and --with STORE")
    if output is not None and output.exists():
        raise ConfigError(f"{output} exists: name another file for --output")
    settings = Policy() if policy is None else Policy.load(policy)
    if without and guarded:
        known = KnownOutcomes.from_option(outcomes, pass_score=1.0)
        report = _compare_recorded(without, guarded, known, settings, tenant=tenant)
    else:
        scenarios = build_scenarios()[::every]
        message = (
            f"running {format_quantity(len(scenarios), 'scenario')} with each strategy (--every: fewer) …"
        )
        with Console(stderr=True).status(message):
            report = run_scripted_pilot(import_function(driver, default="driver"), scenarios, settings)
    proposal = propose_policy(report, settings)
    if output is not None:
        output.write_text(format_policy(proposal, report), encoding="utf-8")
    if json:
        print_json(report.to_dict())
        return
    for estimate in (report.overall, *report.interventions):
        typer.echo(format_estimate(estimate), err=output is None)  # standard output has the policy alone
    if output is None:
        typer.echo(format_policy(proposal, report))


def _compare_recorded(
    paths: list[Path], url: str, known: KnownOutcomes, policy: Policy, *, tenant: str
) -> PilotReport:
    from agentguard.evals.pilot import estimate_interventions, pair_runs
    from agentguard.guard import Guard
    from agentguard.store import Store

    with Guard.from_policy(policy) as guard, Store.open(url) as store:
        outcomes = _OutcomeSource(known, guard)
        base = list(outcomes.iter_files(paths))
        guarded = list(outcomes.iter_store(store, tenant=tenant))
    if text := known.describe_unmatched():
        typer.echo(text, err=True)
    pairs, alone = pair_runs(base, guarded)
    if outcomes.unknown:
        typer.echo(f"left out: {format_quantity(outcomes.unknown, 'run')} with an unknown outcome", err=True)
    if alone:
        typer.echo(f"left out: {format_quantity(len(alone), 'run')} without a run of the same task", err=True)
    if not pairs:
        raise ConfigError(
            "no pair of runs: give runs of the same tasks, and their outcomes with --outcomes or with "
            "acceptance rules in --policy"
        )
    return estimate_interventions(pairs)


class _OutcomeSource:
    """Runs with their outcomes.

    Attributes:
        unknown: number of runs that were left out because their outcome is unknown.
    """

    def __init__(self, known: KnownOutcomes, guard: Guard) -> None:
        self._known, self._guard = known, guard
        self.unknown = 0

    def iter_files(self, paths: list[Path]) -> Iterator[OutcomeRun]:
        for item in (item for path in paths for item in read_path(path, None)):
            if isinstance(item, UnreadableRecord):
                typer.echo(f"not read: {item.error}", err=True)
                continue
            self._known.add_recorded(item)
            yield from self._build_run(item.trajectory)

    def iter_store(self, store: Store, *, tenant: str) -> Iterator[OutcomeRun]:
        """Yield the stored runs, the earliest first."""
        from agentguard.store.read.pagination import iter_rows

        rows = iter_rows(lambda page: store.list_runs(page=page, tenant=tenant))
        for row in sorted(rows, key=lambda row: row.created_at):
            run = store.get_trajectory(row.id, tenant=tenant)
            if run is None:
                continue
            recoveries = sorted(store.list_recoveries(row.id, tenant=tenant), key=lambda one: one.data["id"])
            first = recoveries[0] if recoveries else None
            yield from self._build_run(
                run,
                trigger="" if first is None else first.data["trigger"],
                strategy="" if first is None else first.strategy,
            )

    def _build_run(self, run: Trajectory, *, trigger: str = "", strategy: str = "") -> Iterator[OutcomeRun]:
        from agentguard.evals.pilot import OutcomeRun

        failed = self._known.find(run.id)
        if failed is None:
            failed = self._check_output(run)
        if failed is None:
            self.unknown += 1
            return
        yield OutcomeRun(id=run.id, task=run.task, failed=failed, trigger=trigger, strategy=strategy)

    def _check_output(self, run: Trajectory) -> bool | None:
        """Return whether the acceptance rules refuse the run's output; None without a complete verdict."""
        from agentguard.recover import AcceptanceTest

        rules = self._guard.components.accept
        verdict = rules.check_run(run) if isinstance(rules, AcceptanceTest) else None
        return None if verdict is None or not verdict.is_complete else not verdict.accepted
