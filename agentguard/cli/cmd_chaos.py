"""``agentguard chaos``: campaigns of faults on an agent, and a local model endpoint with faults."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
from collections import Counter
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentguard.cli.chaos_shrink import shrink
from agentguard.cli.json_output import print_json
from agentguard.cli.terminal_text import build_console
from agentguard.quantity import format_quantity

if TYPE_CHECKING:
    from agentguard.chaos import CampaignReport
    from agentguard.chaos.causality import StitchingResult
    from agentguard.testing.fake_backend import FakeBackend, RecordedRequest

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
_POLL_INTERVAL_S = 0.2


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Inject faults into the calls of an agent, or serve a model endpoint with faults.",
    )
    group.command()(plan)
    group.command()(run)
    group.command()(report)
    group.command()(shrink)
    group.command()(stitch)
    group.command()(serve)
    group.command()(faults)
    app.add_typer(group, name="chaos")


CampaignFile = Annotated[Path, typer.Argument(help="Campaign file in YAML.")]


def plan(campaign: CampaignFile, json: Json = False) -> None:
    """Check the steady state without faults, and list the planned runs."""
    from agentguard.chaos import Campaign, CampaignRunner

    runs = CampaignRunner(Campaign.load(campaign)).plan()
    counts = Counter((placement.site, placement.fault) for placement, _ in runs)
    rows = [{"site": site, "fault": fault, "runs": count} for (site, fault), count in sorted(counts.items())]
    for row in rows:
        _print_values(row, json=json)
    if not json:
        typer.echo(format_quantity(len(runs), "run"))


def run(
    campaign: CampaignFile,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder of the journal, which a second call resumes; by default, .agentguard/chaos/NAME.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    json: Json = False,
) -> None:
    """Run a campaign, and write the journal, report.json and report.html.

    Exit status: 1 if a run is unsafe or an abort rule ends the campaign.
    """
    from agentguard.chaos import CAMPAIGNS_FOLDER, Campaign, CampaignRunner, build_campaign_report

    folder = output or CAMPAIGNS_FOLDER / campaign.stem
    runner = CampaignRunner(Campaign.load(campaign))
    with Console(stderr=True).status("running …") as status:
        count = itertools.count(1)
        result = runner.run(
            folder,
            jobs=jobs,
            on_result=lambda _: status.update(f"running … {format_quantity(next(count), 'run')}"),
        )
    _finish_campaign(build_campaign_report(result), folder, campaign.stem, json=json)


def report(
    output: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Output folder of `agentguard chaos run`.")
    ],
    json: Json = False,
) -> None:
    """Write the report of the finished runs of a campaign. Exit status: as that of `chaos run`."""
    from agentguard.chaos import build_campaign_report, read_campaign_result

    _finish_campaign(build_campaign_report(read_campaign_result(output)), output, output.name, json=json)


def _finish_campaign(report: CampaignReport, output: Path, name: str, *, json: bool) -> None:
    from agentguard.chaos import render_campaign_report

    data = orjson.dumps(report.to_dict(), option=orjson.OPT_INDENT_2)
    (output / "report.json").write_bytes(data)
    page = render_campaign_report(report, f"Chaos campaign {name}")
    (output / "report.html").write_text(page, encoding="utf-8")
    if json:
        print_json(report.to_dict())
    else:
        table = Table(
            "site", "fault", "worst", "runs", "detected", "extra effects", box=None, header_style="bold"
        )
        for cell in report.cells:
            counts = (cell.outcomes.total(), cell.detected, cell.extra_effects)
            table.add_row(*map(escape, (cell.site, cell.fault, cell.worst.value, *map(str, counts))))
        build_console().print(table)
        outcomes = ", ".join(f"{count} {outcome.value}" for outcome, count in report.outcomes.items())
        typer.echo(f"{report.outcomes.total()} of {format_quantity(report.planned, 'run')}: {outcomes}")
        if report.abort_reason:
            typer.echo(report.abort_reason)
        typer.echo(f"report: {output / 'report.html'}")
    if not report.is_safe:
        raise typer.Exit(1)


def serve(
    script: Annotated[
        Path | None, typer.Argument(help="Script in YAML; without it there are no faults.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0 selects a free port.")
    ] = 0,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the schedule; by default that of the script.")
    ] = None,
    json: Json = False,
) -> None:
    """Serve until Ctrl-C, and print one line for each request, without its contents."""
    from agentguard.config.policy import load_yaml
    from agentguard.testing.fake_backend.script_file import build_backend

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        with build_backend(None if script is None else load_yaml(script), port=port, seed=seed) as backend:
            _print_values({"url": backend.url}, json=json)
            _print_requests(backend, ended, json=json)
    except OSError as error:
        typer.echo(f"error: port {port} cannot be used: {error.strerror}", err=True)
        raise typer.Exit(2) from None


def faults(json: Json = False) -> None:
    """List the faults and their options."""
    from agentguard.testing.fake_backend.script_file import FAULT_TYPES

    descriptions: list[dict[str, Any]] = [
        {"fault": name, "does": (kind.__doc__ or "").split("\n")[0], "options": _list_options(kind)}
        for name, kind in sorted(FAULT_TYPES.items())
    ]
    if json:
        for description in descriptions:
            _print_values(description, json=True)
        return
    table = Table("fault", "does", "options", box=None, header_style="bold")
    for description in descriptions:
        options = ", ".join(f"{name}={value!r}" for name, value in description["options"].items())
        table.add_row(*map(escape, (description["fault"], description["does"], options)))
    Console().print(table)


def _list_options(fault_type: type[Any]) -> dict[str, Any]:
    defaults = {field.name: field.default for field in fields(fault_type) if field.default is not MISSING}
    return {
        name: str(value) if isinstance(value, bytes | float) else value for name, value in defaults.items()
    }


def _print_requests(backend: FakeBackend, ended: threading.Event, *, json: bool) -> None:
    """Print each completed request, in the order of arrival."""
    printed_count = 0
    while not ended.wait(_POLL_INTERVAL_S):
        while printed_count < len(backend.requests) and backend.requests[printed_count].is_finished:
            _print_values(_format_request(backend.requests[printed_count]), json=json)
            backend.requests[printed_count].body = b""  # free the body: a long run would fill the memory
            printed_count += 1


def _format_request(request: RecordedRequest) -> dict[str, Any]:
    end = request.disconnected_at if request.answered_at is None else request.answered_at
    return {
        "number": request.number,
        "api": request.api,
        "stream": request.stream,
        "key": request.key,
        "attempt": request.attempt,
        "fault": type(request.fault).__name__,
        "tokens": request.tokens,
        "client_left": request.is_cancelled,
        "seconds": round((end or request.received_at) - request.received_at, 3),
    }


def _print_values(value: dict[str, Any], *, json: bool) -> None:
    text = orjson.dumps(value).decode() if json else "  ".join(f"{key}={item}" for key, item in value.items())
    typer.echo(text)
    sys.stdout.flush()


def stitch(
    campaign: Annotated[Path, typer.Argument(help="File with the workloads, in YAML.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder of the report and of the reproducers; by default, .agentguard/chaos/NAME.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Inject single faults into workloads, and find cycles of faults that cause each other.

    A run with all faults of a cycle confirms the cycle. The command writes stitching.json, stitching.html and
    one bundle for each undamped cycle.

    Exit status: 1 if there is an undamped cycle.
    """
    from agentguard.chaos import CAMPAIGNS_FOLDER
    from agentguard.chaos.causality import StitchingCampaign, search_cycles

    folder = output or CAMPAIGNS_FOLDER / campaign.stem
    with Console(stderr=True).status("running …") as status:
        count = itertools.count(1)
        result = search_cycles(
            StitchingCampaign.load(campaign),
            on_run=lambda _: status.update(f"running … {format_quantity(next(count), 'run')}"),
        )
    _write_files(result, folder, campaign.stem)
    if json:
        typer.echo((folder / "stitching.json").read_text(encoding="utf-8"))
    else:
        _print_cycles(result, folder)
    if result.undamped:
        raise typer.Exit(1)


def _write_files(result: StitchingResult, output: Path, name: str) -> None:
    from agentguard.chaos.causality import (
        build_stitching_report,
        encode_stitching_report,
        render_stitching_report,
        write_reproducer_bundle,
    )

    output.mkdir(parents=True, exist_ok=True)
    report = build_stitching_report(result)
    (output / "stitching.json").write_bytes(encode_stitching_report(report))
    page = render_stitching_report(report, f"Causal cycles of {name}")
    (output / "stitching.html").write_text(page, encoding="utf-8")
    for number, one in enumerate(result.undamped, 1):
        assert one.reproducer is not None
        write_reproducer_bundle(one.reproducer, output / f"cycle-{number}.agb")


def _print_cycles(result: StitchingResult, output: Path) -> None:
    table = Table("status", "damped by", "cycle", box=None, header_style="bold")
    for one in result.cycles:
        table.add_row(*map(escape, (one.status.value, ", ".join(one.damping) or "none", str(one.cycle))))
    build_console().print(table)
    runs = format_quantity(result.runs, "run")
    sites, edges = format_quantity(result.sites, "site"), format_quantity(len(result.edges), "edge")
    typer.echo(f"{runs} with one fault at {sites}, {edges}")
    typer.echo(f"report: {output / 'stitching.html'}")
