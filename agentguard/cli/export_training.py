"""``agentguard export --to sft|preference``: the record of acceptance tests as data to fine-tune with.

A line is one example in the shape that TRL's trainers and OpenAI's fine-tuning take (docs/acceptance.md has
the sources). Examples with the same input and output are written once. What was accepted at one time and
refused at another, e.g. since the rules had changed, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import typer

from agentguard.cli.reading import Redaction
from agentguard.errors import ConfigError
from agentguard.recover.acceptance_record import attempt_of
from agentguard.store.page import Page
from agentguard.store.rows import AcceptanceRow, digest
from agentguard.trajectory.formats._json import dumps

if TYPE_CHECKING:
    from agentguard.store.store import Store


_PAGE: Final = 500
_PAIRS: Final = 4


@dataclass
class Counts:
    """What became of the record's entries."""

    entries: int = 0
    unusable: int = 0
    contradictory: int = 0
    duplicates: int = 0
    alone: int = 0
    written: int = 0

    def told(self) -> str:
        """In a line, without what did not occur."""
        parts = [f"{self.written} examples of {self.entries} entries"]
        names = {
            "duplicates": "said before",
            "contradictory": "both accepted and refused",
            "alone": "without a counterpart",
            "unusable": "unreadable or empty",
        }
        parts += [f"{count} {text}" for name, text in names.items() if (count := getattr(self, name))]
        return ", ".join(parts)


@dataclass(slots=True)
class _Asked:
    """All that was given for one input, each output once, in the order of the record."""

    messages: list[Any]
    tools: Any = None
    said: dict[str, set[bool]] = field(default_factory=dict)

    def outputs(self, accepted: bool) -> list[str]:
        """What was only ever accepted, or refused."""
        return [output for output, verdicts in self.said.items() if verdicts == {accepted}]


def export_training(
    store: Store, ids: Sequence[str], name: str, *, tenant: str = "", redaction: Redaction | None = None
) -> Iterator[bytes]:
    """Lines of JSON, the earliest input first; counts are said on standard error at the end.

    Args:
        store: has the record.
        ids: runs to take; all if there is none.
        name: which format.
        tenant: whose record.
        redaction: takes secrets out of each example.

    Raises:
        StoreUnavailable: the store cannot be read now.
    """
    counts = Counts()
    groups = _grouped(_rows(store, ids, tenant), counts)
    make = _sft if name == "sft" else _preference
    seen: set[str] = set()
    for group in groups:
        for example in make(group, counts, openai=name == "preference_openai"):
            line = dumps(redaction.data(example) if redaction is not None else example)
            key = digest(line.decode())
            if key in seen:  # two that differed in a secret alone
                counts.duplicates += 1
                continue
            seen.add(key)
            counts.written += 1
            yield line
    typer.echo(counts.told(), err=True)


def store_of(store: str | None, format: str | None) -> str:
    """The store's address. Raises ConfigError where something else was given for it."""
    if store is None:
        raise ConfigError("--to sft and preference read a store's record of acceptance tests: give --store")
    if format is not None:
        raise ConfigError("--format says how files are read; --to sft and preference read a store")
    return store


def _rows(store: Store, ids: Sequence[str], tenant: str) -> Iterator[AcceptanceRow]:
    for id in ids:
        yield from store.acceptances_of(id, tenant=tenant)
    after: str | None = None
    while not ids:
        page = store.acceptances(Page(limit=_PAGE, after=after), tenant=tenant)
        yield from page.rows
        after = page.next
        if after is None:
            return


def _grouped(rows: Iterable[AcceptanceRow], counts: Counts) -> list[_Asked]:
    groups: dict[str, _Asked] = {}
    for row in rows:
        counts.entries += 1
        attempt = attempt_of(row)
        if attempt is None:
            counts.unusable += 1
            continue
        messages, output = attempt
        key = digest(dumps({"messages": messages, "tools": row.data.get("tools")}).decode())
        group = groups.setdefault(key, _Asked(list(messages), row.data.get("tools")))
        counts.duplicates += row.accepted in group.said.get(output, set())
        group.said.setdefault(output, set()).add(row.accepted)
    for group in groups.values():
        counts.contradictory += sum(len(verdicts) > 1 for verdicts in group.said.values())
    return list(groups.values())


def _sft(group: _Asked, counts: Counts, *, openai: bool) -> Iterator[Mapping[str, Any]]:
    del openai
    counts.alone += len(group.outputs(False))
    for output in group.outputs(True):
        yield {"messages": [*group.messages, _answer(output)], **_tools(group)}


def _preference(group: _Asked, counts: Counts, *, openai: bool) -> Iterator[Mapping[str, Any]]:
    chosen, rejected = group.outputs(True), group.outputs(False)
    if not (chosen and rejected):
        counts.alone += len(chosen) + len(rejected)
    # One input must not outweigh all others: so many pairs of it at most, each output as evenly as can be.
    pairs = sorted(product(range(len(chosen)), range(len(rejected))), key=lambda pair: (max(pair), pair))
    for i, j in pairs[:_PAIRS]:
        good, bad = [_answer(chosen[i])], [_answer(rejected[j])]
        if openai:
            given = {"messages": group.messages, **_tools(group)}
            yield {"input": given, "preferred_output": good, "non_preferred_output": bad}
        else:
            yield {"prompt": group.messages, "chosen": good, "rejected": bad, **_tools(group)}


def _answer(output: str) -> dict[str, str]:
    return {"role": "assistant", "content": output}


def _tools(group: _Asked) -> dict[str, Any]:
    return {"tools": group.tools} if group.tools else {}
