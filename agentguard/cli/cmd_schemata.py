"""``agentguard schemata``: distil, list, search and select error schemata, and induce codes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentguard.cli import schema_tables
from agentguard.cli.batch_mode import (
    BatchFolder,
    BatchSettings,
    DocumentColumn,
    DryRun,
    EngineName,
    IdColumn,
    Limit,
    Partitions,
    Sample,
    Workers,
    build_batch_job,
    print_estimate,
    run_batch_job,
)
from agentguard.cli.json_output import print_json
from agentguard.cli.terminal_text import build_console
from agentguard.errors import ConfigError, InputError, JudgeError
from agentguard.quantity import format_quantity
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Record

if TYPE_CHECKING:
    from agentguard.batch import DistillationOperation, InputOptions
    from agentguard.batch.distillation import DistillationProcessor
    from agentguard.schemata.model import ErrorSchema

Runs = Annotated[list[Path], typer.Argument(help="Recorded runs: files or folders.")]
Format = Annotated[str | None, typer.Option(help="Format of the runs; recognised by default.")]
Place = Annotated[
    str | None,
    typer.Option("--store", metavar="PATH|URL", help="File or database of schemata; by default the store."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Id = Annotated[str, typer.Argument(help="ID of a schema, or its beginning.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Error schemata, distilled from earlier failures.")
    group.command()(distill)
    group.command("list")(list_)
    group.command()(show)
    group.command()(search)
    group.command()(select)
    group.command()(stats)
    group.command()(confirm)
    group.command()(refute)
    group.command()(induce)
    group.command()(accept)
    app.add_typer(group, name="schemata")


def distill(
    runs: Runs,
    format: Format = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File of schemata to extend; created if it does not exist."
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Database to extend; by default the store.")
    ] = None,
    diagnosed: Annotated[
        bool,
        typer.Option("--diagnosed", help="Diagnose runs without annotation, and distil the failed ones."),
    ] = False,
    judge_url: Annotated[
        str | None,
        typer.Option(
            "--judge", metavar="URL", help="OpenAI-compatible endpoint of a model that writes the schemata."
        ),
    ] = None,
    judge_model: Annotated[str | None, typer.Option(metavar="NAME", help="Model of that endpoint.")] = None,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=1, help="Time limit of one failure, in seconds."),
    ] = 120.0,
    json: Json = False,
    batch_output: BatchFolder = None,
    engine: EngineName = "local",
    jobs: Workers = None,
    partition: Partitions = None,
    id_column: IdColumn = None,
    document_column: DocumentColumn = None,
    sample: Sample = 1.0,
    limit: Limit = None,
    dry_run: DryRun = False,
) -> None:
    """Distil failed runs to error schemata; similar failures are merged.

    --batch-output also writes the schema of each run to a table of Parquet files, and continues after a stop.

    Exit status: 0 if all failures are distilled, 1 if some records are not readable or not distilled,
    2 if none is.
    """
    from agentguard.batch import DistillationOperation, InputOptions
    from agentguard.schemata.live_cache import SchemaCache
    from agentguard.schemata.persistence import open_schema_store

    if output is not None and store is not None:
        raise ConfigError("give --output or --store, not both")
    operation = DistillationOperation(
        is_diagnosed=diagnosed, judge_url=judge_url, judge_model=judge_model, timeout_s=timeout_s
    )
    counts: Counter[str] = Counter()
    if batch_output is None:
        schemata = _distill_failures(_read_records(runs, format, counts), operation.build_processor(), counts)
    else:
        inputs = InputOptions(
            format=format,
            id_column=id_column,
            document_column=document_column,
            partitions=tuple(partition or ()),
            sample=sample,
            limit=limit,
        )
        settings = BatchSettings(
            output=batch_output, engine=engine, workers=jobs, is_dry_run=dry_run, json=json
        )
        schemata = _distill_batch(runs, operation, inputs, settings, counts)
    with open_schema_store(store if output is None else str(output)) as keep, SchemaCache(keep) as cache:
        for schema in schemata:
            counts[cache.insert(schema, time.time()).outcome] += 1
        schema_count = len(cache)
    names = ("read", "broken", "passed_over", "failed", "added", "merged", "known")
    result = {name: counts[name] for name in names} | {"schemata": schema_count}
    if json:
        print_json(result, is_indented=True)
    else:
        typer.echo(schema_tables.format_distillation(result, is_diagnosed=diagnosed))
    has_no_result = not counts["added"] + counts["merged"] + counts["known"]
    raise typer.Exit(2 if has_no_result else 1 if counts["broken"] + counts["failed"] else 0)


def list_(place: Place = None, json: Json = False) -> None:
    """List schemata, most frequent first."""
    schemata = sorted(_load_schemata(place), key=lambda one: (one.status.value, -one.support, one.id))
    if json:
        print_json([schema_tables.to_plain_dict(one) for one in schemata], is_indented=True)
    else:
        build_console().print(schema_tables.build_schema_table(schemata))


def show(schema_id: Id, place: Place = None, json: Json = False) -> None:
    """Show a schema with all fields."""
    schema = schema_tables.find_schema(_load_schemata(place), schema_id)
    if json:
        print_json(schema_tables.to_plain_dict(schema), is_indented=True)
    else:
        schema_tables.print_schema(build_console(), schema)


def search(
    run: Annotated[Path, typer.Argument(help="Recorded run; of a file, the first one.")],
    step: Annotated[
        int | None, typer.Option(min=0, help="Only this step; by default all candidate steps.")
    ] = None,
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Schemata for each step.")] = 3,
    format: Format = None,
    place: Place = None,
    json: Json = False,
) -> None:
    """Find the schemata that are most similar to the steps of a run."""
    from agentguard.schemata.signal_trainer import build_signals, detect_cached, profile_cached

    trajectory = next(_read_records([run], format, Counter())).trajectory
    profiles = profile_cached(trajectory, detect_cached(trajectory))
    queries = [profile for profile in profiles if step is None or profile.step == step]
    if not queries:
        problem = "the step is not in the run, or cannot be at fault"
        raise InputError(problem, file=str(run), field=f"step {step}")
    matches = build_signals(_load_schemata(place), k=top_k).index.search(queries, top_k)
    steps = [profile.step or 0 for profile in queries]
    if json:
        print_json(
            [
                {
                    "step": step_index,
                    "schemata": [
                        {"similarity": m.similarity, **schema_tables.to_plain_dict(m.schema)} for m in row
                    ],
                }
                for step_index, row in zip(steps, matches, strict=True)
            ],
            is_indented=True,
        )
    else:
        build_console().print(schema_tables.build_match_table(steps, matches))


def select(
    budget: Annotated[int, typer.Option(min=1, help="Number of schemata to select.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the selected schemata to this file."),
    ] = None,
    place: Place = None,
    json: Json = False,
) -> None:
    """Select diverse and reliable schemata under a budget. No schema is retired."""
    from agentguard.schemata.model import SchemaStatus
    from agentguard.schemata.selection import select_schemata as choose
    from agentguard.schemata.serialization import write_schemata
    from agentguard.schemata.signal_trainer import build_signals

    index = build_signals([one for one in _load_schemata(place) if one.status is SchemaStatus.ACTIVE]).index
    schemata_by_id = {schema.id: schema for schema in index}
    selected = [schemata_by_id[name] for name in choose(tuple(index), index.vectors()[1], budget)]
    if output is not None:
        write_schemata(output, selected)
    if json:
        print_json([schema_tables.to_plain_dict(candidate) for candidate in selected], is_indented=True)
    else:
        build_console().print(schema_tables.build_schema_table(selected))


def stats(place: Place = None, json: Json = False) -> None:
    """Count schemata by status, origin, method and code."""
    counts = schema_tables.count_schemata(_load_schemata(place))
    if json:
        print_json(counts, is_indented=True)
        return
    for name, value in counts.items():
        parts = value if isinstance(value, dict) else {str(value): ""}
        typer.echo(f"{name}: " + ", ".join(f"{key} {count}".strip() for key, count in parts.items()))


def confirm(schema_id: Id, place: Place = None, json: Json = False) -> None:
    """Record that a schema matched a failure."""
    _record_verdict(schema_id, place, is_correct=True, json=json)


def refute(schema_id: Id, place: Place = None, json: Json = False) -> None:
    """Record that a schema did not match; too many such records retire it."""
    _record_verdict(schema_id, place, is_correct=False, json=json)


def induce(
    min_support: Annotated[int, typer.Option(min=2, help="Least number of failures of a proposal.")] = 4,
    min_similarity: Annotated[
        float | None,
        typer.Option(min=-1, max=1, help="Least similarity of failures in a group; estimated by default."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the proposals as a taxonomy.")
    ] = None,
    place: Place = None,
    json: Json = False,
) -> None:
    """Propose new codes for failures that no code covers. `schemata accept` adopts them."""
    from dataclasses import asdict

    from agentguard.schemata.induction.taxonomy_writer import format_taxonomy

    proposals = _propose_codes(place, min_support, min_similarity)
    if output is not None:
        output.write_text(format_taxonomy(proposals), encoding="utf-8")
    if json:
        print_json([asdict(proposal) for proposal in proposals], is_indented=True)
        return
    for proposal in proposals:
        nearest_note = (
            f", nearest {proposal.nearest} at {proposal.nearest_similarity:.2f}" if proposal.nearest else ""
        )
        typer.echo(
            f"{proposal.code}: {proposal.title} ({format_quantity(proposal.support, 'failure')}, "
            f"similarity {proposal.cohesion:.2f}{nearest_note})"
        )
        typer.echo(f"    {proposal.definition}")


def accept(
    codes: Annotated[list[str], typer.Argument(help="Proposed codes.")],
    into: Annotated[Path, typer.Option(metavar="FILE", help="Taxonomy file; created if it does not exist.")],
    min_support: Annotated[int, typer.Option(min=2, help="As for `schemata induce`.")] = 4,
    min_similarity: Annotated[
        float | None, typer.Option(min=-1, max=1, help="As for `schemata induce`.")
    ] = None,
    place: Place = None,
    json: Json = False,
) -> None:
    """Write proposed codes into your taxonomy file."""
    from agentguard.schemata.induction.taxonomy_writer import accept_proposals as write

    proposals = {proposal.code: proposal for proposal in _propose_codes(place, min_support, min_similarity)}
    unknown_codes = [code for code in codes if code not in proposals]
    if unknown_codes:
        raise InputError(
            f"no proposal has the code {unknown_codes[0]!r}",
            hint=f"there are: {', '.join(sorted(proposals))}",
        )
    taxonomy = write(into, [proposals[code] for code in codes])
    if json:
        print_json(
            {"file": str(into), "accepted": list(codes), "codes": len(taxonomy.codes)}, is_indented=True
        )
    else:
        typer.echo(f"{into}: {format_quantity(len(taxonomy.codes), 'code')}, new: {', '.join(codes)}")


def _propose_codes(place: str | None, min_support: int, min_similarity: float | None) -> tuple[Any, ...]:
    from agentguard.schemata.induction.clustering import propose_codes
    from agentguard.schemata.signal_trainer import build_signals

    index = build_signals(_load_schemata(place)).index
    return propose_codes(
        tuple(index), index.vectors()[1], min_support=min_support, min_similarity=min_similarity
    )


def _record_verdict(schema_id: str, place: str | None, *, is_correct: bool, json: bool) -> None:
    from agentguard.schemata.live_cache import SchemaCache
    from agentguard.schemata.persistence import open_schema_store

    _load_schemata(place)  # a missing place is an error; it is not created
    with open_schema_store(place) as keep, SchemaCache(keep) as cache:
        name = schema_tables.find_schema(tuple(cache), schema_id).id
        schema = (cache.record_confirmation if is_correct else cache.record_refutation)(name, time.time())
    if json:
        print_json(schema_tables.to_plain_dict(schema), is_indented=True)
    else:
        typer.echo(f"{name}: confirmed {schema.confirmed}, refuted {schema.refuted}, {schema.status.value}")


def _distill_failures(
    records: Iterator[Record], processor: DistillationProcessor, counts: Counter[str]
) -> Iterator[ErrorSchema]:
    """Yield the schema of each failure."""
    for record in records:
        try:
            schema = processor.distill(record)
        except JudgeError as error:
            counts["failed"] += 1
            typer.echo(f"cannot distil {record.trajectory.id!r}: {error}", err=True)
            continue
        if schema is None:
            counts["passed_over"] += 1
        else:
            yield schema
    processor.close()


def _distill_batch(
    runs: Sequence[Path],
    operation: DistillationOperation,
    inputs: InputOptions,
    settings: BatchSettings,
    counts: Counter[str],
) -> Iterator[ErrorSchema]:
    """Distil runs by a batch job, and return the schemata of its table in the order of the input."""
    job = build_batch_job(runs, operation, inputs, settings)
    if settings.is_dry_run:
        print_estimate(job, settings)
        raise typer.Exit
    run_batch_job(job, settings)
    return _iter_row_schemata(job.iter_rows(), counts)


def _iter_row_schemata(rows: Iterator[dict[str, Any]], counts: Counter[str]) -> Iterator[ErrorSchema]:
    from agentguard.schemata.serialization import parse_schema

    for row in rows:
        counts["broken" if row["outcome"] is None else "read"] += 1
        counts["passed_over"] += row["outcome"] == "passed_over"
        if row["schema"] is not None:
            yield parse_schema(row["schema"])


def _load_schemata(place: str | None) -> tuple[ErrorSchema, ...]:
    from agentguard.schemata.persistence import load_schemata

    return load_schemata(place)


def _read_records(paths: list[Path], format: str | None, counts: Counter[str]) -> Iterator[Record]:
    for path in paths:
        for item in read(path, format=format):
            if isinstance(item, UnreadableRecord):
                counts["broken"] += 1
                typer.echo(f"cannot read: {item.error}", err=True)
                continue
            counts["read"] += 1
            yield item
