"""``agentguard inject``: failed runs with one known error each, made from recorded runs that passed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentguard.cli.json_output import print_json
from agentguard.cli.terminal_text import build_console
from agentguard.errors import ConfigError, InputError
from agentguard.evals.datasets.writer import DatasetWriter
from agentguard.evals.inject.edits.base import get_edit_registry
from agentguard.evals.inject.error_injection import INJECTED, RewritePlan, copy_passed_record, rewrite_record
from agentguard.evals.inject.rates import NATURAL_RATES, parse_rates
from agentguard.quantity import format_quantity
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Record

_MAX_PROBLEMS = 5
_COUNT_FIELDS = ("code", "module", "edit", "tail")

Out = Annotated[
    Path, typer.Option("--output", "-o", help="Event log to write: *.jsonl, *.jsonl.gz, or a folder of logs.")
]
Seed = Annotated[int, typer.Option(help="Seed; the same seed gives the same runs.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue after an interruption.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(slots=True)
class InjectionSummary:
    """Numbers of written and rejected runs."""

    written: int = 0
    previously_written: int = 0
    failed: int = 0
    passed: int = 0
    counts_by_kind: dict[str, Counter[str]] = field(
        default_factory=lambda: {k: Counter() for k in _COUNT_FIELDS}
    )
    read: int = 0
    rejected: list[str] = field(default_factory=list)
    without_place: int = 0
    unreadable: list[str] = field(default_factory=list)

    def add(self, record: Record, *, new: bool) -> None:
        """Count a record, which is new or was written by an earlier run of the command."""
        self.written += new
        self.previously_written += not new
        cause = record.annotation.root_cause
        self.failed += record.annotation.failed is True
        self.passed += record.annotation.failed is False
        if cause is not None:
            self.counts_by_kind["code"].update(cause.codes[:1])
            self.counts_by_kind["module"].update([cause.module] if cause.module else [])
        injection = record.annotation.extra.get(INJECTED)
        if isinstance(injection, dict):
            self.counts_by_kind["edit"].update([injection["edit"]] if "edit" in injection else [])
            self.counts_by_kind["tail"].update([injection["tail"]] if "tail" in injection else [])


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Make failed runs with one known error each.")
    group.command()(runs)
    group.command()(kinds)
    app.add_typer(group, name="inject")


def runs(
    paths: Annotated[list[Path], typer.Argument(help="Passed runs: files or folders.")],
    out: Out,
    kind: Annotated[
        list[str] | None, typer.Option("--kinds", help="Only this kind of error; repeatable.")
    ] = None,
    per_run: Annotated[int, typer.Option(min=1, help="Number of errors for each run.")] = 1,
    seed: Seed = 0,
    rates: Annotated[
        str, typer.Option(metavar="natural|uniform|FILE", help="Frequencies of the kinds.")
    ] = "natural",
    assume_passed: Annotated[
        bool, typer.Option("--assume-passed", help="Treat runs without a label as passed.")
    ] = False,
    with_passed: Annotated[
        bool, typer.Option("--with-passed", help="Also write the original runs as passed runs.")
    ] = False,
    format: Annotated[str | None, typer.Option(help="Format of the runs; recognised by default.")] = None,
    resume: Resume = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Rewrite passed runs into failed ones, with one error each at a known step.

    Exit status: 0 if all runs are used, 1 if some are refused or not readable, 2 if no run is written,
    130 after an interruption (--resume continues).
    """
    names = tuple(part for names_text in kind or () for part in names_text.replace(",", " ").split())
    weights = parse_rates(rates, kinds=names)
    plan = RewritePlan(rates=weights, per_run=per_run, seed=seed, assume_passed=assume_passed)
    plan_data = {
        "by": "runs",
        "paths": list(map(str, paths)),
        "rates": weights,
        "per_run": per_run,
        "seed": seed,
    }
    plan_data |= {"assume_passed": assume_passed, "with_passed": with_passed, "format": format}
    tally = InjectionSummary()
    with DatasetWriter(out, plan_data, resume=resume, force=force) as output:
        write_records(_inject_runs(paths, format, plan, tally, with_passed=with_passed), output, tally)
    print_report(tally, out, json=json)


def kinds(json: Json = False) -> None:
    """List the kinds of error of ``inject runs``."""
    edits = [get_edit_registry().get(name) for name in get_edit_registry()]
    if json:
        print_json(
            [
                {
                    "name": e.name,
                    "summary": e.summary,
                    "codes": e.codes,
                    "module": e.module,
                    "rate": NATURAL_RATES.get(e.name),
                }
                for e in edits
            ]
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("kind", no_wrap=True)
    table.add_column("rate", justify="right")
    table.add_column("description")
    table.add_column("code", no_wrap=True)
    for e in edits:
        rate = NATURAL_RATES.get(e.name)
        table.add_row(e.name, "–" if rate is None else f"{rate:g}", escape(e.summary), e.codes[0])
    build_console().print(table)


def _inject_runs(
    paths: list[Path], format: str | None, plan: RewritePlan, tally: InjectionSummary, *, with_passed: bool
) -> Iterator[Record]:
    for record in _read_records(paths, format, tally):
        tally.read += 1
        try:
            rewritten = list(rewrite_record(record, plan))
        except InputError as error:
            tally.rejected.append(f"{record.trajectory.id}: {error}")
            continue
        tally.without_place += not rewritten
        if with_passed:
            yield copy_passed_record(record)
        yield from rewritten


def _read_records(paths: list[Path], format: str | None, tally: InjectionSummary) -> Iterator[Record]:
    for path in paths:
        try:
            for record in read(path, format=format):
                if isinstance(record, UnreadableRecord):
                    tally.unreadable.append(str(record.error))
                else:
                    yield record
        except InputError as error:
            tally.unreadable.append(str(error.with_location(file=str(path))))


def write_records(
    records: Iterable[Record], output: DatasetWriter, tally: InjectionSummary, *, total: int | None = None
) -> None:
    """Write runs one by one, with a progress bar; an interruption leaves only complete runs.

    Raises:
        ConfigError: there is no run to write.
        typer.Exit: the user pressed Ctrl-C; the exit status is 130.
    """
    console = Console(stderr=True)
    columns = (TextColumn("writing runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
            task = bars.add_task("runs", total=total)
            for record in records:
                is_new = output.write(record)
                if is_new or output.is_from_previous_run(record):  # otherwise it is a copy of another run
                    tally.add(record, new=is_new)
                bars.advance(task)
    except KeyboardInterrupt:
        typer.echo(f"interrupted after {format_quantity(tally.written, 'run')}; --resume continues", err=True)
        raise typer.Exit(130) from None
    if not tally.written + tally.previously_written:
        _check_output(tally)
        output.discard()
        raise ConfigError("no run is written: no error applies to a readable run")
    output.finish()


def print_report(tally: InjectionSummary, out: Path, *, json: bool) -> None:
    """Print the summary of a command that writes injected runs, and exit with its status."""
    _check_output(tally)
    if json:
        print_json(_to_summary(tally, out))
    else:
        _show(tally, out)
    raise typer.Exit(1 if tally.rejected or tally.unreadable else 0)


def _check_output(tally: InjectionSummary) -> None:
    for label, lines in (("not taken", tally.rejected), ("not read", tally.unreadable)):
        for line in lines[:_MAX_PROBLEMS]:
            typer.echo(f"{label}: {line}", err=True)
        if len(lines) > _MAX_PROBLEMS:
            typer.echo(f"{label}: {len(lines) - _MAX_PROBLEMS} more", err=True)


def _to_summary(tally: InjectionSummary, out: Path) -> dict[str, Any]:
    counts = {f"by_{name}": dict(sorted(counted.items())) for name, counted in tally.counts_by_kind.items()}
    return {
        "out": str(out),
        "origin": INJECTED,
        "written": tally.written,
        "kept": tally.previously_written,
        "failed": tally.failed,
        "passed": tally.passed,
        **counts,
        "read": tally.read,
        "refused": len(tally.rejected),
        "without_place": tally.without_place,
        "broken": len(tally.unreadable),
    }


def _show(tally: InjectionSummary, out: Path) -> None:
    console = build_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("code of the error")
    table.add_column("runs", justify="right")
    for code, count in tally.counts_by_kind["code"].most_common():
        table.add_row(code, str(count))
    console.print(table)
    earlier_note = f", {tally.previously_written} of them earlier" if tally.previously_written else ""
    typer.echo(
        f"{tally.failed} failed and {format_quantity(tally.passed, 'passed run')} in {out}{earlier_note}"
    )
    if tally.without_place:
        typer.echo(f"none of the drawn errors applies to {format_quantity(tally.without_place, 'run')}")
