"""Clusters of failed runs by schema, the other failures by code, and their frequency over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from agentguard.errors import FormatError
from agentguard.schemata.model import ErrorSchema
from agentguard.schemata.serialization import decode_schema
from agentguard.store.read.failure_statistics import (
    FailedRun,
    FailureCodeGroup,
    FailureFrequencies,
    FailureSeries,
    count_failures_by_agent_and_code,
    find_failed_runs,
    group_failures_by_code,
    list_runs_by_schema,
)
from agentguard.store.store import Store
from agentguard.store.write.run_counts import DAY_S
from agentguard.trajectory.formats.sdk import JsonNode
from agentguard_server.viewer.formatting import CodeTitle, find_code_title, format_day

_MAX_CLUSTERS: Final = 40
_MAX_TEXT_CHARS: Final = 160
_MAX_TABLE_SIZE: Final = 10
_MIN_SLOTS: Final = 12  # fewer slots would make the bars of a plot too wide
PLOT_WIDTH: Final = 240
PLOT_HEIGHT: Final = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCluster:
    """Failed runs that one schema describes.

    Attributes:
        schema: the schema.
        title: title of its first code, else the beginning of its signature, else its id.
        codes: its codes with their titles.
        runs: its runs that are in the store and diagnosed as failed, latest first.
    """

    schema: ErrorSchema
    title: str
    codes: tuple[CodeTitle, ...]
    runs: tuple[FailedRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnclusteredFailures:
    """Failed runs of one code that no schema describes: ``total`` runs, of which ``latest`` are shown."""

    code: CodeTitle
    total: int
    latest: tuple[FailedRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureClusters:
    """All failed runs: clusters by schema, and the other runs by code.

    ``more`` is the number of clusters left out, ``unreadable`` the number of invalid schemata.
    """

    clusters: tuple[FailureCluster, ...]
    unclustered: tuple[UnclusteredFailures, ...]
    more: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendBar:
    """Bar of a plot, in units of `PLOT_WIDTH` and `PLOT_HEIGHT`; ``tip`` is its tooltip."""

    x: float
    y: float
    width: float
    height: float
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPlot:
    """Frequency of one code or agent over time.

    Attributes:
        name, title: the code or the agent, and its title.
        total: number of failed runs.
        change: failed runs of the last week or day minus those of the one before; None if there is only one.
        is_new: whether all failed runs are of the last week or day.
        bars: one for each week or day with a failed run.
    """

    name: str
    title: str
    total: int
    change: int | None
    is_new: bool
    bars: tuple[TrendBar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureTrends:
    """Plots of codes and agents on one scale, and the same numbers as a table.

    Attributes:
        codes, agents: the plots.
        rows: date, diagnosed runs, failed runs, and one number per code and agent.
        first, last: first and last date; empty without failed runs.
        max_count: highest number of a bar.
    """

    codes: tuple[TrendPlot, ...]
    agents: tuple[TrendPlot, ...]
    rows: tuple[tuple[str, ...], ...]
    first: str
    last: str
    max_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureTableRow:
    """Failed runs of one agent by kind of failure.

    Attributes:
        agent: agent of the root cause; empty if the diagnosis names none.
        counts: number of runs for each code of the table.
        others: number of runs with other codes.
        total: number of runs.
    """

    agent: str
    counts: tuple[int, ...]
    others: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureTable:
    """Failed runs by agent and kind of failure: the most frequent ones of both.

    Attributes:
        codes: codes with their titles, most frequent first.
        rows: one for each agent, most frequent first.
    """

    codes: tuple[CodeTitle, ...]
    rows: tuple[FailureTableRow, ...]


def cluster_failures(store: Store, *, tenant: str = "") -> FailureClusters:
    """Group all failed runs by schema, and the others by code.

    Raises StoreUnavailable if the database cannot be read now.
    """
    schemata, unreadable_count = _load_schemata(store, tenant)
    guided_runs = list_runs_by_schema(store, tenant=tenant)
    members = {
        one.id: dict.fromkeys((*one.provenance.runs, *guided_runs.get(one.id, ()))) for one in schemata
    }
    failed_runs = find_failed_runs(store, (run for runs in members.values() for run in runs), tenant=tenant)
    clusters = [
        _build_cluster(one, [failed_runs[run] for run in members[one.id] if run in failed_runs])
        for one in schemata
    ]
    clusters.sort(key=lambda one: (-len(one.runs), -one.schema.support, one.schema.id))
    unclustered = _group_unclustered(group_failures_by_code(store, tenant=tenant), failed_runs)
    return FailureClusters(
        clusters=tuple(clusters[:_MAX_CLUSTERS]),
        unclustered=unclustered,
        more=max(0, len(clusters) - _MAX_CLUSTERS),
        unreadable=unreadable_count,
    )


def _load_schemata(store: Store, tenant: str) -> tuple[list[ErrorSchema], int]:
    """Return the active schemata and the number of unreadable ones."""
    schemata, unreadable_count = [], 0
    for row in store.list_schemata(status="active", tenant=tenant):
        try:
            schemata.append(decode_schema(JsonNode.from_value(dict(row.data))))
        except FormatError:
            unreadable_count += 1
    return schemata, unreadable_count


def _build_cluster(schema: ErrorSchema, runs: list[FailedRun]) -> FailureCluster:
    codes = tuple(map(find_code_title, schema.codes))
    signature = schema.signature[0] if schema.signature else ""
    return FailureCluster(
        schema=schema,
        title=codes[0].title if codes else shorten(signature) or schema.id,
        codes=codes,
        runs=tuple(sorted(runs, key=lambda run: -run.began_at)),
    )


def _group_unclustered(
    groups: Iterable[FailureCodeGroup], clustered: Mapping[str, FailedRun]
) -> tuple[UnclusteredFailures, ...]:
    clustered_counts = Counter(run.code for run in clustered.values())
    failures = (
        UnclusteredFailures(
            code=replace(find_code_title(group.code), title=_describe_code(group.code)),
            total=group.total - clustered_counts[group.code],
            latest=tuple(run for run in group.latest if run.run_id not in clustered),
        )
        for group in groups
    )
    return tuple(sorted((one for one in failures if one.total > 0), key=lambda one: -one.total))


def _describe_code(code: str) -> str:
    return find_code_title(code).title if code else "no evidence"


def shorten(text: str) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT_CHARS else f"{line[: _MAX_TEXT_CHARS - 1]}…"


def build_trends(frequencies: FailureFrequencies) -> FailureTrends:
    """Build the plots, and the table with the same numbers."""
    all_series = (*frequencies.codes, *frequencies.agents)
    max_count = max((n for series in all_series for n in series.counts.values()), default=0)
    return FailureTrends(
        codes=tuple(
            _build_plot(series, frequencies, max_count, _describe_code(series.name))
            for series in frequencies.codes
        ),
        agents=tuple(
            _build_plot(series, frequencies, max_count, series.name or "no agent")
            for series in frequencies.agents
        ),
        rows=tuple(_build_row(frequencies, start) for start in frequencies.starts),
        first=format_day(frequencies.starts[0]) if frequencies.starts else "",
        last=format_day(frequencies.starts[-1] + frequencies.width_s - DAY_S) if frequencies.starts else "",
        max_count=max_count,
    )


def build_table(store: Store, frequencies: FailureFrequencies, *, tenant: str = "") -> FailureTable:
    """Build the table of agents and kinds of failure. Raises StoreUnavailable if it cannot be read."""
    agents, codes = (
        frequencies.agents[:_MAX_TABLE_SIZE],
        [one.name for one in frequencies.codes[:_MAX_TABLE_SIZE]],
    )
    counts = count_failures_by_agent_and_code(
        store, [one.name for one in agents], codes, since=min(frequencies.starts, default=0), tenant=tenant
    )
    rows = []
    for one in agents:
        cells = tuple(counts.get((one.name, code), 0) for code in codes)
        rows.append(
            FailureTableRow(agent=one.name, counts=cells, others=one.total - sum(cells), total=one.total)
        )
    titles = tuple(replace(find_code_title(code), title=_describe_code(code)) for code in codes)
    return FailureTable(codes=titles, rows=tuple(rows))


def _build_plot(one: FailureSeries, frequencies: FailureFrequencies, max_count: int, title: str) -> TrendPlot:
    slots = max(_MIN_SLOTS, len(frequencies.starts))
    slot, empty = PLOT_WIDTH / slots, slots - len(frequencies.starts)
    latest = [one.counts.get(start, 0) for start in frequencies.starts[-2:]]
    has_previous = len(latest) == 2
    return TrendPlot(
        name=one.name,
        title=title,
        total=one.total,
        change=latest[1] - latest[0] if has_previous else None,
        is_new=has_previous and 0 < latest[1] == one.total,
        bars=tuple(
            TrendBar(
                x=round(slot * (empty + place) + 0.1 * slot, 2),
                y=round(PLOT_HEIGHT * (1 - n / max_count), 2),
                width=round(0.8 * slot, 2),
                height=round(PLOT_HEIGHT * n / max_count, 2),
                tip=f"{format_day(start)}: {n} of {frequencies.runs.counts.get(start, 0)} runs",
            )
            for place, start in enumerate(frequencies.starts)
            if (n := one.counts.get(start, 0))
        ),
    )


def _build_row(frequencies: FailureFrequencies, start: int) -> tuple[str, ...]:
    all_series = (frequencies.runs, frequencies.failed, *frequencies.codes, *frequencies.agents)
    return (format_day(start), *(str(one.counts.get(start, 0)) for one in all_series))
