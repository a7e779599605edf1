"""``agentguard dataset``: list, describe, verify and build data sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
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
from agentguard.evals.datasets.verification import VerificationProgress, VerificationReport, verify_dataset
from agentguard.evals.datasets.writer import DatasetWriter
from agentguard.evals.toml_writer import dumps

_MAX_PROBLEMS = 20

Folders = Annotated[
    list[Path] | None,
    typer.Option(
        "--datasets", metavar="DIR", help=f"Folder of further data sets; {DATASETS_VARIABLE} lists too."
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
    if target in catalogue.names():
        _build_known(catalogue.get(target), output, limit=limit, force=force, json=json)
    elif not Path(target).exists():
        catalogue.get(target)  # raises an error that lists the known names
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
) -> None:
    records = generate_dataset(manifest)
    plan = {"by": "dataset build", "name": manifest.name, "limit": limit}
    with (
        _show_progress() as progress,
        DatasetWriter(out, plan, force=force) if out else nullcontext() as output,
    ):

        def keep(_: object) -> None:
            counted[0] += 1
            progress("made", counted[0])
            if output is not None:
                output.write(_)  # type: ignore[arg-type]

        counted = [0]
        result = rebuild(manifest, records, limit=limit, on_record=keep)
        if output is not None:
            output.finish()
    if json:
        print_json({"name": manifest.name, "ok": result.ok, **asdict(result)}, is_indented=True)
    else:
        _show_rebuilt(result, manifest)
    raise typer.Exit(0 if result.ok else 1)


def _write_manifest(path: Path, out: Path | None, data: dict[str, Any], *, force: bool) -> None:
    target = out or (path if path.is_dir() else path.parent) / MANIFEST
    if target.exists() and not force:
        raise ConfigError(f"{target} exists (--force replaces it)")
    try:
        target.write_text(dumps(data, comment="Written by `agentguard dataset build`."), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from None
    typer.echo(f"written: {target}", err=True)


def _show_verified(found: VerificationReport, manifest: DatasetManifest | None) -> None:
    console = build_console()
    has_known_checksums = manifest is not None and manifest.has_checksums
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("file", overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("sha256", overflow="fold")
    rows = found.files if has_known_checksums else found.files[:_MAX_PROBLEMS]
    for file in rows:
        status = "" if file.status == "unknown" else file.status.value
        table.add_row(escape(to_one_line(file.path, 120)), str(file.size), status, file.sha256)
    console.print(table)
    if len(found.files) > len(rows):
        typer.echo(f"… and {len(found.files) - len(rows)} more files; --json lists all")
    typer.echo(f"{found.records} records read, {found.failed} failed, {found.passed} passed")
    for label, count in found.labels.items():
        typer.echo(f"{label}: {count}")
    if manifest is not None and not has_known_checksums:
        typer.echo("The manifest has no checksums; `dataset build PATH` writes those of your copy.")
    for line in (*map(str, found.broken[:_MAX_PROBLEMS]), *found.problems):
        console.print(to_one_line(line, 500), style="red", markup=False, highlight=False)
    if len(found.broken) > _MAX_PROBLEMS:
        typer.echo(f"… and {len(found.broken) - _MAX_PROBLEMS} more broken records")
    if found.is_valid:
        console.print("no problems", style="green")


def _show_rebuilt(made: RebuildResult, manifest: DatasetManifest) -> None:
    typer.echo(f"{made.records} runs generated, {made.compared} compared; sha256 {made.sha256}")
    for name in made.differing:
        typer.echo(f"differs: {to_one_line(name, 200)}")
    if made.same_sum is not None:
        typer.echo(f"the checksum {'equals' if made.same_sum else 'differs from'} that of the manifest")
    if not made.compared and made.same_sum is None:
        typer.echo(f"this installation has no runs of {manifest.name} to compare with")
    elif made.ok:
        typer.echo("equal")


def _to_dict(one: DatasetManifest) -> dict[str, Any]:
    facts = asdict(replace(one, folder=Path()))
    del facts["folder"]
    return {**facts, "obtain": describe_source(one)}


def _format_details(one: DatasetManifest) -> Iterator[tuple[str, str]]:
    yield "name", one.name
    yield "title", one.title
    yield "licence", one.licence
    yield "origin", one.origin
    yield "format", one.format
    yield "available", "included" if one.redistributed else "from its owners"
    yield "obtain", describe_source(one)
    if one.paper:
        yield "paper", one.paper
    for address in one.source:
        yield "source", address
    if one.records is not None:
        yield "runs", str(one.records)
    for part in one.parts:
        yield "part", f"{part.name}: {part.files}" + (f", {part.records} runs" if part.records else "")
    if one.labels:
        yield "labels", ", ".join(one.labels)
    if one.split_by:
        yield "split by", one.split_by
    for file in one.files:
        yield "file", f"{file.path} {file.size or ''} {file.sha256}".rstrip()


def _verification_to_dict(found: VerificationReport) -> dict[str, Any]:
    return {
        "name": found.name,
        "ok": found.is_valid,
        "files": [asdict(file) for file in found.files],
        "records": found.records,
        "failed": found.failed,
        "passed": found.passed,
        "labels": found.labels,
        "codes": dict(sorted(found.codes.items())),
        "broken": [
            {"reason": e.reason, "file": e.file, "record": e.record, "field": e.field} for e in found.broken
        ],
        "problems": found.problems,
    }


@contextmanager
def _show_progress() -> Iterator[VerificationProgress]:
    """Show the current activity on standard error."""
    with Console(stderr=True).status("…") as status:
        yield lambda what, count: status.update(f"{what} … {count}")


def _load_catalogue(folders: list[Path] | None) -> DatasetCatalogue:
    return DatasetCatalogue.load(*(folders or ()))
