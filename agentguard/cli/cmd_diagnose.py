"""``agentguard diagnose``: say whether recorded runs failed, and name the step that caused it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console

from agentguard.batch import InputOptions
from agentguard.cli.batch_diagnosis import (
    BatchSettings,
    DryRun,
    EngineName,
    IdColumn,
    Limit,
    MaxCost,
    Out,
    Partitions,
    Sample,
    diagnose_batch,
)
from agentguard.cli.diagnosis_output import (
    DiagnosisTableRow,
    DiagnosisView,
    build_summary_table,
    render_diagnosis,
)
from agentguard.cli.folder_watch import FolderWatch
from agentguard.cli.judge_endpoint import parse_judge_options
from agentguard.cli.outcome_file import KnownOutcomes
from agentguard.cli.run_input import ClaudeCode, Codex, Last, read_path, resolve_paths
from agentguard.cli.terminal_text import build_console
from agentguard.config.policy import LocalizerSettings, Policy
from agentguard.errors import ConfigError, StoreError
from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis, Verdict
from agentguard.localize.embedded import EmbeddedLocalizer
from agentguard.localize.run_comparison import compare_runs
from agentguard.resilience.ordered_map import map_ordered
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.model import Record, Trajectory

if TYPE_CHECKING:
    from agentguard.store import Store


_FLUSH_TIMEOUT_S = 60.0

_ADDRESS_FIELDS = {"base_url", "model", "replicas", "pool"}
"""Settings of a judge that another address on the command line replaces."""

DiagnosisResults = Iterator[tuple[Trajectory, Diagnosis]]


class StoredRuns:
    """Some runs of a store.

    Args:
        ids: of the runs.
        url: of the store; the default one if absent.
        tenant: whose runs they are.
    """

    def __init__(self, ids: list[str], url: str | None, *, tenant: str) -> None:
        self._ids, self._url, self._tenant = ids, url, tenant

    @contextmanager
    def diagnose(
        self, guard: Guard, diagnose_runs: Callable[[Iterator[Trajectory]], DiagnosisResults]
    ) -> Iterator[DiagnosisResults]:
        """The runs with their diagnoses, which are kept beside those that the store has.

        Raises:
            StoreError: there is no such run, or the store cannot be read; said as the results are asked for.
        """
        from agentguard.localize.serialization import build_diagnosis_rows
        from agentguard.store import Store

        with Store.open(self._url) as store, guard.override(store=store):

            def keep() -> DiagnosisResults:
                for trajectory, diagnosis in diagnose_runs(self._read_runs(store)):
                    store.write(*build_diagnosis_rows(diagnosis, tenant=self._tenant))
                    yield trajectory, diagnosis

            yield keep()
            flush_store(store)

    def _read_runs(self, store: Store) -> Iterator[Trajectory]:
        for id in self._ids:
            run = store.get_trajectory(id, tenant=self._tenant)
            if run is None:
                tenant_note = f" of tenant {self._tenant!r}" if self._tenant else ""
                raise StoreError(f"{store.address} has no run {id!r}{tenant_note}")
            yield run


def flush_store(store: Store) -> None:
    """Wait until all is written, and say what is not."""
    store.flush(_FLUSH_TIMEOUT_S)
    health = store.get_health()
    if health.lost or health.refused:
        typer.echo(f"not kept: {health.lost + health.refused} rows; {health.last_error}", err=True)


_MAX_FULL_RUNS = 3  # more runs are shown as a table


@dataclass(slots=True)
class _RunCounts:
    """Counts that determine the exit status."""

    diagnosed: int = 0
    unreadable: int = 0
    failed: int = 0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(diagnose)


def diagnose(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Recorded runs: files, folders, addresses of traces (phoenix://PROJECT?since=2d); - reads "
            "standard input."
        ),
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="Format of the runs; recognised by itself if absent.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Localizer; the policy's, or `embedded`, if absent.")
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="YAML file with detectors and localizer.")] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Ask a chat model here, up to and with /v1; outranks the policy's judge."
        ),
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Its model; the first it lists, if absent.")
    ] = None,
    judge_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Setting of the judge as in a policy, e.g. reasoning_tokens=2048; may be given again.",
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, max=1_024, help="Runs to diagnose at once, for a judge; same answers.")
    ] = 1,
    top: Annotated[int, typer.Option(min=0, max=50, help="Further hypotheses to show.")] = 3,
    no_summary: Annotated[
        bool, typer.Option("--no-summary", help="Print the full diagnosis of each run, also of many.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show every finding with its evidence.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one Diagnosis a line, as JSON.")] = False,
    assume_failed: Annotated[
        bool, typer.Option("--assume-failed", help="Treat every run as failed: only name the step.")
    ] = False,
    outcomes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|recorded",
            help="Known outcomes: a CSV or JSON file of run ids and outcomes, or `recorded` for labels and "
            "scores in the runs' own files.",
        ),
    ] = None,
    pass_score: Annotated[
        float, typer.Option(help="Score from which a run of --outcomes FILE passed.")
    ] = 1.0,
    train: Annotated[
        list[Path] | None,
        typer.Option(help="Annotated runs of the same agent to learn its outcomes from; may be given again."),
    ] = None,
    fail_on_failure: Annotated[
        bool, typer.Option("--fail-on-failure", help="Exit with 3 if a run failed, for use in CI.")
    ] = False,
    store: Annotated[
        str | None, typer.Option(help="Also keep the runs and their diagnoses in this store: a path or URL.")
    ] = None,
    run_id: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="ID of a run in the store; repeatable."),
    ] = None,
    tenant: Annotated[str, typer.Option(help="Tenant of the runs that --run-id names.")] = "",
    claude_code: ClaudeCode = False,
    codex: Codex = False,
    last: Last = None,
    watch: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Diagnose files of this folder as they appear or grow, until Ctrl-C."
        ),
    ] = None,
    out: Out = None,
    engine: EngineName = "local",
    partition: Partitions = None,
    id_column: IdColumn = None,
    sample: Sample = 1.0,
    limit: Limit = None,
    max_cost: MaxCost = None,
    dry_run: DryRun = False,
) -> None:
    """Say whether recorded runs failed, and name the step that caused it.

    Exit status: 0 all runs were diagnosed, 1 some records could not be read, 2 nothing could be,
    3 a run failed and --fail-on-failure was given.
    """
    paths = resolve_paths(runs, claude_code=claude_code, codex=codex, last=last)
    if sum(map(bool, (run_id, paths, watch))) != 1:
        raise ConfigError("name files or folders of runs, runs in the store with --run-id, or --watch FOLDER")
    endpoint = _parse_endpoint(judge, judge_model, judge_option or [])
    settings = _build_policy(policy, method, failed=assume_failed, judge=endpoint, jobs=jobs)
    if out is not None:
        inputs = InputOptions(
            format=format, id_column=id_column, partitions=tuple(partition or ()), sample=sample, limit=limit
        )
        batch = BatchSettings(
            output=out, engine=engine, workers=jobs, max_cost_usd=max_cost, is_dry_run=dry_run, json=json
        )
        raise typer.Exit(diagnose_batch(paths, settings, inputs, batch))
    outcome = _RunCounts()
    known = KnownOutcomes.from_option(outcomes, pass_score=pass_score)
    with (
        Guard.from_policy(settings) as guard,
        _learn_agents(guard, train or [], format),
    ):
        if run_id:
            stored_runs = StoredRuns(run_id, store, tenant=tenant)
            results_context = stored_runs.diagnose(
                guard, lambda found: _diagnose_runs(guard, found, known, outcome, jobs=jobs)
            )
        else:
            records = (
                FolderWatch(folder=watch, format=format).iter_records()
                if watch is not None
                else chain.from_iterable(read_path(path, format) for path in paths)
            )
            trajectories = _iter_trajectories(records, known, outcome)
            results_context = _store_results(
                _diagnose_runs(
                    guard,
                    trajectories,
                    known,
                    outcome,
                    is_batch=watch is None,
                    jobs=jobs if watch is None else 1,
                ),
                store,
                guard,
            )
        with results_context as results:
            _print_results(
                results,
                DiagnosisView(max_alternatives=top, show_all=verbose),
                no_summary=no_summary or watch is not None,
                json=json,
            )
    raise typer.Exit(_compute_exit_status(outcome, fail_on_failure))


@contextmanager
def _learn_agents(guard: Guard, paths: list[Path], format: str | None) -> Iterator[None]:
    """Override the localizer by one that also learnt from the annotated runs of the paths."""
    if not paths:
        yield
        return
    if not isinstance(guard.localizer, EmbeddedLocalizer):
        raise ConfigError(f"--train: the localizer {guard.localizer.name!r} cannot learn; leave --method out")
    records = []
    for item in chain.from_iterable(read_path(path, format) for path in paths):
        if isinstance(item, UnreadableRecord):
            typer.echo(f"not read: {item.error}", err=True)
        else:
            records.append(item)
    with guard.override(localizer=guard.localizer.learn_agents(records)):
        yield


def _print_results(results: DiagnosisResults, view: DiagnosisView, *, no_summary: bool, json: bool) -> None:
    if json:
        for _, diagnosis in results:
            sys.stdout.buffer.write(orjson.dumps(diagnosis, option=orjson.OPT_APPEND_NEWLINE, default=str))
            sys.stdout.buffer.flush()
    else:
        _show_results(results, view, no_summary=no_summary)


@contextmanager
def _store_results(results: DiagnosisResults, url: str | None, guard: Guard) -> Iterator[DiagnosisResults]:
    """The results as they are, each written to the store on its way if there is one.

    What people said there of earlier diagnoses corrects the probabilities of these.
    """
    if url is None:
        yield results
        return
    from agentguard.localize.serialization import build_diagnosis_rows
    from agentguard.store import Store

    with Store.open(url) as opened_store, guard.override(store=opened_store):

        def keep() -> DiagnosisResults:
            for trajectory, diagnosis in results:
                opened_store.write_run(trajectory)
                opened_store.write(*build_diagnosis_rows(diagnosis))
                yield trajectory, diagnosis

        yield keep()
        flush_store(opened_store)


def _diagnose_runs(
    guard: Guard,
    trajectories: Iterator[Trajectory],
    known: KnownOutcomes,
    outcome: _RunCounts,
    *,
    is_batch: bool = True,
    jobs: int = 1,
) -> DiagnosisResults:
    diagnosed = map_ordered(
        lambda trajectory: (trajectory, guard.diagnose(trajectory, failed=known.find(trajectory.id))),
        trajectories,
        jobs=jobs,
    )
    # A comparison waits for the last run, and a watch has none.
    for trajectory, diagnosis in compare_runs(diagnosed, guard.localizer) if is_batch else diagnosed:
        outcome.diagnosed += 1
        outcome.failed += diagnosis.verdict is Verdict.FAILURE
        yield trajectory, diagnosis


def _show_results(results: DiagnosisResults, view: DiagnosisView, *, no_summary: bool) -> None:
    """Print a few runs in full and many as a table; ``no_summary`` prints each run in full."""
    console = build_console()
    rows: list[DiagnosisTableRow] = []
    shown_diagnoses: list[tuple[Trajectory, Diagnosis]] = []
    with Console(stderr=True).status("diagnosing …") as status:
        for trajectory, diagnosis in results:
            rows.append(DiagnosisTableRow.from_diagnosis(trajectory, diagnosis))
            status.update(f"diagnosing … {len(rows)} runs")
            if no_summary:
                render_diagnosis(console, trajectory, diagnosis, view)
            elif len(rows) <= _MAX_FULL_RUNS:
                shown_diagnoses.append((trajectory, diagnosis))
    if not no_summary and len(rows) <= _MAX_FULL_RUNS:
        for trajectory, diagnosis in shown_diagnoses:
            render_diagnosis(console, trajectory, diagnosis, view)
    if len(rows) > 1:
        console.print()
        console.print(build_summary_table(rows))


def _parse_endpoint(url: str | None, model: str | None, options: list[str]) -> dict[str, Any]:
    """Return the judge's settings on the command line, as a policy has them."""
    if url is None and model is not None:
        raise ConfigError("--judge-model goes with --judge")
    settings: dict[str, Any] = parse_judge_options(options)
    settings |= {} if url is None else {"base_url": url}
    return settings | ({} if model is None else {"model": model})


def _build_policy(
    policy: Path | None, method: str | None, *, failed: bool, judge: Mapping[str, Any], jobs: int
) -> Policy:
    """Return the policy with the options of the command line, which take precedence.

    A method from the command line has no options. A judge keeps the policy's settings except address, model
    and the options given: key, deadline, second judge. It serves at least ``jobs`` calls at once.
    """
    settings = Policy() if policy is None else Policy.load(policy)
    if judge:
        judge_options = (
            {}
            if settings.judge is None
            else settings.judge.model_dump(exclude=_ADDRESS_FIELDS if "base_url" in judge else None)
        )
        judge_settings = Policy.parse({"judge": {**judge_options, **judge}}, source="--judge").judge
        settings = settings.model_copy(update={"judge": judge_settings})
    if settings.judge is not None and settings.judge.max_concurrent < jobs:
        judge_settings = settings.judge.model_copy(update={"max_concurrent": jobs})
        settings = settings.model_copy(update={"judge": judge_settings})
    localizer = settings.resolve_localizer() if method is None else LocalizerSettings(name=method)
    if failed:
        localizer = LocalizerSettings.model_validate({**localizer.model_dump(), "given_failed": True})
    return settings.model_copy(update={"localizer": localizer})


def _iter_trajectories(
    records: Iterator[Record | UnreadableRecord], known: KnownOutcomes, outcome: _RunCounts
) -> Iterator[Trajectory]:
    for item in records:
        if isinstance(item, UnreadableRecord):
            outcome.unreadable += 1
            typer.echo(f"not read: {item.error}", err=True)
        else:
            known.add_recorded(item)
            yield item.trajectory


def _compute_exit_status(outcome: _RunCounts, fail_on_failure: bool) -> int:
    if outcome.diagnosed == 0:
        return 2
    if outcome.failed and fail_on_failure:
        return 3
    return 1 if outcome.unreadable else 0
