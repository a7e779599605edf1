"""``agentguard bundle``: export, inspect, verify, compare, scrub and minimize bundles."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
import typer

from agentguard.bundles.archive import build_file_name, read_bundle, verify_bundle, write_bundle
from agentguard.bundles.bundle import Bundle, RecordedCall, RecordedEffect, RecordedSnapshot
from agentguard.bundles.captured_run import build_run_bundle
from agentguard.bundles.minimization import minimize_bundle
from agentguard.bundles.regression_test import build_regression_test
from agentguard.bundles.run_difference import (
    RunDifference,
    ValueDifference,
    count_common_items,
    find_run_difference,
)
from agentguard.cli.cmd_replay import load_agent, write_text
from agentguard.cli.document_export import read_stored_records
from agentguard.cli.json_output import print_json
from agentguard.cli.run_input import (
    FormatName,
    Json,
    ReadSummary,
    compute_exit_status,
    parse_pattern,
    read_records,
)
from agentguard.cli.terminal_text import to_one_line
from agentguard.errors import ConfigError
from agentguard.guard import diagnose
from agentguard.quantity import format_quantity
from agentguard.recover.tool_effects import EffectClass
from agentguard.trajectory.model import Record
from agentguard.verdict import NOT_DIAGNOSED, describe_verdict

_EXCERPT_CHARS: Final = 160
_CONTEXT_CHARS: Final = 30

BundleFile = Annotated[Path, typer.Argument(help="Bundle file.")]
AgentName = Annotated[
    str, typer.Option(help="MODULE:FUNCTION that runs the agent; the module may be in this folder.")
]
BundleFiles = Annotated[list[Path], typer.Argument(help="Bundle files.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True, help="Export, inspect, verify, compare, scrub and minimize bundles."
    )
    group.command()(export)
    group.command()(inspect)
    group.command()(verify)
    group.command()(diff)
    group.command()(scrub)
    group.command()(minimize)
    group.command("to-test")(write_test)
    app.add_typer(group, name="bundle")


def export(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Files or folders of any format; ids, with --store.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the bundles.")],
    format: FormatName = None,
    store: Annotated[str | None, typer.Option("--store", metavar="URL", help="Store with the runs.")] = None,
    tenant: Annotated[str, typer.Option(help="Tenant of the runs in the store.")] = "",
    effect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOOL=CLASS", help="Effect class of a tool: read, write or destructive; repeatable."
        ),
    ] = None,
) -> None:
    """Write recorded runs as bundles for replays in the mode scripted.

    Exit status: 0 if all runs are written, 1 if some records are not readable, 2 if none is written.
    """
    effects = dict(map(_parse_effect, effect or []))
    summaries: list[ReadSummary] = []
    records = (
        read_records([Path(run) for run in runs], format, summaries)
        if store is None
        else _read_stored_records(store, runs, tenant, summaries)
    )
    for record in records:
        output.mkdir(parents=True, exist_ok=True)
        file = output / build_file_name(record.trajectory.id, scope=tenant)
        write_bundle(build_run_bundle(record.trajectory, diagnose(record.trajectory), effects), file)
        typer.echo(f"{file}: written")
    if status := compute_exit_status(summaries):
        raise typer.Exit(status)


def inspect(file: BundleFile, json: Json = False) -> None:
    """Print run, calls, diagnosis and expectations of a bundle."""
    summary = _summarize(read_bundle(file))
    if json:
        print_json(summary)
        return
    for name, value in summary.items():
        for text in value if isinstance(value, list) else [value]:
            typer.echo(f"{name:>12}  {to_one_line(str(text), 200)}")


def verify(files: BundleFiles) -> None:
    """Check format, checksums and content of bundles."""
    for file in files:
        members = verify_bundle(file)
        typer.echo(f"{file}: valid, {format_quantity(len(members), 'member')}")


def diff(first: BundleFile, second: BundleFile, json: Json = False) -> None:
    """Print the first step and the first tool call in which the runs of two bundles differ.

    Exit status: 0 if all steps are equal, 1 if a step differs.
    """
    files, bundles = (str(first), str(second)), (read_bundle(first), read_bundle(second))
    difference = find_run_difference(bundles[0].trajectory, bundles[1].trajectory)
    if json:
        print_json(asdict(difference))
    else:
        typer.echo("\n".join(_describe_difference(difference, files, bundles)))
    if difference.step is not None:
        raise typer.Exit(1)


def scrub(
    file: BundleFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="File of the scrubbed bundle.")],
    pattern: Annotated[
        list[str], typer.Option(help="KIND=RE2: additional pattern of secrets; the first group is replaced.")
    ],
) -> None:
    """Replace further secrets of a bundle by placeholders; a replay does the same to the agent's requests."""
    bundle = read_bundle(file)
    patterns = dict(bundle.redaction_patterns) | dict(map(parse_pattern, pattern))
    write_bundle(replace(bundle, redaction_patterns=patterns), output)
    typer.echo(f"{output}: written")


def minimize(
    file: BundleFile,
    agent: AgentName,
    output: Annotated[Path, typer.Option("--output", "-o", help="File of the smaller bundle.")],
) -> None:
    """Remove model answers from a bundle while the replayed run keeps its verdict."""
    bundle = read_bundle(file)
    smallest = minimize_bundle(bundle, load_agent(agent))
    write_bundle(smallest, output)
    counts = f"{len(bundle.model_calls)} -> {len(smallest.model_calls)} model calls"
    typer.echo(
        f"{output}: {counts}, {len(bundle.trajectory.steps)} -> {len(smallest.trajectory.steps)} steps"
    )


def write_test(
    file: BundleFile,
    agent: AgentName,
    output: Annotated[Path, typer.Option("--output", "-o", help="File of the test.")],
) -> None:
    """Write a pytest test that fails like the run, and passes when the agent is fixed."""
    path = os.path.relpath(file.absolute(), output.absolute().parent)
    write_text(
        output, build_regression_test(read_bundle(file), agent=agent, bundle_path=Path(path).as_posix())
    )
    typer.echo(f"{output}: written")


def _read_stored_records(
    store: str, ids: list[str], tenant: str, summaries: list[ReadSummary]
) -> Iterator[Record]:
    """Yield runs of a store. Raises ConfigError if a run is not in it."""
    summaries.append(ReadSummary(store))
    for run_id, record in read_stored_records(store, ids, tenant=tenant):
        if record is None:
            raise ConfigError(f"there is no run {run_id} in the store")
        summaries[-1].add(record)
        yield record


def _parse_effect(text: str) -> tuple[str, str]:
    tool, _, effect = text.rpartition("=")
    if not tool or effect not in list(EffectClass):
        raise ConfigError(f"--effect {text}: write TOOL=CLASS; the classes are {', '.join(EffectClass)}")
    return tool, effect


def _summarize(bundle: Bundle) -> dict[str, object]:
    run = bundle.trajectory
    return {
        "run": run.id,
        "task": run.task,
        "steps": len(run.steps),
        "model calls": len(bundle.model_calls),
        "tool calls": len(bundle.tool_calls),
        "verdict": bundle.diagnosis.get("verdict", NOT_DIAGNOSED),
        "expectations": dict(bundle.expectations),
        "effect": [_describe_effect(effect) for effect in bundle.effects],
        "snapshot": [_describe_snapshot(snapshot) for snapshot in bundle.snapshots],
        "model call": [_describe_answer(number, call) for number, call in enumerate(bundle.model_calls)],
    }


def _describe_effect(effect: RecordedEffect) -> str:
    arguments = orjson.dumps(effect.arguments).decode()
    return f"step {effect.step}: {effect.tool}{arguments}: {effect.effect}, {effect.state}"


def _describe_snapshot(snapshot: RecordedSnapshot) -> str:
    model_calls = format_quantity(snapshot.model_calls, "model call")
    tool_calls = format_quantity(snapshot.tool_calls, "tool call")
    return f"after {model_calls} and {tool_calls}: {orjson.dumps(snapshot.state).decode()}"


def _describe_answer(number: int, call: RecordedCall) -> str:
    return f"{number}: {call.name}: {call.error_type or orjson.dumps(call.result).decode()}"


def _describe_difference(
    difference: RunDifference, files: Sequence[str], bundles: Sequence[Bundle]
) -> Iterator[str]:
    """Yield the lines of a comparison: both runs, the first differing step and the first differing call."""
    for file, bundle in zip(files, bundles, strict=True):
        verdict = describe_verdict(bundle.diagnosis.get("verdict", ""))
        yield f"{file}: {verdict}, {format_quantity(len(bundle.trajectory.steps), 'step')}"
    if bundles[0].trajectory.task != bundles[1].trajectory.task:
        yield "the tasks differ"
    yield from _describe_value("step", difference.step, files)
    yield from _describe_value("tool call", difference.call, files)


def _describe_value(subject: str, difference: ValueDifference | None, files: Sequence[str]) -> Iterator[str]:
    if difference is None:
        yield f"all {subject}s are equal"
        return
    place = f" in {difference.field}" if difference.field else ""
    yield f"first different {subject}{place}"
    texts = [_encode_text(value) for value in difference.values]
    start = max(0, count_common_items(*texts) - _CONTEXT_CHARS)
    for file, step, text in zip(files, difference.steps, texts, strict=True):
        excerpt = ("…" if start else "") + to_one_line(text[start:], _EXCERPT_CHARS)
        yield f"  {file}: " + ("none" if step is None else f"step {step}: {excerpt}")


def _encode_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
