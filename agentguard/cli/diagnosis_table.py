"""Table of many diagnosed runs on a terminal: causes, one row for each run, and the next commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final, Literal

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentguard.cli.run_summary import (
    RunGroup,
    RunSelection,
    RunSummary,
    count_verdicts,
    find_top_causes,
    group_runs,
    mark_shared_files,
)
from agentguard.cli.terminal_text import to_one_line
from agentguard.quantity import format_quantity
from agentguard.verdict import Verdict

_STYLES: Final = {Verdict.FAILED: "red", Verdict.NO_FAILURE_FOUND: "green", Verdict.UNDECIDED: "yellow"}
_MAX_CAUSES: Final = 5
_MAX_PLACE: Final = 200
_MAX_REASON: Final = 90
_MIN_WIDTHS: Final = {"steps": 5, "verdict": max(len(one.label) for one in Verdict), "p(failed)": 9}
"""Columns that a narrow terminal does not cut."""
_MIN_REASON_WIDTH: Final = 140  # a narrower terminal would cut the other columns
_MIN_AGENT_WIDTH: Final = 100  # the same, for the numbers of steps, the agents and the detectors
_MIN_CODE_WIDTH: Final = 160  # the same, for the codes, and for the detector of each run


def render_diagnosis_table(
    console: Console, runs: Sequence[RunSummary], selection: RunSelection, *, store: str = ""
) -> None:
    """Print the counts, the most frequent causes, one row per run or group, and the next commands.

    Args:
        console: the terminal.
        runs: the diagnosed runs.
        selection: runs and order of the rows.
        store: address of the store that has the runs; empty for no store.
    """
    runs = mark_shared_files(runs)
    chosen = selection.select_runs(runs)
    parts: list[RenderableType] = [Text(count_verdicts(runs), style="bold")]
    if selection.group_by is not None:
        groups = group_runs(chosen, selection.group_by)
        columns = (str(selection.group_by), "runs", "failed")
        parts += [Text(), _build_group_table(groups[: selection.limit], columns, console.width)]
        hidden = len(groups) - len(groups[: selection.limit])
    else:
        if causes := find_top_causes(runs):
            parts += [
                Text(),
                _build_group_table(causes[:_MAX_CAUSES], ("top causes", "failed"), console.width),
            ]
        if len(causes) > _MAX_CAUSES:
            parts.append(
                Text(
                    f"{format_quantity(len(causes) - _MAX_CAUSES, 'more cause')}; --group-by cause shows all",
                    "dim",
                )
            )
        shown = chosen[: selection.limit]
        if shown:
            parts += [Text(), _build_run_table(shown, console.width)]
        hidden = len(chosen) - len(shown)
    if hidden:
        parts.append(Text(f"{hidden} more; --limit sets the number of rows", "dim"))
    if steps := _list_next_commands(chosen, store):
        parts += [Text(), Text(f"next: {steps}", "dim")]
    console.print(Group(*parts))


def _build_group_table(groups: Sequence[RunGroup], columns: Sequence[str], width: int) -> Table:
    """Build a table of groups; the columns are a title and the counts to show."""
    table = _new_table()
    has_codes, has_detectors = width >= _MIN_CODE_WIDTH, width >= _MIN_AGENT_WIDTH
    for name in (*columns, *["code"] * has_codes, *["detectors"] * has_detectors, "agents", "example"):
        justify: Literal["left", "right"] = "right" if name in ("runs", "failed") else "left"
        table.add_column(name, justify=justify, no_wrap=name != "agents")
    for group in groups:
        counts = {"runs": group.runs, "failed": group.verdicts[Verdict.FAILED]}
        table.add_row(
            Text(to_one_line(group.name, 60)),
            *(str(counts[name]) for name in columns[1:]),
            *([Text(", ".join(group.codes))] * has_codes),
            *([Text(", ".join(group.detectors))] * has_detectors),
            Text(", ".join(to_one_line(agent, 24) for agent in group.agents)),
            Text(to_one_line(group.example.place, _MAX_PLACE)),
        )
    return table


def _build_run_table(runs: Sequence[RunSummary], width: int) -> Table:
    """Build a table with one row per run; a narrow one leaves out the numbers of steps and the agents."""
    has_agents, has_reasons = width >= _MIN_AGENT_WIDTH, width >= _MIN_REASON_WIDTH
    has_detectors = width >= _MIN_CODE_WIDTH
    table = _new_table()
    has_one_file = len({run.file for run in runs}) == 1
    optional = (["steps"] * has_agents, ["detector"] * has_detectors + ["reason"] * has_reasons)
    for name in ("run", *optional[0], "verdict", "p(failed)", "root cause", "kind", *optional[1]):
        justify: Literal["left", "right"] = "right" if name in ("steps", "p(failed)") else "left"
        table.add_column(name, justify=justify, no_wrap=True, min_width=_MIN_WIDTHS.get(name))
    for run in runs:
        name = run.run_id if has_one_file and run.shares_file else run.name
        reason = to_one_line(run.reason, _MAX_REASON) if run.codes else ""
        table.add_row(
            Text(to_one_line(name, _MAX_PLACE)),
            *([str(run.steps)] * has_agents),
            Text(run.verdict.label, _STYLES[run.verdict]),
            f"{run.probability:.2f}",
            Text(run.step_label if has_agents else run.step_label.partition(" · ")[0]),
            Text(run.cause),
            *([Text(next(iter(run.detectors), ""))] * has_detectors),
            *([Text(reason, "dim")] * has_reasons),
        )
    return table


def _list_next_commands(runs: Sequence[RunSummary], store: str) -> str:
    """Return the commands that show the first run, and all runs in the viewer."""
    files = list(dict.fromkeys(run.file for run in runs if run.file))
    if not files:
        return f"agentguard view --store {shlex.quote(store)}" if store and runs else ""
    folders = {file.rpartition("/")[0] or "." for file in files}
    target = files[0] if len(files) == 1 else folders.pop() if len(folders) == 1 else ""
    first = next(run for run in runs if run.file)
    only = f" --run-id {shlex.quote(first.own_id)}" if first.shares_file else ""
    commands = [f"agentguard diagnose {shlex.quote(first.file)}{only}"]
    if store:
        commands.append(f"agentguard view --store {shlex.quote(store)}")
    elif target:
        commands.append(f"agentguard view {shlex.quote(target)}")
    return " · ".join(commands)


def _new_table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold")
