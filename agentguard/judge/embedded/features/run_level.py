"""Features of a whole run, for the prediction of its outcome."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from agentguard.detect.tool_names import is_read_tool, is_terminal_tool, is_write_tool
from agentguard.judge.embedded.features.catalogue import Feature
from agentguard.judge.embedded.features.lexicon import CLASS_NAMES, WORD_CLASSES
from agentguard.judge.embedded.features.roles import RunLayout, SpeakerRole, render_arguments
from agentguard.judge.embedded.features.step_outcomes import is_error_observation
from agentguard.judge.embedded.features.text_scan import TextScan
from agentguard.trajectory.model import Observation, ToolCall

_VALUE = re.compile(r'"((?:[^"\\]|\\.){3,})"|(\d{2,})')
_WORD = re.compile(r"\w+")
_REFUSAL = re.compile(r"\b(?:unfortunately|unable|cannot|can't|not (?:allowed|possible|eligible|able))")
_APOLOGY = re.compile(r"\b(?:apolog|sorry|mistake|misunderst)")
_OBJECTION = re.compile(r"\W*(?:no|actually|wait|but|however|that's not|i (?:don't|didn't)|hmm)\b")
_ACCEPTANCE = re.compile(r"\W*(?:yes|sure|ok|great|thank|perfect)")
_RATE, _BASE = 50.0, 20
_MAX_KNOWN_CHARS = 200_000

_FEATURE_MEANINGS: Final = """
size.steps: steps
size.agent_turns: agents' turns
size.user_turns: users' turns
size.calls: tool calls
size.agent_text: length of the agents' texts
size.user_text: length of the users' texts
size.seen_text: length of the tools' results
size.agent_mean: mean length of an agent's turn
size.agent_longest: longest agent's turn
size.user_mean: mean length of a user's turn
tools.changes: calls of tools whose name implies a change
tools.looks: calls of tools whose name implies a lookup
tools.others: calls of other tools
tools.change_share: share of the calls whose tool implies a change
tools.no_change: no call whose tool implies a change
tools.changes_worked: calls of such tools without an error
tools.changes_failed: calls of such tools with an error
tools.distinct: distinct tools
tools.distinct_changing: distinct tools that imply a change
tools.unlike_share: distinct calls as a share of the calls
tools.most_of_one_change: calls of the most frequent tool that implies a change
tools.most_of_one_call: number of the most frequent call
tools.last_change: place of the last change in the run, from 0 to 1
tools.first_change: place of the first change in the run, from 0 to 1
tools.change_arguments: length of the arguments of all changes
tools.change_mean: mean length of the arguments of a change
tools.at_once: maximum of calls in one step
tools.unsourced: argument values that do not occur earlier
tools.unsourced_share: share of the argument values that do not occur earlier
trouble.errors: results that are errors
trouble.share: share of the results that are errors
trouble.refusals: share of the agents' turns that state an impossibility
trouble.regrets: share of the agents' turns with an apology
trouble.objections: share of the users' turns that object
trouble.assents: share of the users' turns that agree
end.calls: ends with a tool call that is not a terminal action
end.other_tool: ends with a call of another tool
end.asks: the last agent's turn ends with a question mark
end.answered: ends with words of completion or a terminal action
talk.silent: share of the agents' turns without text
talk.agent_numbers: distinct numbers in the agents' texts
talk.user_numbers: distinct numbers in the users' texts
"""


def _build_features() -> tuple[Feature, ...]:
    lines = (line.partition(": ") for line in _FEATURE_MEANINGS.strip().splitlines())
    simple_features = [Feature(name=name, meaning=meaning) for name, _, meaning in lines]
    worded = [
        Feature(name=f"{speaker}.{name}", meaning=f"{about}: words in {speaker}s' turns, per fifty")
        for speaker in ("agent", "user")
        for name, about in WORD_CLASSES
    ]
    return tuple(simple_features + worded)


RUN_FEATURES: Final = _build_features()
RUN_FEATURE_NAMES: Final = tuple(feature.name for feature in RUN_FEATURES)


@dataclass(frozen=True, slots=True)
class _Call:
    step: int
    call: ToolCall
    observation: Observation | None
    text: str

    @property
    def is_write(self) -> bool:
        return is_write_tool(self.call.name)

    @property
    def is_read(self) -> bool:
        return is_read_tool(self.call.name)

    @property
    def is_failed(self) -> bool:
        return self.observation is not None and is_error_observation(self.observation)


def compute_run_features(layout: RunLayout) -> dict[str, float]:
    """Compute the features of a run by name."""
    calls = _list_calls(layout)
    agent_scans = [one for one, role in zip(layout.step_scans, layout.roles, strict=True) if _is_worker(role)]
    user_scans = [
        one for one, role in zip(layout.step_scans, layout.roles, strict=True) if role is SpeakerRole.USER
    ]
    out = _compute_size_features(layout, calls, agent_scans, user_scans)
    out |= _compute_tool_features(layout, calls)
    out |= _compute_error_features(layout, agent_scans, user_scans)
    out |= _compute_ending_features(layout, calls, agent_scans, user_scans)
    for speaker, scans in (("agent", agent_scans), ("user", user_scans)):
        total = sum(one.word_count for one in scans) + _BASE
        for index, name in enumerate(CLASS_NAMES):
            out[f"{speaker}.{name}"] = sum(one.class_counts[index] for one in scans) * _RATE / total
    return out


def _is_worker(role: SpeakerRole) -> bool:
    return role in (SpeakerRole.WORKER, SpeakerRole.ORCHESTRATOR)


def _list_calls(layout: RunLayout) -> list[_Call]:
    calls = []
    for step in layout.run.steps:
        by_id = {observation.call_id: observation for observation in step.observations if observation.call_id}
        for index, call in enumerate(step.tool_calls):
            same_position = step.observations[index] if index < len(step.observations) else None
            calls.append(_Call(step.index, call, by_id.get(call.id, same_position), render_arguments(call)))
    return calls


def _compute_size_features(
    layout: RunLayout, calls: Sequence[_Call], mine: Sequence[TextScan], theirs: Sequence[TextScan]
) -> dict[str, float]:
    agent_length, user_length = sum(one.length for one in mine), sum(one.length for one in theirs)
    observation_length = sum(len(one.content) for step in layout.run.steps for one in step.observations)
    return {
        "size.steps": math.log1p(len(layout.roles)),
        "size.agent_turns": math.log1p(len(mine)),
        "size.user_turns": math.log1p(len(theirs)),
        "size.calls": math.log1p(len(calls)),
        "size.agent_text": math.log1p(agent_length),
        "size.user_text": math.log1p(user_length),
        "size.seen_text": math.log1p(observation_length),
        "size.agent_mean": math.log1p(agent_length / (1 + len(mine))),
        "size.agent_longest": math.log1p(max((one.length for one in mine), default=0)),
        "size.user_mean": math.log1p(user_length / (1 + len(theirs))),
    }


def _compute_tool_features(layout: RunLayout, calls: Sequence[_Call]) -> dict[str, float]:
    changes = [one for one in calls if one.is_write]
    failures = sum(one.is_failed for one in changes)
    length, count = sum(len(one.text) for one in changes), max(1, len(layout.roles))
    call_counts = Counter((one.call.name, one.text) for one in calls)
    unsourced, values = _count_unsourced_values(layout, calls)
    return {
        "tools.changes": math.log1p(len(changes)),
        "tools.looks": math.log1p(sum(one.is_read for one in calls)),
        "tools.others": sum(not one.is_read and not one.is_write for one in calls),
        "tools.change_share": len(changes) / (1 + len(calls)),
        "tools.no_change": not changes,
        "tools.changes_worked": math.log1p(len(changes) - failures),
        "tools.changes_failed": failures,
        "tools.distinct": len({one.call.name for one in calls}),
        "tools.distinct_changing": len({one.call.name for one in changes}),
        "tools.unlike_share": len(call_counts) / (1 + len(calls)),
        "tools.most_of_one_change": _count_most_common(one.call.name for one in changes),
        "tools.most_of_one_call": max(call_counts.values(), default=0),
        "tools.last_change": changes[-1].step / count if changes else 0.0,
        "tools.first_change": changes[0].step / count if changes else 1.0,
        "tools.change_arguments": math.log1p(length),
        "tools.change_mean": math.log1p(length / (1 + len(changes))),
        "tools.at_once": max((len(step.tool_calls) for step in layout.run.steps), default=0),
        "tools.unsourced": math.log1p(unsourced),
        "tools.unsourced_share": unsourced / (1 + values),
    }


def _count_most_common(names: Iterable[str]) -> int:
    return max(Counter(names).values(), default=0)


def _count_unsourced_values(layout: RunLayout, calls: Sequence[_Call]) -> tuple[int, int]:
    """Count the argument values that occur in no earlier text, and all argument values."""
    words: set[str] = set()
    pending_calls, missing, total = list(calls), 0, 0
    for step in layout.run.steps:
        while pending_calls and pending_calls[0].step == step.index:
            for quoted, number in _VALUE.findall(pending_calls.pop(0).text[:4_000]):
                total += 1
                missing += not words.issuperset(_WORD.findall((quoted or number).lower()))
        for text in (step.content, *(one.content for one in step.observations)):
            words.update(_WORD.findall(text[:_MAX_KNOWN_CHARS].lower()))
    return missing, total


def _compute_error_features(
    layout: RunLayout, mine: Sequence[TextScan], theirs: Sequence[TextScan]
) -> dict[str, float]:
    results = [observation for step in layout.run.steps for observation in step.observations]
    errors = sum(map(is_error_observation, results))
    return {
        "trouble.errors": math.log1p(errors),
        "trouble.share": errors / (1 + len(results)),
        "trouble.refusals": sum(bool(_REFUSAL.search(one.lower_text)) for one in mine) / (1 + len(mine)),
        "trouble.regrets": sum(bool(_APOLOGY.search(one.lower_text)) for one in mine) / (1 + len(mine)),
        "trouble.objections": sum(bool(_OBJECTION.match(one.lower_text)) for one in theirs)
        / (1 + len(theirs)),
        "trouble.assents": sum(bool(_ACCEPTANCE.match(one.lower_text)) for one in theirs) / (1 + len(theirs)),
    }


def _compute_ending_features(
    layout: RunLayout, calls: Sequence[_Call], mine: Sequence[TextScan], theirs: Sequence[TextScan]
) -> dict[str, float]:
    last = layout.run.steps[-1] if layout.run.steps else None
    ends = last is not None and any(not is_terminal_tool(call.name) for call in last.tool_calls)
    other = ends and not calls[-1].is_write and not calls[-1].is_read
    steps = [step for step, role in zip(layout.run.steps, layout.roles, strict=True) if _is_worker(role)]
    return {
        "end.calls": ends,
        "end.other_tool": other,
        "end.asks": bool(mine) and mine[-1].is_question,
        "end.answered": layout.has_final_answer,
        "talk.silent": sum(not step.content for step in steps) / (1 + len(steps)),
        "talk.agent_numbers": math.log1p(len(_build_union(one.numbers for one in mine))),
        "talk.user_numbers": math.log1p(len(_build_union(one.numbers for one in theirs))),
    }


def _build_union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)
