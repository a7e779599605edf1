"""Failures taken together: clusters by schema, the rest by code, and how often over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from agentguard.errors import FormatError
from agentguard.schemata.codec import decode_schema
from agentguard.schemata.model import Schema
from agentguard.store.aggregate import (
    DAY_S,
    CodeGroup,
    Example,
    Frequencies,
    Series,
    failed_by_code,
    runs_by_schema,
    runs_called,
)
from agentguard.store.store import Store
from agentguard.trajectory.formats.kit import Node
from agentguard_server.viewer.run.names import Named, named
from agentguard_server.viewer.sheets_page import day

_MOST_CLUSTERS: Final = 40
_SHORT: Final = 160
_FEWEST_SLOTS: Final = 12  # of a plot: fewer would make walls of its columns
WIDTH: Final = 240
HEIGHT: Final = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Failures that one schema describes.

    Attributes:
        schema: what they have in common.
        title: of its first code, else how it shows.
        codes: with their titles.
        runs: those that are in the store and held to have failed, the latest first.
    """

    schema: Schema
    title: str
    codes: tuple[Named, ...]
    runs: tuple[Example, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Failed runs of one code that no schema describes."""

    code: Named
    total: int
    latest: tuple[Example, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """All failed runs: those that schemata describe, and the others by code.

    ``more`` clusters are not shown, ``unread`` schemata could not be read.
    """

    clusters: tuple[Cluster, ...]
    rest: tuple[Rest, ...]
    more: int = 0
    unread: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of a small plot, in its coordinates; ``tip`` says what it stands for."""

    x: float
    y: float
    width: float
    height: float
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """How often one code or agent failed over time."""

    name: str
    title: str
    total: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The plots of codes and agents, all to one scale, and the same numbers as a table.

    ``rows`` are (bucket, diagnosed runs, failed runs, one number a code, one a agent).
    """

    codes: tuple[Plot, ...]
    agents: tuple[Plot, ...]
    rows: tuple[tuple[str, ...], ...]
    first: str
    last: str
    top: int


def clusters(store: Store, *, tenant: str = "") -> Clusters:
    """Group all failed runs. Raises StoreUnavailable."""
    schemata, unread = _schemata(store, tenant)
    guided = runs_by_schema(store, tenant=tenant)
    members = {one.id: dict.fromkeys((*one.provenance.runs, *guided.get(one.id, ()))) for one in schemata}
    found = runs_called(store, (run for runs in members.values() for run in runs), tenant=tenant)
    made = [_cluster(one, [found[run] for run in members[one.id] if run in found]) for one in schemata]
    made.sort(key=lambda one: (-len(one.runs), -one.schema.support, one.schema.id))
    rest = _rest(failed_by_code(store, tenant=tenant), found)
    return Clusters(
        clusters=tuple(made[:_MOST_CLUSTERS]),
        rest=rest,
        more=max(0, len(made) - _MOST_CLUSTERS),
        unread=unread,
    )


def _schemata(store: Store, tenant: str) -> tuple[list[Schema], int]:
    """The active schemata, and how many cannot be read."""
    held, unread = [], 0
    for row in store.schemata(status="active", tenant=tenant):
        try:
            held.append(decode_schema(Node.of(dict(row.data))))
        except FormatError:
            unread += 1
    return held, unread


def _cluster(schema: Schema, runs: list[Example]) -> Cluster:
    codes = tuple(map(named, schema.codes))
    shows = schema.signature[0] if schema.signature else ""
    return Cluster(
        schema=schema,
        title=codes[0].title if codes else short(shows) or schema.id,
        codes=codes,
        runs=tuple(sorted(runs, key=lambda run: -run.began_at)),
    )


def _rest(groups: Iterable[CodeGroup], covered: Mapping[str, Example]) -> tuple[Rest, ...]:
    taken = Counter(run.code for run in covered.values())
    made = (
        Rest(
            code=replace(named(group.code), title=_code(group.code)),
            total=group.total - taken[group.code],
            latest=tuple(run for run in group.latest if run.run_id not in covered),
        )
        for group in groups
    )
    return tuple(sorted((one for one in made if one.total > 0), key=lambda one: -one.total))


def _code(code: str) -> str:
    return named(code).title if code else "no code"


def short(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _SHORT else f"{line[: _SHORT - 1]}…"


def times(held: Frequencies) -> Times:
    """Plots and table of the frequencies."""
    shown = (*held.codes, *held.agents)
    top = max((n for one in shown for n in one.counts.values()), default=0)
    return Times(
        codes=tuple(_plot(one, held, top, _code(one.name)) for one in held.codes),
        agents=tuple(_plot(one, held, top, one.name or "no agent") for one in held.agents),
        rows=tuple(_row(held, start) for start in held.starts),
        first=day(held.starts[0]) if held.starts else "",
        last=day(held.starts[-1] + held.width_s - DAY_S) if held.starts else "",
        top=top,
    )


def _plot(one: Series, held: Frequencies, top: int, title: str) -> Plot:
    slots = max(_FEWEST_SLOTS, len(held.starts))
    slot, empty = WIDTH / slots, slots - len(held.starts)
    return Plot(
        name=one.name,
        title=title,
        total=one.total,
        bars=tuple(
            Bar(
                x=round(slot * (empty + place) + 0.1 * slot, 2),
                y=round(HEIGHT * (1 - n / top), 2),
                width=round(0.8 * slot, 2),
                height=round(HEIGHT * n / top, 2),
                tip=f"{day(start)}: {n} of {held.runs.counts.get(start, 0)} runs",
            )
            for place, start in enumerate(held.starts)
            if (n := one.counts.get(start, 0))
        ),
    )


def _row(held: Frequencies, start: int) -> tuple[str, ...]:
    every = (held.runs, held.failed, *held.codes, *held.agents)
    return (day(start), *(str(one.counts.get(start, 0)) for one in every))
