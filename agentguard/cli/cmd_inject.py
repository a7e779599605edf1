"""``agentguard inject``: failed runs with one known error each, generated or made from recorded ones."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentguard.errors import ConfigError, InputError
from agentguard.evals.inject.edits.base import edits
from agentguard.evals.inject.output import Output
from agentguard.evals.inject.rates import NATURAL, rates_of
from agentguard.evals.inject.rewrite import INJECTED, RewritePlan, rewritten, unchanged
from agentguard.trajectory.formats.base import Broken
from agentguard.trajectory.formats.read import read
from agentguard.trajectory.model import Record

_SHOWN = 5
_COUNTED = ("code", "module", "edit", "tail")

Out = Annotated[
    Path, typer.Option("--out", "-o", help="Event log to write: *.jsonl, *.jsonl.gz, or a folder of logs.")
]
Seed = Annotated[int, typer.Option(help="The same seed makes the same runs.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what an interruption left.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(slots=True)
class _Tally:
    """What was made, and what could not be used."""

    written: int = 0
    kept: int = 0
    failed: int = 0
    passed: int = 0
    by: dict[str, Counter[str]] = field(default_factory=lambda: {k: Counter() for k in _COUNTED})
    read: int = 0
    refused: list[str] = field(default_factory=list)
    without_place: int = 0
    broken: list[str] = field(default_factory=list)

    def add(self, record: Record, *, new: bool) -> None:
        self.written += new
        self.kept += not new
        cause = record.annotation.root_cause
        self.failed += record.annotation.failed is True
        self.passed += record.annotation.failed is False
        if cause is not None:
            self.by["code"].update(cause.codes[:1])
            self.by["module"].update([cause.module] if cause.module else [])
        told = record.annotation.extra.get(INJECTED)
        if isinstance(told, dict):
            self.by["edit"].update([told["edit"]] if "edit" in told else [])
            self.by["tail"].update([told["tail"]] if "tail" in told else [])


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="Make failed runs with one known error each.")
    group.command()(textworld)
    group.command()(runs)
    group.command()(kinds)
    app.add_typer(group, name="inject")


def textworld(
    out: Out,
    failed: Annotated[int, typer.Option(min=0, help="Runs that fail.")] = 100,
    passed: Annotated[int, typer.Option(min=0, help="Runs that pass.")] = 50,
    seed: Seed = 0,
    difficulty: Annotated[
        str | None, typer.Option(help="How hard the games are; the generator's own choice if absent.")
    ] = None,
    resume: Resume = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Let scripted agents play TextWorld games, one error each at a known step (needs the extra textworld).

    Exit status: 0 all were made, 2 nothing could be made, 130 interrupted (--resume goes on).
    """
    from agentguard.evals.inject.generate import generate

    plan = {"failed": failed, "passed": passed, "seed": seed, "difficulty": difficulty, "by": "textworld"}
    made = generate(failed=failed, passed=passed, seed=seed, difficulty=difficulty)
    tally = _Tally()
    with Output(out, plan, resume=resume, force=force) as output:
        _write(made, output, tally, total=failed + passed)
    _report(tally, out, json=json)


def runs(
    paths: Annotated[list[Path], typer.Argument(help="Recorded runs that passed: files or folders.")],
    out: Out,
    kind: Annotated[
        list[str] | None, typer.Option("--kinds", help="Only this kind of error; may be given several times.")
    ] = None,
    per_run: Annotated[int, typer.Option(min=1, help="Errors drawn for each run.")] = 1,
    seed: Seed = 0,
    rates: Annotated[
        str, typer.Option(metavar="natural|uniform|FILE", help="How often each kind is drawn.")
    ] = "natural",
    assume_passed: Annotated[
        bool, typer.Option("--assume-passed", help="Take runs as passed of which nobody knows.")
    ] = False,
    with_passed: Annotated[
        bool, typer.Option("--with-passed", help="Write the runs themselves, too, as runs that passed.")
    ] = False,
    format: Annotated[str | None, typer.Option(help="Format of the runs; recognised if absent.")] = None,
    resume: Resume = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Rewrite recorded runs that passed into failed ones, with one error each at a known step.

    Exit status: 0 all were used, 1 some were refused or could not be read, 2 nothing could be made, 130
    interrupted (--resume goes on).
    """
    names = tuple(part for one in kind or () for part in one.replace(",", " ").split())
    weights = rates_of(rates, kinds=names)
    plan = RewritePlan(rates=weights, per_run=per_run, seed=seed, assume_passed=assume_passed)
    asked = {"by": "runs", "paths": list(map(str, paths)), "rates": weights, "per_run": per_run, "seed": seed}
    asked |= {"assume_passed": assume_passed, "with_passed": with_passed, "format": format}
    tally = _Tally()
    with Output(out, asked, resume=resume, force=force) as output:
        _write(_made(paths, format, plan, tally, with_passed=with_passed), output, tally)
    _report(tally, out, json=json)


def kinds(json: Json = False) -> None:
    """List the kinds of error that ``inject runs`` can put into a run."""
    found = [edits().get(name) for name in edits()]
    if json:
        _print(
            [
                {
                    "name": e.name,
                    "summary": e.summary,
                    "codes": e.codes,
                    "module": e.module,
                    "rate": NATURAL.get(e.name),
                }
                for e in found
            ]
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("kind", no_wrap=True)
    table.add_column("rate", justify="right")
    table.add_column("what it does")
    table.add_column("code", no_wrap=True)
    for e in found:
        rate = NATURAL.get(e.name)
        table.add_row(e.name, "–" if rate is None else f"{rate:g}", escape(e.summary), e.codes[0])
    Console().print(table)


def _made(
    paths: list[Path], format: str | None, plan: RewritePlan, tally: _Tally, *, with_passed: bool
) -> Iterator[Record]:
    for record in _records(paths, format, tally):
        tally.read += 1
        try:
            made = list(rewritten(record, plan))
        except InputError as error:
            tally.refused.append(f"{record.trajectory.id}: {error}")
            continue
        tally.without_place += not made
        if with_passed:
            yield unchanged(record)
        yield from made


def _records(paths: list[Path], format: str | None, tally: _Tally) -> Iterator[Record]:
    for path in paths:
        try:
            for found in read(path, format=format):
                if isinstance(found, Broken):
                    tally.broken.append(str(found.error))
                else:
                    yield found
        except InputError as error:
            tally.broken.append(str(error.located(file=str(path))))


def _write(made: Iterable[Record], output: Output, tally: _Tally, *, total: int | None = None) -> None:
    """Write runs as they come; an interruption leaves what is whole."""
    console = Console(stderr=True)
    columns = (TextColumn("writing runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
            task = bars.add_task("runs", total=total)
            for record in made:
                new = output.add(record)
                if new or output.is_from_before(record):  # else it is a copy of another run
                    tally.add(record, new=new)
                bars.advance(task)
    except KeyboardInterrupt:
        typer.echo(f"interrupted after {tally.written} runs; --resume goes on from here", err=True)
        raise typer.Exit(130) from None
    if not tally.written + tally.kept:
        _complain(tally)
        output.discard()
        raise ConfigError("no run was made")
    output.finish()


def _report(tally: _Tally, out: Path, *, json: bool) -> None:
    _complain(tally)
    if json:
        _print(_summary(tally, out))
    else:
        _show(tally, out)
    raise typer.Exit(1 if tally.refused or tally.broken else 0)


def _complain(tally: _Tally) -> None:
    for what, lines in (("not taken", tally.refused), ("not read", tally.broken)):
        for line in lines[:_SHOWN]:
            typer.echo(f"{what}: {line}", err=True)
        if len(lines) > _SHOWN:
            typer.echo(f"{what}: {len(lines) - _SHOWN} more", err=True)


def _summary(tally: _Tally, out: Path) -> dict[str, Any]:
    counts = {f"by_{name}": dict(sorted(counted.items())) for name, counted in tally.by.items()}
    return {
        "out": str(out),
        "origin": INJECTED,
        "written": tally.written,
        "kept": tally.kept,
        "failed": tally.failed,
        "passed": tally.passed,
        **counts,
        "read": tally.read,
        "refused": len(tally.refused),
        "without_place": tally.without_place,
        "broken": len(tally.broken),
    }


def _show(tally: _Tally, out: Path) -> None:
    console = Console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("code of the error")
    table.add_column("runs", justify="right")
    for code, count in tally.by["code"].most_common():
        table.add_row(code, str(count))
    console.print(table)
    kept = f", {tally.kept} of them from before" if tally.kept else ""
    typer.echo(f"{tally.failed} failed and {tally.passed} passed runs in {out}{kept}")
    if tally.without_place:
        typer.echo(f"{tally.without_place} runs have no place for the errors that were drawn")


def _print(value: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()
