"""``agentguard diagnose``: decide which recorded runs failed, and name the step that caused each failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from agentguard.batch import DiagnosisOperation, InputOptions
from agentguard.cli.batch_mode import (
    BatchFolder,
    BatchSettings,
    DocumentColumn,
    DryRun,
    EngineName,
    IdColumn,
    MaxCost,
    Partitions,
    Sample,
    run_batch,
)
from agentguard.cli.ci_reports import OutputFormat
from agentguard.cli.diagnosis_formats import DiagnosisPrinter
from agentguard.cli.diagnosis_text import DiagnosisView
from agentguard.cli.folder_watch import FolderWatch
from agentguard.cli.judge_endpoint import parse_judge_options
from agentguard.cli.outcome_file import KnownOutcomes
from agentguard.cli.policy_option import load_policy, raise_judge_concurrency
from agentguard.cli.run_input import ClaudeCode, Codex, Last, read_paths, resolve_paths
from agentguard.cli.run_summary import GroupKey, RunSelection, SortKey
from agentguard.cli.store_access import DiagnosisResults, StoredRuns, StoreImport
from agentguard.config.policy import LocalizerSettings, Policy
from agentguard.config.prices import PriceTable
from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.localize.embedded import EmbeddedLocalizer
from agentguard.localize.run_comparison import compare_runs
from agentguard.quantity import format_quantity
from agentguard.resilience.ordered_map import map_ordered
from agentguard.trajectory.costs import price_run
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.model import Record, Trajectory
from agentguard.verdict import Verdict

_ADDRESS_FIELDS = {"base_url", "model", "replicas", "pool"}
"""Settings of a judge that another address on the command line replaces."""


@dataclass(slots=True)
class _RunCounts:
    """Counts that determine the exit status, and the origin of the runs."""

    diagnosed: int = 0
    skipped: int = 0
    failed: int = 0
    renamed: int = 0
    unreadable: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


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
    format: Annotated[str | None, typer.Option(help="Format of the runs; recognised by default.")] = None,
    method: Annotated[
        str | None, typer.Option(help="Localizer; by default that of the policy, else `embedded`.")
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="YAML file with detectors and localizer.")] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Base URL of a chat model, with /v1; takes precedence over the policy's judge.",
        ),
    ] = None,
    judge_model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Model of the judge; by default the first that the endpoint lists."
        ),
    ] = None,
    judge_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Setting of the judge as in a policy, e.g. reasoning_tokens=2048; repeatable.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_024,
            help="Number of concurrent diagnoses, for a judge (1); the answers are the same. "
            "With --batch-output: number of workers, by default one a core.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=0, max=50, help="Further hypotheses to show.")] = 3,
    no_summary: Annotated[
        bool, typer.Option("--no-summary", help="Print the full diagnosis of each run.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show every finding with its evidence.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one diagnosis per line.")] = False,
    output_format: Annotated[
        OutputFormat, typer.Option(help="Format of the output; all but text and json are reports for CI.")
    ] = OutputFormat.TEXT,
    only: Annotated[
        list[Verdict] | None, typer.Option(help="Show only runs with this verdict; repeatable.")
    ] = None,
    sort: Annotated[SortKey, typer.Option(help="Order of many runs.")] = SortKey.VERDICT,
    group_by: Annotated[
        GroupKey | None, typer.Option(help="Show one row per group of runs instead of one row per run.")
    ] = None,
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
        typer.Option(help="Annotated runs of the same agent, to learn its outcomes; repeatable."),
    ] = None,
    fail_on_failure: Annotated[
        bool, typer.Option("--fail-on-failure", help="Exit with 3 if a run failed, for CI.")
    ] = False,
    store: Annotated[
        str | None, typer.Option(help="Also write the runs and their diagnoses to this store: a path or URL.")
    ] = None,
    only_new: Annotated[
        bool,
        typer.Option(
            "--only-new", help="Skip runs that --store has with equal content and a diagnosis, to resume."
        ),
    ] = False,
    run_id: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="ID of a run: of the named files, or of the store if no file is named; repeatable.",
        ),
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
    batch_output: BatchFolder = None,
    engine: EngineName = "local",
    partition: Partitions = None,
    id_column: IdColumn = None,
    document_column: DocumentColumn = None,
    sample: Sample = 1.0,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Show at most N rows; with --batch-output, diagnose at most N rows."
        ),
    ] = None,
    max_cost: MaxCost = None,
    dry_run: DryRun = False,
) -> None:
    """Diagnose recorded runs: which failed, and the step that caused each failure.

    Exit status: 0 if all runs are diagnosed, 1 if some records are not readable, 2 if none is,
    3 if a run failed and --fail-on-failure is given.
    """
    paths = resolve_paths(runs, claude_code=claude_code, codex=codex, last=last)
    has_stored_runs = bool(run_id) and not paths
    if sum(map(bool, (has_stored_runs, paths, watch))) != 1:
        raise ConfigError(
            "name one source of runs: files and folders, --run-id for runs of a store, or --watch FOLDER"
        )
    if run_id and batch_output is not None:
        raise ConfigError("--run-id and --batch-output exclude each other")
    if json and output_format not in (OutputFormat.TEXT, OutputFormat.JSON):
        raise ConfigError("--json and --output-format exclude each other")
    if only_new and (store is None or not (paths or watch) or batch_output is not None):
        raise ConfigError("--only-new needs --store and runs from files or products, without --batch-output")
    endpoint = _parse_endpoint(judge, judge_model, judge_option or [])
    # Each worker of a batch job diagnoses one run at a time; the policy does not depend on their number.
    concurrency = 1 if jobs is None or batch_output is not None else jobs
    settings = _build_policy(
        policy, method, failed=assume_failed, judge=endpoint, jobs=concurrency, store=store
    )
    if batch_output is not None:
        inputs = InputOptions(
            format=format,
            id_column=id_column,
            document_column=document_column,
            partitions=tuple(partition or ()),
            sample=sample,
            limit=limit,
        )
        batch = BatchSettings(
            output=batch_output,
            engine=engine,
            workers=jobs,
            max_cost_usd=max_cost,
            is_dry_run=dry_run,
            json=json,
            outcome_labels={str(verdict): verdict.label for verdict in Verdict},
        )
        raise typer.Exit(run_batch(paths, DiagnosisOperation(settings), inputs, batch))
    selection = RunSelection(only=tuple(only or ()), sort=sort, limit=limit, group_by=group_by)
    outcome = _RunCounts()
    store_import = StoreImport(store, outcome.files, only_new=only_new)
    known = KnownOutcomes.from_option(outcomes, pass_score=pass_score)
    with (
        Guard.from_policy(settings) as guard,
        _learn_agents(guard, train or [], format),
    ):
        if has_stored_runs:
            stored_runs = StoredRuns(run_id or [], store, tenant=tenant)
            results_context = stored_runs.diagnose(
                guard, lambda found: _diagnose_runs(guard, found, known, outcome, jobs=concurrency)
            )
        else:
            records = (
                FolderWatch(folder=watch, format=format).iter_records()
                if watch is not None
                else read_paths(paths, format)
            )
            results_context = store_import.diagnose(
                guard,
                _iter_trajectories(records, known, outcome, settings.prices, ids=run_id or ()),
                lambda found: _diagnose_runs(
                    guard,
                    found,
                    known,
                    outcome,
                    is_batch=watch is None,
                    jobs=concurrency if watch is None else 1,
                ),
            )
        with results_context as results:
            DiagnosisPrinter(
                format=OutputFormat.JSON if json else output_format,
                view=DiagnosisView(max_alternatives=top, show_all=verbose),
                selection=selection,
                is_full=no_summary or watch is not None,
                find_file=outcome.files.get,
                unreadable=outcome.unreadable,
                store=store_import.address,
            ).print_results(results)
    outcome.skipped = store_import.skipped
    if outcome.renamed:
        count = format_quantity(outcome.renamed, "run")
        typer.echo(f"named FILE:ID, because another run of the input has the id: {count}", err=True)
    if not run_id and (text := known.describe_unmatched()):
        typer.echo(text, err=True)
    raise typer.Exit(_compute_exit_status(outcome, fail_on_failure))


@contextmanager
def _learn_agents(guard: Guard, paths: list[Path], format: str | None) -> Iterator[None]:
    """Replace the localizer by one that was also trained on the annotated runs of the paths."""
    if not paths:
        yield
        return
    if not isinstance(guard.localizer, EmbeddedLocalizer):
        raise ConfigError(f"--train: the localizer {guard.localizer.name!r} cannot learn; leave --method out")
    records = []
    for item in read_paths(paths, format):
        if isinstance(item, UnreadableRecord):
            typer.echo(f"not read: {item.error}", err=True)
        else:
            records.append(item)
    localizer = guard.localizer.learn_agents(records)
    if len(localizer.model.specialists) == len(guard.localizer.model.specialists):
        from agentguard.judge.embedded.label_counts import MINIMUM_LABELS

        typer.echo(f"--train has no effect: too few labels. For each agent, {MINIMUM_LABELS}", err=True)
    with guard.override(localizer=localizer):
        yield


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
        outcome.failed += diagnosis.verdict is Verdict.FAILED
        yield trajectory, diagnosis


def _parse_endpoint(url: str | None, model: str | None, options: list[str]) -> dict[str, Any]:
    """Return the judge's settings on the command line, as a policy has them."""
    if url is None and model is not None:
        raise ConfigError("--judge-model needs --judge")
    settings: dict[str, Any] = parse_judge_options(options)
    settings |= {} if url is None else {"base_url": url}
    return settings | ({} if model is None else {"model": model})


def _build_policy(
    policy: Path | None,
    method: str | None,
    *,
    failed: bool,
    judge: Mapping[str, Any],
    jobs: int,
    store: str | None,
) -> Policy:
    """Return the policy with the options of the command line, which take precedence.

    A method from the command line has no options. A judge keeps the policy's settings except address, model
    and the options given: key, deadline, second judge. It serves at least ``jobs`` calls at once.
    """
    settings = load_policy(policy, store)
    if judge:
        judge_options = (
            {}
            if settings.judge is None
            else settings.judge.model_dump(exclude=_ADDRESS_FIELDS if "base_url" in judge else None)
        )
        judge_settings = Policy.parse({"judge": {**judge_options, **judge}}, source="--judge").judge
        settings = settings.model_copy(update={"judge": judge_settings})
    settings = raise_judge_concurrency(settings, jobs)
    localizer = settings.resolve_localizer() if method is None else LocalizerSettings(name=method)
    if failed:
        localizer = LocalizerSettings.model_validate({**localizer.model_dump(), "given_failed": True})
    return settings.model_copy(update={"localizer": localizer})


def _iter_trajectories(
    records: Iterator[Record | UnreadableRecord],
    known: KnownOutcomes,
    outcome: _RunCounts,
    prices: PriceTable,
    *,
    ids: Sequence[str],
) -> Iterator[Trajectory]:
    """Yield the runs, or those with the given ids if there are any."""
    missing = set(ids)
    for item in records:
        if isinstance(item, UnreadableRecord):
            outcome.unreadable.append(str(item.error))
            typer.echo(f"not read: {item.error}", err=True)
        elif not ids or item.trajectory.id in ids:
            missing.discard(item.trajectory.id)
            if item.file is not None:
                outcome.files[item.trajectory.id] = item.file
            outcome.renamed += item.original_id is not None
            known.add_recorded(item)
            yield price_run(item.trajectory, prices)
    for id in sorted(missing):
        outcome.unreadable.append(f"no run has the id {id!r}")
        typer.echo(
            f"error: no run has the id {id!r}; `agentguard diagnose` without --run-id lists the ids", err=True
        )


def _compute_exit_status(outcome: _RunCounts, fail_on_failure: bool) -> int:
    if outcome.diagnosed + outcome.skipped == 0:
        return 2
    if outcome.failed and fail_on_failure:
        return 3
    return 1 if outcome.unreadable else 0
