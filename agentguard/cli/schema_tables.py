"""Output of error schemata: tables for a terminal, and plain values for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentguard.cli.terminal_text import sanitize, to_one_line
from agentguard.errors import InputError
from agentguard.quantity import format_quantity
from agentguard.schemata.model import ErrorSchema, Match
from agentguard.schemata.serialization import encode_schema

_WIDTH = 90


def build_schema_table(schemata: Iterable[ErrorSchema]) -> Table:
    """Build a table with one row for each schema."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "status", "origin", "failures", "used", "confirmed", "code", "signature"):
        table.add_column(column, justify="right" if column in ("failures", "used") else "left")
    all_schemata = list(schemata)
    common_sentences = _find_common_sentences(all_schemata)
    for schema in all_schemata:
        cells = (
            schema.id,
            schema.status.value,
            schema.provenance.origin.value,
            str(schema.support),
            str(schema.used),
        )
        proven = (
            f"{schema.confirmed} of {schema.confirmed + schema.refuted}"
            if schema.confirmed + schema.refuted
            else "-"
        )
        code = schema.codes[0] if schema.codes else "-"
        table.add_row(
            *(
                escape(sanitize(cell))
                for cell in (*cells, proven, code, format_signature(schema, common_sentences))
            )
        )
    return table


def format_signature(schema: ErrorSchema, common_sentences: Collection[str] = (), width: int = _WIDTH) -> str:
    """Return the start of a schema's signature, without the sentences that most schemata of a table share."""
    sentences = [sentence for sentence in schema.signature if sentence not in common_sentences]
    sentences.sort(key=lambda sentence: sentence.startswith("In words:"))  # fragments of text come last
    return to_one_line(" ".join(sentences or schema.signature), width)


def _find_common_sentences(schemata: Sequence[ErrorSchema]) -> frozenset[str]:
    """Return the sentences that more than a third of the schemata share; they distinguish no schema."""
    counts = Counter(sentence for schema in schemata for sentence in set(schema.signature))
    return frozenset(sentence for sentence, count in counts.items() if 1 < count > len(schemata) / 3)


def print_schema(console: Console, schema: ErrorSchema) -> None:
    """Print a schema with all fields."""
    console.print(
        f"[bold]{escape(sanitize(schema.id))}[/]  [dim]{escape(sanitize(_format_facts(schema)))}[/]"
    )
    for title, sentences in (
        ("Signature", schema.signature),
        ("Context", schema.context),
        ("Heuristics", schema.heuristics),
    ):
        if sentences:
            console.print(f"\n[bold]{title}[/]")
            for sentence in sentences:
                console.print(f"  {escape(sanitize(sentence))}", highlight=False)
    if schema.correction:
        console.print(
            f"\n[bold]Correction[/]\n  [green]{escape(sanitize(schema.correction))}[/]", highlight=False
        )
    runs = ", ".join(schema.provenance.runs[:5])
    more = len(schema.provenance.runs) - 5
    console.print(f"\n[dim]from runs {escape(sanitize(runs))}{f' and {more} more' if more > 0 else ''}[/]")


def _format_facts(schema: ErrorSchema) -> str:
    proven = f"confirmed {schema.confirmed}, refuted {schema.refuted}, used {schema.used}"
    parts = (schema.status.value, schema.provenance.origin.value, schema.provenance.method)
    failures = format_quantity(schema.support, "failure")
    return " · ".join((*parts, f"version {schema.version}", failures, proven, *schema.codes))


def build_match_table(steps: Sequence[int], matches: Sequence[Sequence[Match]]) -> Table:
    """Build a table of the nearest schemata of each step."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("step", "similarity", "id", "code", "signature"):
        table.add_column(column, justify="right" if column in ("step", "similarity") else "left")
    common_sentences = _find_common_sentences(
        list({m.schema.id: m.schema for row in matches for m in row}.values())
    )
    for step, row in zip(steps, matches, strict=True):
        for place, match in enumerate(row):
            schema = match.schema
            schema_cells = (
                schema.id,
                schema.codes[0] if schema.codes else "-",
                format_signature(schema, common_sentences),
            )
            cells = (str(step) if place == 0 else "", f"{match.similarity:.2f}", *schema_cells)
            table.add_row(*(escape(sanitize(cell)) for cell in cells))
    return table


def to_plain_dict(schema: ErrorSchema) -> dict[str, Any]:
    """Return a schema as JSON data, with the default values of counts and status."""
    defaults = {"version": 1, "support": 1, "confirmed": 0, "refuted": 0, "used": 0, "status": "active"}
    return defaults | encode_schema(schema)


def count_schemata(schemata: Sequence[ErrorSchema]) -> dict[str, Any]:
    """Return the number of schemata by status, origin, method and code."""

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


def format_distillation(counts: Mapping[str, int], *, is_diagnosed: bool) -> str:
    """Return the result of ``schemata distill`` in words, with the remedy if no run has a known failure."""
    words = {"broken": "unreadable", "passed_over": "without a known failure", "failed": "not distilled"}
    text = ", ".join(f"{count} {words.get(name, name)}" for name, count in counts.items())
    if counts["read"] and counts["passed_over"] == counts["read"] and not is_diagnosed:
        text += "\nno run has an annotated root cause: --diagnosed takes it from the embedded judge"
    return text


def find_schema(schemata: Sequence[ErrorSchema], schema_id: str) -> ErrorSchema:
    """Return the schema of an id, or of the beginning of an id if only one schema has it."""
    matches = [schema for schema in schemata if schema.id == schema_id]
    matches = matches or [schema for schema in schemata if schema.id.startswith(schema_id)]
    if len(matches) == 1:
        return matches[0]
    problem = "no schema has" if not matches else f"{len(matches)} schemata have"
    raise InputError(f"{problem} an id that begins with {schema_id!r}")
