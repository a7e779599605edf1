"""How an error spread: which later steps used the values that arose at the root-cause step.

A value *arises* at a step if no text before it has it: not the task, a prompt or a tool's description, and no
step. Numbers, identifiers, addresses and dates are traced as `agentguard.detect.values` writes them, and the
texts of arguments as they are. A value that arises in a step which uses a traced one is traced, too: it may
come from it. This is about values alone; a wrong idea that leaves no value behind is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentguard.detect.values import ValueIndex, number, spellings
from agentguard.trajectory.model import Source, Step, Trajectory

_TOKEN = re.compile(r"(?<![\w.@+-])[$#]?[\w@+-]+(?:[.,:@/+-][\w@+-]+)*")
_MOST = 40
_FAR = 2
_LONGEST = 20_000
_PHRASE = range(4, 81)


@dataclass(slots=True, kw_only=True)
class Trace:
    """A value on its way.

    Attributes:
        value: as it was written first.
        origin: the step it arose at.
        source: the value it may come from; empty for one of the root step.
        returned: it came back from a tool of that step; the agent did not write it.
        uses: later steps that wrote it, in order.
    """

    value: str
    origin: int
    source: str = ""
    returned: bool = False
    uses: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What became of the values of one step.

    Attributes:
        root: the step.
        traces: values that later steps used, those that went furthest first.
        arose: how many values arose at the step at all.
        reaches_end: the last turn of an agent uses one of them.
        complete: False where the run is too long for all earlier values to be remembered.
    """

    root: int
    traces: tuple[Trace, ...]
    arose: int
    reaches_end: bool
    complete: bool

    @property
    def touched(self) -> tuple[int, ...]:
        """The later steps that used any of them, in order."""
        return tuple(sorted({step for trace in self.traces for step in trace.uses}))


def spread(run: Trajectory, steps: Sequence[Step], root: int) -> Spread | None:
    """Trace the values of ``steps[root]``; None if there is no such step."""
    if not 0 <= root < len(steps):
        return None
    index = ValueIndex()
    for text in (run.task, *run.system_prompts.values(), *(tool.description for tool in run.tools)):
        index.add(text[:_LONGEST].lower(), basis=True)
    for step in steps[:root]:
        _remember(index, step)
    traced = _arising(index, steps[root])
    arose = len(traced)
    follower = _Follower(traced, index)
    if traced:
        follower.pass_by(steps[root])
        for step in steps[root + 1 :]:
            follower.follow(step)
    used = [trace for trace in traced.values() if trace.uses]
    used.sort(key=lambda trace: (bool(trace.source), -len(trace.uses), trace.origin))
    last = next((step.index for step in reversed(steps) if step.source is Source.AGENT), -1)
    return Spread(
        root=root,
        traces=tuple(used[:_MOST]),
        arose=arose,
        reaches_end=any(last in trace.uses for trace in used),
        complete=index.complete,
    )


def _remember(index: ValueIndex, step: Step) -> None:
    for _, text in step.texts():
        index.add(text[:_LONGEST].lower())


def _arising(index: ValueIndex, step: Step) -> dict[str, Trace]:
    """Values the step writes, or gets from its tools, that nothing before has."""
    traced: dict[str, Trace] = {}
    for value in _written(step):
        if len(traced) < _MOST and _key(value) not in traced and not index.knows(value):
            traced[_key(value)] = Trace(value=value, origin=step.index)
    for seen in step.observations:
        for value in _values(seen.content[:_LONGEST]):
            if len(traced) < _MOST and _key(value) not in traced and not index.has(value):
                traced[_key(value)] = Trace(value=value, origin=step.index, returned=True)
    return traced


class _Follower:
    """Goes along the later steps. Most of them have nothing of what is traced, and are only glanced at."""

    def __init__(self, traced: dict[str, Trace], index: ValueIndex) -> None:
        self._traced, self._index = traced, index
        self._passed: list[Step] = []
        self._sieve = _sieve(traced)

    def pass_by(self, step: Step) -> None:
        """Remember a step once somebody asks what was said before."""
        self._passed.append(step)

    def follow(self, step: Step) -> None:
        """Note what a step uses, and what arises in it from that."""
        traced = self._traced
        low = " ".join(text for _, text in _own(step)).lower()
        if step.source is not Source.ENVIRONMENT and self._sieve.search(low):
            written = {_key(value): value for value in _written(step)}
            used = [
                key
                for key, trace in traced.items()
                if trace.origin != step.index and (key in written or (" " in key and key in low))
            ]
            for key in used:
                traced[key].uses.append(step.index)
            source = next((key for key in used if _depth(traced, key) < _FAR), None)
            if source is not None:
                self._derive(step, written, traced[source].value)
        self.pass_by(step)

    def _derive(self, step: Step, written: Mapping[str, str], source: str) -> None:
        for one in self._passed:
            _remember(self._index, one)
        self._passed.clear()
        known = len(self._traced)
        for key, value in written.items():
            if key not in self._traced and len(self._traced) < 2 * _MOST and not self._index.knows(value):
                self._traced[key] = Trace(value=value, origin=step.index, source=source)
        if len(self._traced) > known:
            self._sieve = _sieve(self._traced)


def _sieve(traced: Mapping[str, Trace]) -> re.Pattern[str]:
    """Finds any spelling of any traced value in a lower-case text; more than that is looked at closely."""
    forms = {
        form.strip("$#")
        for trace in traced.values()
        for form in (*spellings(trace.value), trace.value.lower())
    }
    return re.compile(
        "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True) if form) or r"(?!)"
    )


def _depth(traced: Mapping[str, Trace], key: str) -> int:
    depth = 0
    while traced[key].source and depth < _FAR:
        key, depth = _key(traced[key].source), depth + 1
        if key not in traced:
            break
    return depth


def _own(step: Step) -> Iterator[tuple[str, str]]:
    """What the step's author wrote, in their order; not what tools returned."""
    return ((name, text[:_LONGEST]) for name, text in step.texts() if not name.startswith("observations"))


def _written(step: Step) -> Iterator[str]:
    for _, text in _own(step):
        yield from _values(text)
    for call in step.tool_calls:
        yield from _phrases(call.arguments)


def _values(text: str) -> Iterator[str]:
    """Tokens that can be told again: with a digit and two characters at least, or an address."""
    for found in _TOKEN.finditer(text):
        token = found[0].rstrip(".,:/-+")
        if len(token) > 1 and len(token) <= 80 and ("@" in token[1:] or any(c.isdigit() for c in token)):
            yield token


def _phrases(value: Any, depth: int = 0) -> Iterator[str]:
    """Texts of more than one word in arguments: names, titles."""
    if depth > 6:
        return
    if isinstance(value, str):
        if len(value) in _PHRASE and " " in value.strip() and "\n" not in value:
            yield value.strip()
    elif isinstance(value, Mapping):
        for item in list(value.values())[:_MOST]:
            yield from _phrases(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value[:_MOST]:
            yield from _phrases(item, depth + 1)


def _key(value: str) -> str:
    """One key for the spellings of a value: ``$1,250.00`` is ``1250``."""
    amount = number(value)
    return f"{amount:g}" if amount is not None and abs(amount) < 1e6 else value.lower().lstrip("$#")
