"""``agentguard eval``: measure methods on annotated runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agentguard.batch import EvaluationOperation, InputOptions
from agentguard.cli.batch_mode import (
    BatchFolder,
    BatchSettings,
    DocumentColumn,
    DryRun,
    EngineName,
    IdColumn,
    Partitions,
    Sample,
    build_batch_job,
    print_estimate,
    run_batch_job,
)
from agentguard.cli.evaluation_tables import build_tables
from agentguard.cli.json_output import print_json
from agentguard.cli.option_values import parse_option
from agentguard.cli.store_access import open_verdict_store
from agentguard.errors import ConfigError
from agentguard.evals.datasets.dataset import AUTO_FORMAT, Dataset, load_dataset
from agentguard.evals.evaluate import EvaluationPlan, compare
from agentguard.evals.methods import MethodSpec, resolve_method
from agentguard.evals.result import Evaluation
from agentguard.evals.result_file import RESULTS_FOLDER, build_file_name, write_result_file

_CHECKPOINT_DIR = RESULTS_FOLDER


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval")(eval_)


def eval_(
    format: Annotated[
        str, typer.Argument(help="Format of the runs, e.g. who_and_when; auto recognises it for each path.")
    ],
    paths: Annotated[list[Path], typer.Argument(help="Files or folders of annotated runs.")],
    method: Annotated[
        list[str] | None, typer.Option("--method", help="Method to measure; repeatable.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="Option of the one method.")
    ] = None,
    cv: Annotated[
        str | None, typer.Option("--cv", metavar="question", help="Cross-validate, grouped by question.")
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of the cross-validation.")] = 5,
    train: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            "--train",
            metavar="FORMAT PATH",
            help="Annotated runs to train on, instead of a cross-validation.",
        ),
    ] = None,
    leave_one_system_out: Annotated[
        bool,
        typer.Option(
            "--leave-one-system-out",
            help="Score each path by a model that is trained on the other paths, as on an unknown agent.",
        ),
    ] = False,
    with_answer: Annotated[
        bool, typer.Option("--with-answer", help="Let methods read the gold answer.")
    ] = False,
    shuffle_labels: Annotated[
        bool, typer.Option("--shuffle-labels", help="Train on shuffled labels, as a check.")
    ] = False,
    allow_training_data: Annotated[
        bool,
        typer.Option(
            "--allow-training-data", help="Score a model on its training runs; the result is marked."
        ),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_024,
            help="Number of concurrent diagnoses, for a judge (1); the predictions are the same. "
            "With --batch-output: number of workers, by default one a core.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Score only the first runs.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of folds and shuffles.")] = 0,
    no_resume: Annotated[
        bool, typer.Option("--no-resume", help="Discard the checkpoint of an interrupted evaluation.")
    ] = False,
    checkpoint: Annotated[
        Path, typer.Option(help="Folder for the checkpoint of an interrupted evaluation.")
    ] = _CHECKPOINT_DIR,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Store that keeps the answers of judges; by default AGENTGUARD_STORE or "
            ".agentguard/store.db, if it exists.",
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML report to this file; it needs no network.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File for the whole result instead of .agentguard/evals."),
    ] = None,
    save: Annotated[bool, typer.Option(help="Save the whole result for `agentguard view`.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    batch_output: BatchFolder = None,
    engine: EngineName = "local",
    partition: Partitions = None,
    id_column: IdColumn = None,
    document_column: DocumentColumn = None,
    sample: Sample = 1.0,
    dry_run: DryRun = False,
) -> None:
    """Measure the accuracy of methods for root causes and outcomes, with baselines.

    --batch-output writes the predictions for each run to a table of Parquet files, and continues after a
    stop. It trains nothing.

    Exit status: 0 if all runs are scored, 1 if some records are not readable or a method failed on some runs,
    2 if none is scored, 130 after an interruption (the same command resumes).
    """
    if leave_one_system_out:
        _evaluate_systems(format, paths, method or [], output=output, json=json)
    plan = EvaluationPlan(
        cv=_parse_cv(cv),
        folds=folds,
        repeats=repeats,
        with_answer=with_answer,
        shuffle_labels=shuffle_labels,
        seed=seed,
        allow_training_data=allow_training_data,
    )
    specs = _parse_specs(method or ["embedded"], option or [])
    if batch_output is not None:
        if cv or train or shuffle_labels or store:
            raise ConfigError(
                "--batch-output trains nothing and uses no store: leave --cv, --train and --store out"
            )
        inputs = InputOptions(
            format=None if format == AUTO_FORMAT else format,
            id_column=id_column,
            document_column=document_column,
            partitions=tuple(partition or ()),
            sample=sample,
            limit=limit,
        )
        settings = BatchSettings(
            output=batch_output, engine=engine, workers=jobs, is_dry_run=dry_run, json=json
        )
        results, data = _evaluate_batch(format, paths, specs, plan, inputs, settings)
    else:
        data = load_dataset(format, paths).take(limit)
        training_data = load_dataset(train[0], [train[1]]) if train else None
        with open_verdict_store(store):
            results = _evaluate_methods(
                data,
                specs,
                plan,
                train=training_data,
                checkpoint=checkpoint,
                no_resume=no_resume,
                jobs=jobs or 1,
            )
    if report:
        from agentguard.evals.report import write_report

        write_report(report, results, plan=plan)
    if save or output:
        result_path = write_result_file(
            output or RESULTS_FOLDER / build_file_name(results), results, plan=plan
        )
        typer.echo(f"saved in {result_path}; agentguard view shows it", err=True)
    _print_results(results, plan, data, json=json)
    has_errors = bool(data.broken) or any(p.error for result in results for p in result.predictions)
    raise typer.Exit(1 if has_errors else 0)


def _evaluate_batch(
    format: str,
    paths: Sequence[Path],
    specs: Sequence[MethodSpec],
    plan: EvaluationPlan,
    inputs: InputOptions,
    settings: BatchSettings,
) -> tuple[tuple[Evaluation, ...], Dataset]:
    """Predict by a batch job, and score its table."""
    from agentguard.batch import score_rows

    operation = EvaluationOperation(methods=tuple(specs), with_answer=plan.with_answer)
    job = build_batch_job(paths, operation, inputs, settings)
    if settings.is_dry_run:
        print_estimate(job, settings)
        raise typer.Exit
    run_batch_job(job, settings)
    return score_rows(job.iter_rows(), specs, dataset=format, allow_training_data=plan.allow_training_data)


def _evaluate_systems(
    format: str, paths: list[Path], methods: list[str], *, output: Path | None, json: bool
) -> NoReturn:
    """Evaluate the embedded judge on each path with the other paths as training data, print and exit."""
    from agentguard.cli.leave_one_system_out_tables import build_system_tables
    from agentguard.evals.leave_one_system_out import evaluate_leave_one_system_out

    if methods not in ([], ["embedded"]):
        raise ConfigError("--leave-one-system-out measures the embedded judge beside the baselines")
    systems = [replace(load_dataset(format, [path]), name=name) for path, name in _name_paths(paths)]
    result = evaluate_leave_one_system_out(
        systems, report_progress=lambda name: typer.echo(f"training without {name}", err=True)
    )
    data = orjson.dumps(result.as_dict(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    if output:
        output.write_bytes(data)
    broken = [error for system in systems for error in system.broken]
    for error in broken:
        typer.echo(f"not read: {error}", err=True)
    if json:
        sys.stdout.buffer.write(data)
    else:
        console = Console()
        for part in build_system_tables(result):
            console.print(part)
    raise typer.Exit(1 if broken else 0)


def _name_paths(paths: list[Path]) -> Iterator[tuple[Path, str]]:
    """Yield each path with its last part, or the whole path if several end the same way."""
    counts = Counter(path.name for path in paths)
    for path in paths:
        yield path, path.name if counts[path.name] == 1 else str(path)


def _evaluate_methods(
    data: Dataset,
    specs: Sequence[MethodSpec],
    plan: EvaluationPlan,
    *,
    train: Dataset | None,
    checkpoint: Path,
    no_resume: bool,
    jobs: int,
) -> tuple[Evaluation, ...]:
    try:
        with _show_progress() as progress_callback:
            return compare(
                data,
                specs,
                plan=plan,
                train=train,
                progress=progress_callback,
                checkpoint_dir=checkpoint,
                discard_checkpoint=no_resume,
                jobs=jobs,
            )
    except KeyboardInterrupt:
        typer.echo("interrupted; the same command resumes; --no-resume starts again", err=True)
        raise typer.Exit(130) from None


def _parse_cv(value: str | None) -> Any:
    if value not in (None, "question"):
        raise ConfigError(f"--cv {value}: is not a split; write --cv question")
    return value


def _parse_specs(methods: Sequence[str], options: Sequence[str]) -> list[MethodSpec]:
    if options and len(methods) > 1:
        raise ConfigError("--option needs exactly one --method; measure the others separately")
    given = dict(parse_option(text, flag="--option") for text in options)
    return [resolve_method(name, given) for name in dict.fromkeys(methods)]


@contextmanager
def _show_progress() -> Iterator[Any]:
    """Show one progress bar for each method on standard error."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def update_progress(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total)
            bars.update(tasks[label], completed=done)

        yield update_progress


def _print_results(results: Sequence[Evaluation], plan: EvaluationPlan, data: Dataset, *, json: bool) -> None:
    for error in data.broken:
        typer.echo(f"not read: {error}", err=True)
    if not json:
        console = Console()
        for part in build_tables(results, plan):
            console.print(part)
        return
    data_ = results[0].as_dict()
    data_["plan"] = plan
    if len(results) > 1:
        data_["methods"] = [{k: v for k, v in r.as_dict().items() if k != "baselines"} for r in results]
    print_json(data_)
