"""``agentguard dataset``: list, describe, verify and build data sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentguard.cli.json_output import print_json
from agentguard.cli.terminal_text import build_console, sanitize, to_one_line
from agentguard.errors import ConfigError
from agentguard.evals.datasets.manifest import (
    DATASETS_VARIABLE,
    MANIFEST,
    ORIGINS,
    DatasetCatalogue,
    DatasetManifest,
    describe_source,
)
from agentguard.evals.datasets.rebuild import RebuildResult, describe_dataset, generate_dataset, rebuild
from agentguard.evals.datasets.toml_writer import dumps
from agentguard.evals.datasets.verification import VerificationProgress, VerificationReport, verify_dataset
from agentguard.evals.datasets.writer import DatasetWriter
from agentguard.quantity import format_quantity
from agentguard.trajectory.model import Record

_MAX_PROBLEMS = 20

Folders = Annotated[
    list[Path] | None,
    typer.Option(
        "--datasets", metavar="DIR", help=f"Folder of further data sets, besides {DATASETS_VARIABLE}."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="List, describe, check and build data sets.")
    group.command("list")(list_)
    group.command()(show)
    group.command("verify")(verify_)
    group.command()(build)
    app.add_typer(group, name="dataset")


def list_(datasets: Folders = None, json: Json = False) -> None:
    """List the known data sets."""
    manifests = list(_load_catalogue(datasets))
    if json:
        print_json([_to_dict(manifest) for manifest in manifests], is_indented=True)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "runs", "origin", "licence", "available", "title"):
        table.add_column(column, justify="right" if column == "runs" else "left", no_wrap=column == "name")
    for manifest in manifests:
        location = "included" if manifest.redistributed else "from its owners"
        runs = "–" if manifest.records is None else str(manifest.records)
        table.add_row(
            manifest.name, runs, manifest.origin, escape(manifest.licence), location, escape(manifest.title)
        )
    build_console().print(table)


def show(
    name: Annotated[str, typer.Argument(help="Name of a data set.")],
    datasets: Folders = None,
    json: Json = False,
) -> None:
    """Show the manifest and the card of a data set, and how to obtain it."""
    manifest = _load_catalogue(datasets).get(name)
    if json:
        print_json({**_to_dict(manifest), "card": manifest.read_card()}, is_indented=True)
        return
    for label, value in _format_details(manifest):
        typer.echo(f"{label:12} {sanitize(value)}")
    if card := manifest.read_card():
        typer.echo(f"\n{sanitize(card).rstrip()}")


def verify_(
    name: Annotated[str, typer.Argument(help="Name of a data set.")],
    path: Annotated[
        Path | None, typer.Argument(help="Your copy; not needed for a data set of this repository.")
    ] = None,
    datasets: Folders = None,
    json: Json = False,
) -> None:
    """Verify a copy: checksums of its files, readability and number of its records, and their labels.

    Exit status: 0 if the copy matches the manifest, 1 if it does not, 2 if there is no copy.
    """
    manifest = _load_catalogue(datasets).get(name)
    with _show_progress() as progress:
        verification = verify_dataset(manifest, path, progress=progress)
    if json:
        print_json(_verification_to_dict(verification), is_indented=True)
    else:
        _show_verified(verification, manifest)
    raise typer.Exit(0 if verification.is_valid else 1)


def build(
    target: Annotated[str, typer.Argument(metavar="NAME|PATH", help="Generated data set, or your own runs.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Output: *.jsonl, *.jsonl.gz, a folder, or the manifest."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Generate only the first runs.")] = None,
    name: Annotated[str | None, typer.Option(help="Your own runs: name of the data set.")] = None,
    format: Annotated[str | None, typer.Option(help="Your own runs: their format.")] = None,
    title: Annotated[str, typer.Option(help="Your own runs: title in one line.")] = "",
    licence: Annotated[str, typer.Option(help="Your own runs: their licence.")] = "",
    origin: Annotated[str, typer.Option(help="Your own runs: natural or injected.")] = "natural",
    datasets: Folders = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    json: Json = False,
) -> None:
    """Generate a data set again and compare it, or write a manifest for your own runs.

    Exit status: 0 if the output is complete and equal to the published one, 1 if it differs or has
    unreadable records, 2 if there is no output.
    """
    catalogue = _load_catalogue(datasets)
    if target in catalogue.names() or not Path(target).exists():
        # For an unknown name, the catalogue raises an error that lists the known names.
        is_equal = _build_known(catalogue.get(target), output, limit=limit, force=force, json=json)
        raise typer.Exit(0 if is_equal else 1)
    if name is None or format is None:
        raise ConfigError("your own runs need --name and --format")
    if origin not in ORIGINS:
        raise ConfigError(f"--origin {origin}: write {' or '.join(ORIGINS)}")
    data, verification = describe_dataset(
        Path(target), name=name, format=format, title=title, licence=licence, origin=origin
    )
    _write_manifest(Path(target), output, data, force=force)
    if json:
        print_json(_verification_to_dict(verification), is_indented=True)
    else:
        _show_verified(verification, None)
    raise typer.Exit(1 if verification.broken else 0)


def _build_known(
    manifest: DatasetManifest, out: Path | None, *, limit: int | None, force: bool, json: bool
) -> bool:
    """Generate a data set again; return whether it is equal to the published one."""
    records = generate_dataset(manifest)
    plan = {"by": "dataset build", "name": manifest.name, "limit": limit}
    with (
        _show_progress() as progress,
        DatasetWriter(out, plan, force=force) if out else nullcontext() as output,
    ):
        numbers = count(1)

        def write_record(record: Record) -> None:
            progress("generated", next(numbers))
            if output is not None:
                output.write(record)

        result = rebuild(manifest, records, limit=limit, on_record=write_record)
        if output is not None:
            output.finish()
    if json:
        print_json({"name": manifest.name, "ok": result.ok, **asdict(result)}, is_indented=True)
    else:
        _show_rebuilt(result, manifest)
    return result.ok


def _write_manifest(path: Path, out: Path | None, data: dict[str, Any], *, force: bool) -> None:
    target = out or (path if path.is_dir() else path.parent) / MANIFEST
    if target.exists() and not force:
        raise ConfigError(f"{target} exists (--force replaces it)")
    try:
        target.write_text(dumps(data, comment="Written by `agentguard dataset build`."), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from None
    typer.echo(f"written: {target}", err=True)


def _show_verified(report: VerificationReport, manifest: DatasetManifest | None) -> None:
    console = build_console()
    has_known_checksums = manifest is not None and manifest.has_checksums
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("file", overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("sha256", overflow="fold")
    rows = report.files if has_known_checksums else report.files[:_MAX_PROBLEMS]
    for file in rows:
        status = "" if file.status == "unknown" else file.status.value
        table.add_row(escape(to_one_line(file.path, 120)), str(file.size), status, file.sha256)
    console.print(table)
    if len(report.files) > len(rows):
        hidden = format_quantity(len(report.files) - len(rows), "more file")
        typer.echo(f"… and {hidden}; --json lists all")
    records = format_quantity(report.records, "record")
    typer.echo(f"{records} read, {report.failed} failed, {report.passed} passed")
    for label, number in report.labels.items():
        typer.echo(f"{label}: {number}")
    if manifest is not None and not has_known_checksums:
        typer.echo("The manifest has no checksums; `dataset build PATH` writes those of your copy.")
    for line in (*map(str, report.broken[:_MAX_PROBLEMS]), *report.problems):
        console.print(to_one_line(line, 500), style="red", markup=False, highlight=False)
    if len(report.broken) > _MAX_PROBLEMS:
        hidden = format_quantity(len(report.broken) - _MAX_PROBLEMS, "more broken record")
        typer.echo(f"… and {hidden}")
    if report.is_valid:
        console.print("no problems", style="green")


def _show_rebuilt(result: RebuildResult, manifest: DatasetManifest) -> None:
    records = format_quantity(result.records, "run")
    typer.echo(f"{records} generated, {result.compared} compared; sha256 {result.sha256}")
    for name in result.differing:
        typer.echo(f"differs: {to_one_line(name, 200)}")
    if result.same_sum is not None:
        typer.echo(f"the checksum {'equals' if result.same_sum else 'differs from'} that of the manifest")
    if not result.compared and result.same_sum is None:
        typer.echo(f"this installation has no runs of {manifest.name} to compare with")
    elif result.ok:
        typer.echo("equal")


def _to_dict(manifest: DatasetManifest) -> dict[str, Any]:
    facts = asdict(replace(manifest, folder=Path()))
    del facts["folder"]
    return {**facts, "obtain": describe_source(manifest)}


def _format_details(manifest: DatasetManifest) -> Iterator[tuple[str, str]]:
    yield "name", manifest.name
    yield "title", manifest.title
    yield "licence", manifest.licence
    yield "origin", manifest.origin
    yield "format", manifest.format
    yield "available", "included" if manifest.redistributed else "from its owners"
    yield "obtain", describe_source(manifest)
    if manifest.paper:
        yield "paper", manifest.paper
    for address in manifest.source:
        yield "source", address
    if manifest.records is not None:
        yield "runs", str(manifest.records)
    for part in manifest.parts:
        yield (
            "part",
            f"{part.name}: {part.files}"
            + (f", {format_quantity(part.records, 'run')}" if part.records else ""),
        )
    if manifest.labels:
        yield "labels", ", ".join(manifest.labels)
    if manifest.split_by:
        yield "split by", manifest.split_by
    for file in manifest.files:
        yield "file", f"{file.path} {file.size or ''} {file.sha256}".rstrip()


def _verification_to_dict(report: VerificationReport) -> dict[str, Any]:
    return {
        "name": report.name,
        "ok": report.is_valid,
        "files": [asdict(file) for file in report.files],
        "records": report.records,
        "failed": report.failed,
        "passed": report.passed,
        "labels": report.labels,
        "codes": dict(sorted(report.codes.items())),
        "broken": [
            {"reason": e.reason, "file": e.file, "record": e.record, "field": e.field} for e in report.broken
        ],
        "problems": report.problems,
    }


@contextmanager
def _show_progress() -> Iterator[VerificationProgress]:
    """Show the current activity on standard error."""
    with Console(stderr=True).status("…") as status:
        yield lambda activity, number: status.update(f"{activity} … {number}")


def _load_catalogue(folders: list[Path] | None) -> DatasetCatalogue:
    return DatasetCatalogue.load(*(folders or ()))
