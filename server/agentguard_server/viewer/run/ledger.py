"""What the tools did to the world, call by call: executed, undone, reused, skipped, or in doubt.

The store keeps one row an effect. That a call was answered from it and did not run again is seen from the
run: the same call stands on another line, or later, and got the recorded result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentguard.detect.facts import canonical
from agentguard.live.acting import IN_DOUBT
from agentguard.store.rows import EffectRow
from agentguard.trajectory.model import Observation, Step, ToolCall
from agentguard_server.viewer.bundle import Bundle
from agentguard_server.viewer.run.lines import Line, Lines


class Fate(StrEnum):
    """What became of a call that has an effect."""

    EXECUTED = "executed"
    UNDONE = "undone"
    REUSED = "reused"
    SKIPPED = "skipped"
    DOUBT = "in doubt"
    REFUSED = "refused"


MEANING = {
    Fate.EXECUTED: "It ran once and what it did stands.",
    Fate.UNDONE: "It ran, and was compensated when the run was taken back.",
    Fate.REUSED: "It had been done before: the recorded result was given, nothing ran again.",
    Fate.SKIPPED: "It did not run: the turn was refused, or an earlier attempt is in doubt.",
    Fate.DOUBT: "It was begun, and nobody knows whether it happened.",
    Fate.REFUSED: "The tool refused: nothing happened.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One call with an effect.

    Attributes:
        fate: what became of it.
        tool, arguments: the call.
        result: what it returned.
        line, step: where it was made; the line is None where no step of the run makes it.
        call: its place among the step's calls.
        at: when it was settled, or claimed; epoch seconds.
    """

    fate: Fate
    tool: str
    arguments: Mapping[str, Any]
    result: str
    line: str | None
    step: int
    call: int = 0
    at: float | None = None

    @property
    def meaning(self) -> str:
        """What its fate means, in a sentence."""
        return MEANING[self.fate]


@dataclass(frozen=True, slots=True)
class _Made:
    """A call of the run."""

    line: Line
    step: Step
    place: int
    call: ToolCall
    seen: Observation | None


def ledger_of(bundle: Bundle, lines: Lines) -> tuple[Entry, ...]:
    """The ledger in order of time as far as lines tell it: the live line comes last."""
    if not bundle.effects:
        return ()
    by_call: dict[tuple[str, str], list[_Made]] = {}
    for made in _made(lines):
        by_call.setdefault((made.call.name, canonical(made.call.arguments or {})), []).append(made)
    entries: list[Entry] = []
    for row in bundle.effects:
        same = by_call.get((row.tool, canonical(_arguments(row))), [])
        ran = next((made for made in same if made.step.index == row.data.get("step")), None)
        if ran is not None:
            same.remove(ran)
        entries.append(_executed(row, ran))
    known = {row.tool: row for row in bundle.effects}
    by_result = {(row.tool, canonical(_arguments(row))): row for row in bundle.effects}
    for key, rest in by_call.items():
        for made in rest:
            fate = _fate(made, by_result.get(key), refusable=made.call.name in known)
            if fate is not None:
                entries.append(_entry(fate, made))
    order = {line.id: line.number or len(lines.by_id) for line in lines}
    return tuple(sorted(entries, key=lambda one: (order.get(one.line or "", 0), one.step, one.call)))


def _made(lines: Lines) -> Iterator[_Made]:
    for line in (*lines.branches, lines.live):
        for step in line.own:
            for place, call in enumerate(step.tool_calls):
                yield _Made(line, step, place, call, result_of(step, place))


def result_of(step: Step, place: int) -> Observation | None:
    """What the call at a place returned: by its id, else by its place where each call has a result."""
    call = step.tool_calls[place]
    named = [one for one in step.observations if one.call_id is not None and one.call_id == call.id]
    if named:
        return named[0]
    unnamed = len(step.observations) == len(step.tool_calls)
    free = step.observations[place] if unnamed else None
    return free if free is not None and free.call_id is None else None


def _arguments(row: EffectRow) -> Mapping[str, Any]:
    given = row.data.get("arguments")
    return given if isinstance(given, Mapping) else {}


def _executed(row: EffectRow, ran: _Made | None) -> Entry:
    fate = {"done": Fate.EXECUTED, "compensated": Fate.UNDONE}.get(row.state, Fate.DOUBT)
    if row.data.get("state") == "failed":
        fate = Fate.REFUSED
    step = row.data.get("step")
    return Entry(
        fate=fate,
        tool=row.tool,
        arguments=_arguments(row),
        result=str(row.data.get("result") or ""),
        line=ran.line.id if ran else None,
        step=step if isinstance(step, int) else 0,
        call=ran.place if ran else 0,
        at=row.settled_at or row.created_at,
    )


def _fate(made: _Made, row: EffectRow | None, *, refusable: bool) -> Fate | None:
    """What became of a call that has no row of its own; None where nothing is known of an effect of it."""
    if made.seen is None:
        left = made.line.recovery
        refused = left is not None and left.tier == "reject"
        return Fate.SKIPPED if refused and refusable else None
    if made.seen.content == IN_DOUBT:
        return Fate.SKIPPED
    same = row is not None and row.state == "done" and made.seen.content == row.data.get("result")
    return Fate.REUSED if same else None


def _entry(fate: Fate, made: _Made) -> Entry:
    return Entry(
        fate=fate,
        tool=made.call.name,
        arguments=made.call.arguments or {},
        result=made.seen.content if made.seen is not None else "",
        line=made.line.id,
        step=made.step.index,
        call=made.place,
    )
