"""``agentguard runs``: list, show and diagnose the runs of a store."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agentguard.cli.diagnosis_text import DiagnosisView, render_diagnosis
from agentguard.cli.json_output import print_json
from agentguard.cli.policy_option import load_policy, raise_judge_concurrency
from agentguard.cli.run_summary import format_step_label
from agentguard.cli.store_access import StoredRuns, StoreUrl, open_store, parse_age
from agentguard.cli.terminal_text import build_console, to_one_line
from agentguard.errors import StoreError
from agentguard.guard import Guard
from agentguard.localize.run_comparison import DiagnosedRun, can_compare, compare_runs
from agentguard.localize.serialization import decode_diagnosis, encode_diagnosis
from agentguard.localize.step_support import rate_summary
from agentguard.quantity import format_quantity
from agentguard.resilience.ordered_map import map_ordered
from agentguard.store.db.run_summary import RunSummaryFilter, RunSummaryRow, VerdictFilter
from agentguard.store.read.pagination import MAX_PAGE_SIZE, Page
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.trajectory.costs import price_run
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import NOT_DIAGNOSED, Verdict, describe_verdict

if TYPE_CHECKING:
    from agentguard.store import Store
    from agentguard.store.db.rows import EffectRow, RecoveryRow
    from agentguard.store.read.step_search import StepSearchResult

_MAX_ID_CHARS: Final = 60
_MAX_EXCERPT_CHARS: Final = 300
_MAX_REFERENCES: Final = 200
"""Stored runs that take part in a comparison; each one is diagnosed again, which takes about 15 ms."""

_MIN_REPORTED_UNINDEXED_RUNS: Final = 1_000
"""A search reads all runs that are not indexed; fewer than these are normal while agents run."""


Verdicts = Annotated[
    list[VerdictFilter] | None, typer.Option("--verdict", help="Only runs with this verdict; repeatable.")
]
Agent = Annotated[str | None, typer.Option(help="Only runs with a step of this agent.")]
Tool = Annotated[str | None, typer.Option(help="Only runs that call this tool.")]
CauseAgent = Annotated[
    str | None, typer.Option("--cause-agent", help="Only runs whose root cause is a step of this agent.")
]
Code = Annotated[str | None, typer.Option(help="Only runs whose first code begins with this text.")]
Model = Annotated[str | None, typer.Option(help="Only runs of this model.")]
TextFilter = Annotated[str | None, typer.Option("--text", help="Only runs with this text in id or task.")]
ContentSearch = Annotated[
    str | None, typer.Option("--search", help="Only runs with this text in a step; prints the matches.")
]
Since = Annotated[
    str | None, typer.Option(metavar="AGE", help="Only runs that began within this time, e.g. 12h or 7d.")
]
Tenant = Annotated[str, typer.Option(help="Tenant of the runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
FailOnFailure = Annotated[
    bool, typer.Option("--fail-on-failure", help="Exit with 3 if one of these runs failed, for CI.")
]

_FAILURE_STATUS: Final = 3


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="List, show and diagnose the runs of a store.")
    group.command("list")(list_runs)
    group.command()(show)
    group.command()(diagnose)
    app.add_typer(group, name="runs")


def list_runs(
    store: StoreUrl = None,
    verdict: Verdicts = None,
    agent: Agent = None,
    tool: Tool = None,
    cause_agent: CauseAgent = None,
    code: Code = None,
    model: Model = None,
    text: TextFilter = None,
    search: ContentSearch = None,
    since: Since = None,
    tenant: Tenant = "",
    limit: Annotated[int, typer.Option(min=1, help="Number of runs.")] = 50,
    fail_on_failure: FailOnFailure = False,
    json: Json = False,
) -> None:
    """List runs, newest first.

    Exit status: 0; 3 if a listed run failed and --fail-on-failure is given.
    """
    selection = RunSummaryFilter(
        verdicts=frozenset(verdict or ()),
        step_agent=agent,
        tool=tool,
        agent=cause_agent,
        code=code,
        model=model,
        text=text,
        since=_parse_since(since),
    )
    with open_store(store) as opened:
        if search is not None:
            page = Page(limit=min(limit, MAX_PAGE_SIZE))
            matches = opened.search_steps(search, selection, page, tenant=tenant)
            _print_matches(matches, limit, json=json)
            rows = [found.run for found in matches.runs[:limit]]
        else:
            rows = list(islice(opened.iter_run_summaries(selection, tenant=tenant), limit))
            _print_rows(rows, json=json)
    if fail_on_failure and any(row.verdict == Verdict.FAILED for row in rows):
        raise typer.Exit(_FAILURE_STATUS)


def show(
    run_id: Annotated[str, typer.Argument(metavar="ID", help="ID of the run.")],
    store: StoreUrl = None,
    policy: Annotated[
        Path | None, typer.Option(help="Policy with the prices of models; by default that of the project.")
    ] = None,
    tenant: Tenant = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every finding with its evidence.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the latest diagnosis of a run, the recoveries of its guard, and effects with unknown outcome.

    Exit status: 0 if the run has a diagnosis, 1 otherwise.
    """
    with open_store(store) as opened:
        run = opened.get_trajectory(run_id, tenant=tenant)
        if run is None:
            raise StoreError(f"{opened.address} has no run {run_id!r}")
        rows = opened.list_diagnoses(run_id, tenant=tenant)
        recoveries = opened.list_recoveries(run_id, tenant=tenant)
        effects = opened.list_effects(run_id, tenant=tenant)
    if not rows:
        if not json:
            render_guard_lines(build_console(), recoveries, effects)
        typer.echo(f"{run_id}: not diagnosed; `agentguard runs diagnose` diagnoses it", err=True)
        raise typer.Exit(1)
    diagnosis = decode_diagnosis(JsonNode.from_value(dict(rows[-1].data)))
    if json:
        print_json(encode_diagnosis(diagnosis))
    else:
        priced = price_run(run, load_policy(policy).prices)
        render_diagnosis(build_console(), priced, diagnosis, DiagnosisView(show_all=verbose))
        render_guard_lines(build_console(), recoveries, effects)


def diagnose(
    run_id: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="IDs of runs; by default all that match.")
    ] = None,
    store: StoreUrl = None,
    policy: Annotated[
        Path | None, typer.Option(help="Policy in YAML; by default that of the project.")
    ] = None,
    verdict: Verdicts = None,
    agent: Agent = None,
    tool: Tool = None,
    cause_agent: CauseAgent = None,
    code: Code = None,
    model: Model = None,
    text: TextFilter = None,
    since: Since = None,
    jobs: Annotated[
        int,
        typer.Option(
            min=1, max=1_024, help="Number of concurrent diagnoses, for a judge; the answers are the same."
        ),
    ] = 1,
    tenant: Tenant = "",
    fail_on_failure: FailOnFailure = False,
    json: Json = False,
) -> None:
    """Diagnose stored runs: those without a diagnosis, or those that the options select.

    Exit status: 0, also if there is no such run; 3 if a run failed and --fail-on-failure is given.
    """
    settings = raise_judge_concurrency(load_policy(policy, store), jobs)
    chosen = list(run_id or ())
    with open_store(store) as opened:
        if not chosen:
            selection = RunSummaryFilter(
                verdicts=frozenset(verdict or ()) or _select_default_verdicts(cause_agent, code),
                step_agent=agent,
                tool=tool,
                agent=cause_agent,
                code=code,
                model=model,
                text=text,
                since=_parse_since(since),
            )
            chosen = [row.run_id for row in opened.iter_run_summaries(selection, tenant=tenant)]
        references = list(_read_references(opened, set(chosen), tenant=tenant)) if chosen else []
    counts: dict[Verdict, int] = dict.fromkeys(Verdict, 0)
    with Guard.from_policy(settings) as guard:
        stored_runs = StoredRuns(chosen, store, tenant=tenant)

        def diagnose_runs(runs: Iterator[Trajectory]) -> Iterator[DiagnosedRun]:
            def diagnose_all(several: Iterable[Trajectory]) -> Iterator[DiagnosedRun]:
                return map_ordered(lambda run: (run, guard.diagnose(run)), several, jobs=jobs)

            others = list(diagnose_all(references)) if can_compare(guard.localizer) else []
            priced = (price_run(run, settings.prices) for run in runs)
            return compare_runs(diagnose_all(priced), guard.localizer, references=others)

        with stored_runs.diagnose(guard, diagnose_runs) as results:
            for run, diagnosis in results:
                counts[diagnosis.verdict] += 1
                if json:
                    print_json(encode_diagnosis(diagnosis))
                else:
                    typer.echo(f"{run.id}: {diagnosis.verdict.label}")
    if not json:
        totals = ", ".join(f"{counts[verdict]} {verdict.label}" for verdict in Verdict)
        typer.echo(f"{format_quantity(sum(counts.values()), 'run')}: {totals}")
    if fail_on_failure and counts[Verdict.FAILED]:
        raise typer.Exit(_FAILURE_STATUS)


def _read_references(store: Store, chosen: Container[str], *, tenant: str) -> Iterator[Trajectory]:
    """Yield the newest other runs of the store, with which the chosen ones are compared."""
    summaries = store.iter_run_summaries(RunSummaryFilter(), tenant=tenant)
    ids = (row.run_id for row in summaries if row.run_id not in chosen)
    for run_id in islice(ids, _MAX_REFERENCES):
        run = store.get_trajectory(run_id, tenant=tenant)
        if run is not None:
            yield run


def _parse_since(since: str | None) -> float | None:
    return None if since is None else time.time() - parse_age(since, "--since")


def _select_default_verdicts(cause_agent: str | None, code: str | None) -> frozenset[VerdictFilter]:
    """Return the verdict filter of `diagnose`: a root cause and a code select runs that have a diagnosis."""
    return frozenset({VerdictFilter.NOT_DIAGNOSED} if cause_agent is None and code is None else ())


def _encode_row(row: RunSummaryRow) -> dict[str, Any]:
    names = ("run_id", "task", "format", "started_at", "steps", "tokens", "cost_usd", "verdict")
    more = ("probability", "method", "step", "agent", "code", "recovered", "judged")
    verdict = {"verdict": row.verdict or NOT_DIAGNOSED}
    return {name: getattr(row, name) for name in (*names, *more)} | verdict | row.labels


def _print_matches(result: StepSearchResult, limit: int, *, json: bool) -> None:
    """Print each run with its first matches."""
    found_runs = result.runs[:limit]
    for found in found_runs:
        if json:
            matches = [asdict(match) for match in found.matches]
            print_json({**_encode_row(found.run), "matches": matches})
            continue
        verdict = describe_verdict(found.run.verdict)
        typer.echo(f"{to_one_line(found.run.run_id, _MAX_ID_CHARS)}: {verdict}")
        for match in found.matches:
            branch = f" of branch {to_one_line(match.branch_id, _MAX_ID_CHARS)}" if match.branch_id else ""
            label = format_step_label(match.step, match.agent)
            excerpt = to_one_line(match.before + match.match + match.after, _MAX_EXCERPT_CHARS)
            typer.echo(f"  {label}{branch}, {match.field}: {excerpt}")
    if not json:
        typer.echo(format_quantity(len(found_runs), "run"))
    if result.next is not None or len(result.runs) > limit:
        typer.echo(
            "older runs may match too: increase --limit, or select runs with the other options", err=True
        )
    if result.unreadable_steps:
        typer.echo(f"not read: {format_quantity(result.unreadable_steps, 'step')}", err=True)
    if result.unindexed_runs >= _MIN_REPORTED_UNINDEXED_RUNS:
        typer.echo(
            f"{result.unindexed_runs:,} or more runs are not in the search index: "
            "`agentguard store index` adds them",
            err=True,
        )


def _print_rows(rows: list[RunSummaryRow], *, json: bool) -> None:
    if json:
        for row in rows:
            print_json(_encode_row(row))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "started", "steps", "verdict", "root cause", "kind", "cost"):
        table.add_column(name, justify="right" if name in ("steps", "cost") else "left", no_wrap=True)
    titles = TaxonomyCatalog.load()
    for row in rows:
        table.add_row(
            Text(to_one_line(row.run_id, _MAX_ID_CHARS)),
            "" if row.started_at is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(row.started_at)),
            str(row.steps),
            describe_verdict(row.verdict),
            _format_step(row),
            titles.get_title(row.code) if row.code else "",
            "" if row.cost_usd is None else f"${row.cost_usd:.4g}",
        )
    build_console().print(table)
    typer.echo(format_quantity(len(rows), "run"))


def _format_step(row: RunSummaryRow) -> str:
    support = rate_summary(row)
    return "" if row.step is None or support is None else format_step_label(row.step, row.agent, support)


_OUTCOMES: Final = {
    "recovered": "confirmed",
    "failed": "refuted",
    "unknown": "outcome unknown",
    "planned": "not verified yet",
}
_MAX_REASON_CHARS: Final = 200
_MAX_ARGUMENT_CHARS: Final = 120


def render_guard_lines(
    console: Console, recoveries: Sequence[RecoveryRow], effects: Sequence[EffectRow]
) -> None:
    """Print one line for each recovery, in order of time, and for each effect with unknown outcome."""
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_column(style="dim", min_width=13, no_wrap=True)
    grid.add_column(overflow="fold")
    for row in sorted(recoveries, key=lambda one: one.created_at):
        plan = row.data.get("plan", {})
        step = "" if row.step is None else f"step {row.step} · "
        outcome = _OUTCOMES.get(row.outcome, row.outcome)
        reason = to_one_line(str(plan.get("reason", "")), _MAX_REASON_CHARS)
        line = f"{step}{row.strategy} · {row.data.get('trigger', '')} · {outcome}"
        grid.add_row("recovery", Text(f"{line} · {reason}" if reason else line))
    for effect in effects:
        if effect.state in ("attempted", "ambiguous"):
            arguments = to_one_line(str(effect.data.get("arguments", "")), _MAX_ARGUMENT_CHARS)
            text = f"step {effect.data.get('step', 0)} · {effect.tool} {arguments} · {effect.state}"
            grid.add_row("effect", Text(f"{text} · unknown whether the call took effect; not repeated"))
    if grid.row_count:
        console.print(Padding(grid, (0, 0, 0, 2)))
