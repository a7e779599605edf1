"""Tables of a leave-one-system-out evaluation for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from agentguard.cli.terminal_text import to_one_line
from agentguard.evals.leave_one_system_out import (
    LABELLED_RUNS,
    RISKS,
    STEP_BASELINES,
    LeaveOneSystemOut,
    OutcomeRow,
    Share,
    SourceRow,
)
from agentguard.evals.statistics import mean

_NAME_WIDTH = 30


def build_system_tables(result: LeaveOneSystemOut) -> Iterator[RenderableType]:
    """Yield one table for each basis of a verdict and one for the steps, with one line for each source."""
    if any(row.relative is not None for row in result.rows):
        yield _build_outcome_table(result, "Compared with the agent's other runs", lambda row: row.relative)
        yield Text("")
    if any(row.single is not None for row in result.rows):
        yield _build_outcome_table(result, "Single run of an unknown agent", lambda row: row.single)
        yield Text("")
    if any(row.labelled for row in result.rows):
        yield _build_label_table(result)
        yield Text("")
    if any(row.steps is not None for row in result.rows):
        yield _build_step_table(result)
        yield Text("")
    yield Text(
        f"in %, with 95 % Wilson intervals; risk {result.risk:g}; "
        "each source weighs the same in the average. The model of a source saw no run of its path.",
        "dim",
    )


def _build_outcome_table(
    result: LeaveOneSystemOut, title: str, select: Callable[[SourceRow], OutcomeRow | None]
) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("source", no_wrap=True)
    coverage_names = [f"{risk:g}" for risk in RISKS]
    for name in (
        "failed/passed",
        "false causes",
        "detected",
        "undecided",
        "AUROC",
        "length",
        *(f"cov. {float(name):.0%}" for name in coverage_names),
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result.rows:
        scores = select(row)
        if scores is None:
            continue
        table.add_row(
            to_one_line(row.name, _NAME_WIDTH),
            f"{row.failed}/{row.passed}",
            _format_share(scores.false_causes),
            _format_share(scores.detected),
            _format_percent(scores.undecided.value),
            _format_percent(scores.auroc),
            _format_percent(row.run_length_auroc),
            *(_format_percent(scores.coverage[name]) for name in coverage_names),
        )

    def average(score: Callable[[OutcomeRow], float]) -> str:
        """Average over the sources with both outcomes."""
        return _format_percent(
            result.average(
                lambda row: None if (one := select(row)) is None or not row.has_both_outcomes else score(one)
            )
        )

    table.add_section()
    table.add_row(
        Text("average, both outcomes", "bold"),
        "",
        average(lambda one: one.false_causes.value),
        average(lambda one: one.detected.value),
        average(lambda one: one.undecided.value),
        average(lambda one: one.auroc),
        _format_percent(result.average(lambda row: row.run_length_auroc)),
        *(average(lambda one, name=name: one.coverage[name]) for name in coverage_names),  # type: ignore[misc]
    )
    return table


def _build_label_table(result: LeaveOneSystemOut) -> Table:
    table = Table(
        title="AUROC with labelled runs of the same agent",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
    )
    table.add_column("source", no_wrap=True)
    for size in LABELLED_RUNS:
        table.add_column(str(size), justify="right", no_wrap=True)
    for row in result.rows:
        if row.labelled:
            cells = (_format_percent(row.labelled.get(str(size), math.nan)) for size in LABELLED_RUNS)
            table.add_row(to_one_line(row.name, _NAME_WIDTH), *cells)
    table.add_section()
    averages = (
        _format_percent(mean(row.labelled[size] for row in result.rows if size in row.labelled))
        for size in map(str, LABELLED_RUNS)
    )
    table.add_row(Text("average", "bold"), *averages)
    return table


def _build_step_table(result: LeaveOneSystemOut) -> Table:
    table = Table(title="Root-cause step", title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("source", no_wrap=True)
    for name in ("n", "embedded", "confidence", *STEP_BASELINES):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result.rows:
        if row.steps is None:
            continue
        table.add_row(
            to_one_line(row.name, _NAME_WIDTH),
            str(row.steps.accuracy.n),
            _format_share(row.steps.accuracy),
            _format_percent(row.steps.confidence),
            *(_format_percent(row.steps.baselines[name]) for name in STEP_BASELINES),
        )
    return table


def _format_share(share: Share) -> str:
    low, high = share.interval
    return "–" if share.n == 0 else f"{100 * share.value:.0f} [{100 * low:.0f}, {100 * high:.0f}]"


def _format_percent(value: float) -> str:
    return "–" if value != value else f"{100 * value:.0f}"
