"""``agentguard judge``: train the embedded judge, read its card, check its file; serve a chat judge."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentguard.cli.judge_calibrate import calibrate
from agentguard.cli.judge_endpoint import Beside, asking_of, check_url
from agentguard.cli.judge_serve import serve
from agentguard.errors import ConfigError, ModelFileError

Folder = Annotated[
    Path | None,
    typer.Option("--model", metavar="DIR", help="Folder of a model; the one that ships, if absent."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        no_args_is_help=True, help="Train, describe and check the embedded judge; serve another."
    )
    group.command()(train)
    group.command()(card)
    group.command()(check)
    group.command()(calibrate)
    group.command(context_settings={"allow_extra_args": True})(serve)
    app.add_typer(group, name="judge")


def train(
    data: Annotated[
        list[Path], typer.Option("--data", metavar="PATH", help="Annotated runs; may be given again.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the model and its card.")],
    format: Annotated[str | None, typer.Option(help="Format of the runs; recognised, if absent.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of the cross-validation for the card.")] = 2,
    scored: Annotated[bool, typer.Option("--scores/--no-scores", help="Measure scores for the card.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of training.")] = 0,
    json: Json = False,
) -> None:
    """Train a model on annotated runs and write it with its card. The same data and seed give the same file.

    Training takes half a minute for some hundred runs; the scores of the card take some minutes more.
    """
    from agentguard.cli.judge_card import LIMITS, scores, source
    from agentguard.judge.store import save
    from agentguard.judge.train import train as fit

    sources = [source(path, format=format) for path in data]
    _tell(f"training on {sum(len(one.records) for one in sources)} runs")
    model = fit([record for one in sources for record in one.records], seed=seed)
    held: dict[str, Any] = {
        "seed": seed,
        "data": [one.as_dict() for one in sources],
        "kinds": [
            {
                "structure": one.kind.key,
                "runs": one.runs,
                "ranks_steps": one.ranker is not None,
                "tells_outcomes": one.outcome is not None,
            }
            for one in model.specialists
        ],
        "scores": scores(sources, repeats=repeats, told=_tell) if scored else [],
        "limits": list(LIMITS),
    }
    full = save(model, out, held)
    _tell(f"wrote {full['bytes']:,} bytes to {out}")
    _show(full, json=json)


def card(model: Folder = None, json: Json = False) -> None:
    """Show the card of a model: data, checksum, scores, limits."""
    from agentguard.judge.store import load_card

    _show(load_card(model), json=json)


def check(
    url: Annotated[
        str | None, typer.Argument(help="Check this endpoint instead, up to and with /v1.")
    ] = None,
    model: Folder = None,
    name: Annotated[
        str | None, typer.Option(help="Model of the endpoint; the first it lists, if absent.")
    ] = None,
    key_env: Annotated[
        str | None, typer.Option("--api-key-env", metavar="NAME", help="Environment variable with its key.")
    ] = None,
    deadline_s: Annotated[float, typer.Option(min=1, help="Seconds for one question about a run.")] = 60.0,
    against: Annotated[
        str | None,
        typer.Option(metavar="URL|FILE", help="Compare with this endpoint, or with what --save wrote."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep what the endpoint said, to compare with later.")
    ] = None,
    json: Json = False,
) -> None:
    """Check the embedded judge's file; or an endpoint: what it can do, how fast, and how well it judges.

    A model file is sound if it matches its card, holds nothing but what is trusted, and answers. An endpoint
    is asked about two dozen small runs whose outcome is known, and about the safety of some replies. With
    --against it is refused where it is worse than another, e.g. than itself before it was fine-tuned.

    Exit status: 0 it is sound (an endpoint: it can be used), 1 an endpoint answers but cannot be used, does
    not judge above chance, or is worse than the other, 2 it is not sound, or cannot be asked.
    """
    if url is not None:
        asking = asking_of(url, model=name, key_env=key_env, deadline_s=deadline_s)
        check_url(asking, beside=Beside(against=against, save=save), json=json)
    if against is not None or save is not None:
        raise ConfigError("--against and --save go with the address of an endpoint")
    from agentguard.judge.check import checked

    found = checked(model)
    if json:
        _print(found)
        return
    for name, value in found.items():
        typer.echo(f"{name}: {value}")


def _tell(text: str) -> None:
    typer.echo(text, err=True)


def _print(value: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _show(held: dict[str, Any], *, json: bool) -> None:
    if json:
        _print(held)
        return
    try:
        _write(Console(), held)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"the card lacks a part: {type(error).__name__} {error}") from None


def _write(console: Console, held: dict[str, Any]) -> None:
    console.print(f"[bold]embedded judge[/] of agentguard {held['agentguard']}, {held['bytes']:,} bytes")
    console.print(f"sha256 {held['sha256']}", highlight=False, soft_wrap=True)
    console.print(f"features: {len(held['features']['steps'])} a step, {len(held['features']['runs'])} a run")
    table = Table(
        "learnt from", "runs", "failed", "passed", "root causes", "licence", box=None, header_style="bold"
    )
    for one in held["data"]:
        counts = (str(one[key]) for key in ("runs", "failed", "passed", "root_causes"))
        table.add_row(escape(one["name"]), *counts, escape(one["licence"] or "unknown"))
    console.print(table)
    if held["scores"]:
        console.print(_scores(held["scores"]))
    for limit in held["limits"]:
        console.print(f"- {escape(limit)}")


def _scores(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        "scored on", "after", "n", "step", "95 %", "agent", "top 3", "AUROC", box=None, header_style="bold"
    )
    for row in rows:
        after = (
            "cross-validation" if row["setting"] == "cross_validated" else f"training on {row['trained_on']}"
        )
        low, high = row["wilson95"]["step"] if "wilson95" in row else (None, None)
        interval = f"{low:.0%} to {high:.0%}" if low is not None else "-"
        cells = (
            _share(row.get("agent_accuracy")),
            _share(row.get("top", {}).get("3")),
            _share(row.get("auroc")),
        )
        table.add_row(
            escape(row["data"]),
            escape(after),
            str(row["n"]),
            _share(row.get("step_accuracy")),
            interval,
            *cells,
        )
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
