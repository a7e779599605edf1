"""``agentguard convert --to sft|preference``: training data from the stored acceptance tests.

A line is one example in the format of TRL's trainers and OpenAI's fine-tuning (docs/acceptance.md names
the sources). Examples with the same input and output are written once. An output with both verdicts is left
out, for instance after a change of the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import typer

from agentguard.cli.run_input import Redaction
from agentguard.errors import ConfigError
from agentguard.quantity import format_quantity
from agentguard.recover.acceptance.acceptance_record import parse_attempt
from agentguard.store.db.rows import AcceptanceRow, compute_digest
from agentguard.store.read.pagination import iter_rows
from agentguard.trajectory.safe_json import dumps

if TYPE_CHECKING:
    from agentguard.store.store import Store


_MAX_PAIRS: Final = 4


@dataclass
class ExportCounts:
    """Counts of the entries by their use."""

    entries: int = 0
    unusable: int = 0
    contradictory: int = 0
    duplicates: int = 0
    alone: int = 0
    written: int = 0

    def format_summary(self) -> str:
        """Return the counts in one line, without zeros."""
        entries = format_quantity(self.entries, "entry", "entries")
        parts = [f"{format_quantity(self.written, 'example')} of {entries}"]
        names = {
            "duplicates": "duplicates",
            "contradictory": "both accepted and refused",
            "alone": "without a counterpart",
            "unusable": "unreadable or empty",
        }
        parts += [f"{count} {text}" for name, text in names.items() if (count := getattr(self, name))]
        return ", ".join(parts)


@dataclass(slots=True)
class _OutputGroup:
    """Outputs for one input, each once, in the order of the record."""

    messages: list[Any]
    tools: Any = None
    verdicts: dict[str, set[bool]] = field(default_factory=dict)

    def list_outputs(self, accepted: bool) -> list[str]:
        """Return the outputs whose verdicts are all accepted, or all refused."""
        return [output for output, verdicts in self.verdicts.items() if verdicts == {accepted}]


def export_training(
    store: Store, ids: Sequence[str], name: str, *, tenant: str = "", redaction: Redaction | None = None
) -> Iterator[bytes]:
    """Yield lines of JSON, earliest input first; report the counts on standard error at the end.

    Args:
        store: store with the entries.
        ids: runs to export; all if empty.
        name: name of the format.
        tenant: tenant of the entries.
        redaction: removes secrets from each example.

    Raises:
        StoreUnavailable: the store cannot be read now.
    """
    counts = ExportCounts()
    groups = _group_by_input(_read_rows(store, ids, tenant), counts)
    make = _build_sft_examples if name == "sft" else _build_preference_examples
    keys: set[str] = set()
    for group in groups:
        for example in make(group, counts, openai=name == "preference_openai"):
            line = dumps(redaction.redact_data(example) if redaction is not None else example)
            key = compute_digest(line.decode())
            if key in keys:  # two inputs that differed only in a secret
                counts.duplicates += 1
                continue
            keys.add(key)
            counts.written += 1
            yield line
    typer.echo(counts.format_summary(), err=True)


def require_store(store: str | None, format: str | None) -> str:
    """Return the address of the store. Raises ConfigError without one, and for an option of files."""
    if store is None:
        raise ConfigError("--to sft and preference read the acceptance tests of a store: give --store")
    if format is not None:
        raise ConfigError("--format is for files; --to sft and preference read a store")
    return store


def _read_rows(store: Store, ids: Sequence[str], tenant: str) -> Iterator[AcceptanceRow]:
    for id in ids:
        yield from store.list_run_acceptances(id, tenant=tenant)
    if not ids:
        yield from iter_rows(lambda page: store.list_acceptances(page, tenant=tenant))


def _group_by_input(rows: Iterable[AcceptanceRow], counts: ExportCounts) -> list[_OutputGroup]:
    groups: dict[str, _OutputGroup] = {}
    for row in rows:
        counts.entries += 1
        attempt = parse_attempt(row)
        if attempt is None:
            counts.unusable += 1
            continue
        messages, output = attempt
        key = compute_digest(dumps({"messages": messages, "tools": row.data.get("tools")}).decode())
        group = groups.setdefault(key, _OutputGroup(list(messages), row.data.get("tools")))
        counts.duplicates += row.accepted in group.verdicts.get(output, set())
        group.verdicts.setdefault(output, set()).add(row.accepted)
    for group in groups.values():
        counts.contradictory += sum(len(verdicts) > 1 for verdicts in group.verdicts.values())
    return list(groups.values())


def _build_sft_examples(
    group: _OutputGroup, counts: ExportCounts, *, openai: bool
) -> Iterator[Mapping[str, Any]]:
    del openai
    counts.alone += len(group.list_outputs(False))
    for output in group.list_outputs(True):
        yield {"messages": [*group.messages, _to_assistant_message(output)], **_get_tools_field(group)}


def _build_preference_examples(
    group: _OutputGroup, counts: ExportCounts, *, openai: bool
) -> Iterator[Mapping[str, Any]]:
    chosen, rejected = group.list_outputs(True), group.list_outputs(False)
    if not (chosen and rejected):
        counts.alone += len(chosen) + len(rejected)
    # Limit the pairs per input, so that one input does not dominate; use all outputs equally often.
    pairs = sorted(product(range(len(chosen)), range(len(rejected))), key=lambda pair: (max(pair), pair))
    for i, j in pairs[:_MAX_PAIRS]:
        preferred, non_preferred = [_to_assistant_message(chosen[i])], [_to_assistant_message(rejected[j])]
        if openai:
            input_data = {"messages": group.messages, **_get_tools_field(group)}
            yield {"input": input_data, "preferred_output": preferred, "non_preferred_output": non_preferred}
        else:
            yield {
                "prompt": group.messages,
                "chosen": preferred,
                "rejected": non_preferred,
                **_get_tools_field(group),
            }


def _to_assistant_message(output: str) -> dict[str, str]:
    return {"role": "assistant", "content": output}


def _get_tools_field(group: _OutputGroup) -> dict[str, Any]:
    return {"tools": group.tools} if group.tools else {}
