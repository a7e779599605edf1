"""Schemata for people, as tables, and for programs, as plain values."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentguard.cli.text import clean, one_line
from agentguard.schemata.codec import encode_schema
from agentguard.schemata.model import Match, Schema

_WIDTH = 90


def emit(value: Any) -> None:
    """Print JSON."""
    sys.stdout.buffer.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()


def listing(schemata: Iterable[Schema]) -> Table:
    """A schema a line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "status", "origin", "failures", "used", "borne out", "code", "how it shows"):
        table.add_column(column, justify="right" if column in ("failures", "used") else "left")
    held = list(schemata)
    usual = _usual(held)
    for one in held:
        cells = (one.id, one.status.value, one.provenance.origin.value, str(one.support), str(one.used))
        proven = f"{one.confirmed} of {one.confirmed + one.refuted}" if one.confirmed + one.refuted else "-"
        code = one.codes[0] if one.codes else "-"
        table.add_row(*(escape(clean(cell)) for cell in (*cells, proven, code, head(one, usual))))
    return table


def head(schema: Schema, usual: Collection[str] = (), width: int = _WIDTH) -> str:
    """The beginning of how a schema shows, without what is usual among those it is shown with."""
    telling = [sentence for sentence in schema.signature if sentence not in usual]
    telling.sort(key=lambda sentence: sentence.startswith("In words:"))  # rags of text tell least
    return one_line(" ".join(telling or schema.signature), width)


def _usual(schemata: Sequence[Schema]) -> frozenset[str]:
    """Sentences that more than a third of the schemata share: they tell none from another."""
    said = Counter(sentence for one in schemata for sentence in set(one.signature))
    return frozenset(sentence for sentence, count in said.items() if 1 < count > len(schemata) / 3)


def whole(console: Console, schema: Schema) -> None:
    """Print all of a schema."""
    console.print(f"[bold]{escape(clean(schema.id))}[/]  [dim]{escape(clean(_facts(schema)))}[/]")
    for title, sentences in (
        ("How it shows", schema.signature),
        ("When it arises", schema.context),
        ("How to recognise it", schema.heuristics),
    ):
        if sentences:
            console.print(f"\n[bold]{title}[/]")
            for sentence in sentences:
                console.print(f"  {escape(clean(sentence))}", highlight=False)
    if schema.correction:
        console.print(f"\n[bold]Instead[/]\n  [green]{escape(clean(schema.correction))}[/]", highlight=False)
    runs = ", ".join(schema.provenance.runs[:5])
    more = len(schema.provenance.runs) - 5
    console.print(f"\n[dim]from runs {escape(clean(runs))}{f' and {more} more' if more > 0 else ''}[/]")


def _facts(schema: Schema) -> str:
    proven = f"confirmed {schema.confirmed}, refuted {schema.refuted}, used {schema.used}"
    parts = (schema.status.value, schema.provenance.origin.value, schema.provenance.method)
    failures = f"{schema.support} failure{'s' if schema.support != 1 else ''}"
    return " · ".join((*parts, f"version {schema.version}", failures, proven, *schema.codes))


def found(steps: Sequence[int], matches: Sequence[Sequence[Match]]) -> Table:
    """The nearest schemata of each step."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("step", "likeness", "id", "code", "how it shows"):
        table.add_column(column, justify="right" if column in ("step", "likeness") else "left")
    usual = _usual(list({m.schema.id: m.schema for row in matches for m in row}.values()))
    for step, row in zip(steps, matches, strict=True):
        for place, match in enumerate(row):
            one = match.schema
            shown = (one.id, one.codes[0] if one.codes else "-", head(one, usual))
            cells = (str(step) if place == 0 else "", f"{match.likeness:.2f}", *shown)
            table.add_row(*(escape(clean(cell)) for cell in cells))
    return table


def plain(schema: Schema) -> dict[str, Any]:
    """A schema for programs: every field, and its defaults too where they say something."""
    defaults = {"version": 1, "support": 1, "confirmed": 0, "refuted": 0, "used": 0, "status": "active"}
    return defaults | encode_schema(schema)


def counted(schemata: Sequence[Schema]) -> dict[str, Any]:
    """What there is, by status, origin, method and code."""

    def by(values: Iterable[str]) -> dict[str, int]:
        return dict(sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0])))

    return {
        "schemata": len(schemata),
        "failures": sum(one.support for one in schemata),
        "questions": len({group for one in schemata for group in one.provenance.groups}),
        "used": sum(one.used for one in schemata),
        "confirmed": sum(one.confirmed for one in schemata),
        "refuted": sum(one.refuted for one in schemata),
        "status": by(one.status.value for one in schemata),
        "origin": by(one.provenance.origin.value for one in schemata),
        "method": by(one.provenance.method for one in schemata),
        "code": by(one.codes[0] if one.codes else "none" for one in schemata),
    }
