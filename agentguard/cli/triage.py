"""Many diagnosed runs on a terminal: the causes, the failed runs first, and the next commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final, Literal

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentguard.cli.run_summary import (
    VERDICT_NAMES,
    RunGroup,
    RunSelection,
    RunSummary,
    count_verdicts,
    find_top_causes,
    group_runs,
)
from agentguard.cli.terminal_text import to_one_line
from agentguard.localize.base import Verdict

_STYLES: Final = {Verdict.FAILURE: "red", Verdict.NO_FAILURE: "green", Verdict.ABSTAINED: "yellow"}
_MAX_CAUSES: Final = 5
_MAX_PLACE: Final = 200
_MAX_REASON: Final = 90
_MIN_WIDTHS: Final = {"steps": 5, "verdict": max(map(len, VERDICT_NAMES.values())), "p": 4}
"""Columns that a narrow terminal does not cut."""
_MIN_REASON_WIDTH: Final = 140  # a narrower terminal would cut the other columns


def render_triage(console: Console, runs: Sequence[RunSummary], selection: RunSelection) -> None:
    """Print the counts, the most frequent causes, one row a run or group, and the next commands."""
    chosen = selection.select_runs(runs)
    parts: list[RenderableType] = [Text(count_verdicts(runs), style="bold")]
    if selection.group_by is not None:
        groups = group_runs(chosen, selection.group_by)
        parts += [Text(), _build_group_table(groups[: selection.limit], str(selection.group_by))]
        hidden = len(groups) - len(groups[: selection.limit])
    else:
        if causes := find_top_causes(runs)[:_MAX_CAUSES]:
            parts += [Text(), _build_group_table(causes, "top causes")]
        shown = chosen[: selection.limit]
        if shown:
            parts += [Text(), _build_run_table(shown, has_reasons=console.width >= _MIN_REASON_WIDTH)]
        hidden = len(chosen) - len(shown)
    if hidden:
        parts.append(Text(f"{hidden} more; --limit sets the number of rows", "dim"))
    if steps := _list_next_commands(chosen):
        parts += [Text(), Text(f"next: {steps}", "dim")]
    console.print(Group(*parts))


def _build_group_table(groups: Sequence[RunGroup], title: str) -> Table:
    table = _new_table()
    for name in (title, "runs", "failed", "agents", "example"):
        justify: Literal["left", "right"] = "right" if name in ("runs", "failed") else "left"
        table.add_column(name, justify=justify, no_wrap=name != "agents")
    for group in groups:
        table.add_row(
            Text(to_one_line(group.name, 60)),
            str(group.runs),
            str(group.verdicts[Verdict.FAILURE]),
            Text(", ".join(to_one_line(agent, 24) for agent in group.agents)),
            Text(to_one_line(group.example.place, _MAX_PLACE)),
        )
    return table


def _build_run_table(runs: Sequence[RunSummary], *, has_reasons: bool) -> Table:
    table = _new_table()
    has_one_run_a_file = len({run.file for run in runs}) == len(runs)
    for name in ("run", "steps", "verdict", "p", "root cause", "kind", *(["reason"] * has_reasons)):
        justify: Literal["left", "right"] = "right" if name in ("steps", "p") else "left"
        table.add_column(name, justify=justify, no_wrap=True, min_width=_MIN_WIDTHS.get(name))
    for run in runs:
        name = run.file if run.file and has_one_run_a_file else run.run_id
        reason = to_one_line(run.reason, _MAX_REASON) if run.codes else ""
        table.add_row(
            Text(to_one_line(name, _MAX_PLACE)),
            str(run.steps),
            Text(VERDICT_NAMES[run.verdict], _STYLES[run.verdict]),
            f"{run.probability:.2f}",
            Text(run.step_label),
            Text(run.cause),
            *([Text(reason, "dim")] * has_reasons),
        )
    return table


def _list_next_commands(runs: Sequence[RunSummary]) -> str:
    """Return the commands that show the first run, and all runs in the viewer."""
    files = list(dict.fromkeys(run.file for run in runs if run.file))
    if not files:
        return ""
    folders = {file.rpartition("/")[0] or "." for file in files}
    target = files[0] if len(files) == 1 else folders.pop() if len(folders) == 1 else ""
    is_shared = sum(run.file == files[0] for run in runs) > 1
    commands = [f"agentguard diagnose {shlex.quote(files[0])}" + " --no-summary" * is_shared]
    if target:
        commands.append(f"agentguard view {shlex.quote(target)}")
    return " · ".join(commands)


def _new_table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold")
