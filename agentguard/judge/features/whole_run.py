"""Features of a run as a whole, for the question whether it failed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from agentguard.judge.features.layout import Layout, Role
from agentguard.judge.features.lexicon import CLASSES, NAMES
from agentguard.judge.features.scan import Scan
from agentguard.judge.features.spec import Feature
from agentguard.judge.features.tools import changes, looks
from agentguard.trajectory.model import Observation, ToolCall

_VALUE = re.compile(r'"((?:[^"\\]|\\.){3,})"|(\d{2,})')
_WORD = re.compile(r"\w+")
_REFUSED = re.compile(r"\b(?:unfortunately|unable|cannot|can't|not (?:allowed|possible|eligible|able))")
_SORRY = re.compile(r"\b(?:apolog|sorry|mistake|misunderst)")
_OBJECTS = re.compile(r"\W*(?:no|actually|wait|but|however|that's not|i (?:don't|didn't)|hmm)\b")
_ACCEPTS = re.compile(r"\W*(?:yes|sure|ok|great|thank|perfect)")
_FAILED = re.compile(r"\s*(?:error|invalid|failed|exception)", re.IGNORECASE)
_RATE, _BASE = 50.0, 20
_KNOWN_CAP = 200_000

_PLAIN: Final = """
size.steps: steps
size.agent_turns: agents' turns
size.user_turns: users' turns
size.calls: tool calls
size.agent_text: length of what agents said
size.user_text: length of what users said
size.seen_text: length of what tools returned
size.agent_mean: mean length of an agent's turn
size.agent_longest: longest agent's turn
size.user_mean: mean length of a user's turn
tools.changes: calls of tools whose name says that they change something
tools.looks: calls of tools whose name says that they look
tools.others: calls of other tools
tools.change_share: share of the calls that change something
tools.no_change: nothing was changed
tools.changes_worked: calls that change something and returned no error
tools.changes_failed: calls that change something and returned an error
tools.distinct: tools used
tools.distinct_changing: tools used that change something
tools.unlike_share: share of the calls that are unlike all others
tools.most_of_one_change: most calls of one tool that changes something
tools.most_of_one_call: most times that one call was made
tools.last_change: how late the last change was, 0 to 1
tools.first_change: how late the first change was, 0 to 1
tools.change_arguments: length of the arguments of all changes
tools.change_mean: mean length of the arguments of a change
tools.at_once: most calls in one step
tools.unsourced: argument values that occur nowhere before
tools.unsourced_share: their share
trouble.errors: results that are errors
trouble.share: share of the results that are errors
trouble.refusals: share of the agents' turns that say what cannot be done
trouble.regrets: share of the agents' turns that regret something
trouble.objections: share of the users' turns that object
trouble.assents: share of the users' turns that assent
end.calls: ends with a tool call
end.other_tool: ends with a tool that neither changes nor looks
end.asks: the last agent's turn asks
end.answered: ends with words of ending
talk.silent: share of the agents' turns without text
talk.agent_numbers: numbers that agents said
talk.user_numbers: numbers that users said
"""


def _features() -> tuple[Feature, ...]:
    lines = (line.partition(": ") for line in _PLAIN.strip().splitlines())
    plain = [Feature(name=name, meaning=meaning) for name, _, meaning in lines]
    worded = [
        Feature(name=f"{who}.{name}", meaning=f"{about}: words in {who}s' turns, per fifty")
        for who in ("agent", "user")
        for name, about in CLASSES
    ]
    return tuple(plain + worded)


RUN_FEATURES: Final = _features()
RUN_NAMES: Final = tuple(feature.name for feature in RUN_FEATURES)


@dataclass(frozen=True, slots=True)
class _Call:
    step: int
    call: ToolCall
    seen: Observation | None
    text: str

    @property
    def changes(self) -> bool:
        return changes(self.call.name)

    @property
    def looks(self) -> bool:
        return looks(self.call.name)

    @property
    def failed(self) -> bool:
        return self.seen is not None and _error(self.seen)


def run_features(held: Layout) -> dict[str, float]:
    """Features of a run by name."""
    calls = _calls(held)
    mine = [one for one, role in zip(held.said, held.roles, strict=True) if _works(role)]
    theirs = [one for one, role in zip(held.said, held.roles, strict=True) if role is Role.USER]
    out = _size(held, calls, mine, theirs)
    out |= _tools(held, calls)
    out |= _trouble(held, mine, theirs)
    out |= _ending(held, calls, mine, theirs)
    for who, scans in (("agent", mine), ("user", theirs)):
        total = sum(one.words for one in scans) + _BASE
        for place, name in enumerate(NAMES):
            out[f"{who}.{name}"] = sum(one.counts[place] for one in scans) * _RATE / total
    return out


def _works(role: Role) -> bool:
    return role in (Role.WORKER, Role.ORCHESTRATOR)


def _error(seen: Observation) -> bool:
    return bool(_FAILED.match(seen.content)) if seen.is_error is None else seen.is_error


def _calls(held: Layout) -> list[_Call]:
    found = []
    for step in held.run.steps:
        texts = dict(step.texts()) if step.tool_calls else {}
        by_id = {seen.call_id: seen for seen in step.observations if seen.call_id}
        for place, call in enumerate(step.tool_calls):
            follows = step.observations[place] if place < len(step.observations) else None
            text = texts.get(f"tool_calls[{place}]", "")
            found.append(_Call(step.index, call, by_id.get(call.id, follows), text))
    return found


def _size(
    held: Layout, calls: Sequence[_Call], mine: Sequence[Scan], theirs: Sequence[Scan]
) -> dict[str, float]:
    said, asked = sum(one.length for one in mine), sum(one.length for one in theirs)
    seen = sum(len(one.content) for step in held.run.steps for one in step.observations)
    return {
        "size.steps": math.log1p(len(held.roles)),
        "size.agent_turns": math.log1p(len(mine)),
        "size.user_turns": math.log1p(len(theirs)),
        "size.calls": math.log1p(len(calls)),
        "size.agent_text": math.log1p(said),
        "size.user_text": math.log1p(asked),
        "size.seen_text": math.log1p(seen),
        "size.agent_mean": math.log1p(said / (1 + len(mine))),
        "size.agent_longest": math.log1p(max((one.length for one in mine), default=0)),
        "size.user_mean": math.log1p(asked / (1 + len(theirs))),
    }


def _tools(held: Layout, calls: Sequence[_Call]) -> dict[str, float]:
    made = [one for one in calls if one.changes]
    failed = sum(one.failed for one in made)
    length, count = sum(len(one.text) for one in made), max(1, len(held.roles))
    same = Counter((one.call.name, one.text) for one in calls)
    unsourced, values = _unsourced(held, calls)
    return {
        "tools.changes": math.log1p(len(made)),
        "tools.looks": math.log1p(sum(one.looks for one in calls)),
        "tools.others": sum(not one.looks and not one.changes for one in calls),
        "tools.change_share": len(made) / (1 + len(calls)),
        "tools.no_change": not made,
        "tools.changes_worked": math.log1p(len(made) - failed),
        "tools.changes_failed": failed,
        "tools.distinct": len({one.call.name for one in calls}),
        "tools.distinct_changing": len({one.call.name for one in made}),
        "tools.unlike_share": len(same) / (1 + len(calls)),
        "tools.most_of_one_change": _most(one.call.name for one in made),
        "tools.most_of_one_call": max(same.values(), default=0),
        "tools.last_change": made[-1].step / count if made else 0.0,
        "tools.first_change": made[0].step / count if made else 1.0,
        "tools.change_arguments": math.log1p(length),
        "tools.change_mean": math.log1p(length / (1 + len(made))),
        "tools.at_once": max((len(step.tool_calls) for step in held.run.steps), default=0),
        "tools.unsourced": math.log1p(unsourced),
        "tools.unsourced_share": unsourced / (1 + values),
    }


def _most(names: Iterable[str]) -> int:
    return max(Counter(names).values(), default=0)


def _unsourced(held: Layout, calls: Sequence[_Call]) -> tuple[int, int]:
    """Argument values of calls that occur in nothing said or seen before, and all values."""
    known: set[str] = set()
    waiting, missing, total = list(calls), 0, 0
    for step in held.run.steps:
        while waiting and waiting[0].step == step.index:
            for quoted, number in _VALUE.findall(waiting.pop(0).text[:4_000]):
                total += 1
                missing += not known.issuperset(_WORD.findall((quoted or number).lower()))
        for text in (step.content, *(one.content for one in step.observations)):
            known.update(_WORD.findall(text[:_KNOWN_CAP].lower()))
    return missing, total


def _trouble(held: Layout, mine: Sequence[Scan], theirs: Sequence[Scan]) -> dict[str, float]:
    results = [seen for step in held.run.steps for seen in step.observations]
    errors = sum(map(_error, results))
    return {
        "trouble.errors": math.log1p(errors),
        "trouble.share": errors / (1 + len(results)),
        "trouble.refusals": sum(bool(_REFUSED.search(one.low)) for one in mine) / (1 + len(mine)),
        "trouble.regrets": sum(bool(_SORRY.search(one.low)) for one in mine) / (1 + len(mine)),
        "trouble.objections": sum(bool(_OBJECTS.match(one.low)) for one in theirs) / (1 + len(theirs)),
        "trouble.assents": sum(bool(_ACCEPTS.match(one.low)) for one in theirs) / (1 + len(theirs)),
    }


def _ending(
    held: Layout, calls: Sequence[_Call], mine: Sequence[Scan], theirs: Sequence[Scan]
) -> dict[str, float]:
    last = held.run.steps[-1] if held.run.steps else None
    ends = last is not None and bool(last.tool_calls)
    other = ends and not calls[-1].changes and not calls[-1].looks
    steps = [step for step, role in zip(held.run.steps, held.roles, strict=True) if _works(role)]
    return {
        "end.calls": ends,
        "end.other_tool": other,
        "end.asks": bool(mine) and mine[-1].asks,
        "end.answered": held.answered,
        "talk.silent": sum(not step.content for step in steps) / (1 + len(steps)),
        "talk.agent_numbers": math.log1p(len(_union(one.numbers for one in mine))),
        "talk.user_numbers": math.log1p(len(_union(one.numbers for one in theirs))),
    }


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)
