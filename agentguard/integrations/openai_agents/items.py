"""Items of the OpenAI Agents SDK as steps, and the view of them that a model gets.

The SDK keeps every item of a run in one list that only grows. What the guard takes back therefore has to be
left out again at each later model call: a view is sticky. It is kept as ranges that are left out and texts
that were said at a place in the list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Usage

Item = Mapping[str, Any]


def step_of(items: Iterable[Item], *, agent: str) -> Step:
    """What a model answered as a step whose tools have not run; its index is set when it is committed."""
    said, thought, calls = [], [], []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            said.append(text_of(item.get("content")))
        elif kind == "reasoning":
            thought.append(text_of(item.get("summary")) or text_of(item.get("content")))
        elif item.get("call_id") and item.get("name"):
            calls.append(_call(item))
    return Step(
        index=0,
        source=Source.AGENT,
        agent=agent,
        content="\n".join(text for text in said if text),
        reasoning="\n".join(text for text in thought if text),
        tool_calls=tuple(calls),
    )


def seen_in(items: Iterable[Item], step: Step, failed: set[str]) -> Step:
    """The step with what its calls returned, as far as it is among the items."""
    answers = {item.get("call_id"): item for item in items if "output" in item}
    seen = tuple(
        Observation(
            content=text_of(answers[call.id]["output"]),
            call_id=call.id,
            tool=call.name,
            is_error=True if call.id in failed else None,
        )
        for call in step.tool_calls
        if call.id in answers
    )
    return replace(step, observations=seen)


def steps_of(items: Sequence[Item], *, agent: str) -> list[Step]:
    """The items a run begins with as steps: a prompt, and the turns of an earlier run."""
    made: list[Step] = []
    turn: list[Item] = []
    answered = False
    for item in (*items, {"role": "end"}):
        role = item.get("role")
        ours = role == "assistant" or (role is None and "output" not in item)
        if turn and (role in _ENDS or (ours and answered)):
            made.append(seen_in(items, step_of(turn, agent=agent), set()))
            turn = []
        answered = not ours
        if ours:
            turn.append(item)
        elif role in _SOURCES:
            source = _SOURCES[role]
            name = "human" if source is Source.USER else "system"
            made.append(Step(index=0, source=source, agent=name, content=text_of(item.get("content"))))
    return made


_SOURCES = {"user": Source.USER, "system": Source.SYSTEM, "developer": Source.SYSTEM}
_ENDS = frozenset({*_SOURCES, "end"})


def text_of(content: Any) -> str:
    """The text of a content, a summary or a tool's output: a string, or parts with a text."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return str(content.get("text") or content.get("refusal") or "")
    if isinstance(content, Sequence):
        return "\n".join(text for part in content if (text := text_of(part)))
    return "" if content is None else str(content)


def usage_of(usage: Any) -> Usage:
    """What a response cost."""
    return Usage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        cached_tokens=getattr(usage.input_tokens_details, "cached_tokens", None) or None,
    )


def arguments_of(text: Any) -> dict[str, Any] | None:
    """Arguments as an object; None where the text is none."""
    try:
        given = json.loads(text) if text else {}
    except (TypeError, ValueError):
        return None
    return given if isinstance(given, dict) else None


class HistoryView:
    """What the model gets of the SDK's list.

    Attributes:
        items: the list as the SDK gave it last.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._left: list[tuple[int, int]] = []
        self._told: list[tuple[int, str]] = []
        self._ends: list[int] = []
        self._results: dict[str, str] = {}

    def take(self, items: Sequence[Item]) -> bool:
        """Take the list in; False if it does not go on from what it was, e.g. a handoff has rewritten it.

        Calls that were left out stay out then, too, with their answers; what the guard said is said no more.
        """
        before, self.items = self.items, list(items)
        if self.items[: len(before)] == before:
            return True
        gone = {_key(item) for start, stop in self._left for item in before[start:stop]} - {None}
        self._left = [(i, i + 1) for i, item in enumerate(self.items) if _key(item) in gone]
        self._told = []
        self._ends = [len(self.items)] * len(self._ends)
        return False

    def step_ends(self, count: int = 1) -> None:
        """``count`` steps end where the list ends now."""
        self._ends += [len(self.items)] * count

    def tell(self, text: str) -> None:
        """Say something where the list ends now."""
        self._told.append((len(self.items), text))

    def repair(self, call: str | None, text: str) -> None:
        """Show another text in place of what a call returned."""
        if call is not None:
            self._results[call] = text

    def cut(self, to_step: int) -> None:
        """Leave out all from step ``to_step`` on, and what was said since the step before it."""
        at = self._ends[to_step - 1] if to_step else 0
        self._left.append((at, len(self.items)))
        self._told = [(place, text) for place, text in self._told if place < at]
        del self._ends[to_step:]

    def shown(self) -> list[Any]:
        """The items that are not left out, and what the guard said among them."""
        return self._rebuilt()[0]

    def renew(self) -> list[Any]:
        """Make what is shown the whole list, for a run that begins from it."""
        shown, places = self._rebuilt()
        self._ends = [places[end] for end in self._ends]
        self.items, self._left, self._told = list(shown), [], []
        return shown

    def _rebuilt(self) -> tuple[list[Any], list[int]]:
        """What is shown, and for each place in the list where it is there."""
        shown: list[Any] = []
        places: list[int] = []
        for place in range(len(self.items) + 1):
            places.append(len(shown))
            shown += [{"role": "user", "content": text} for at, text in self._told if at == place]
            if place < len(self.items) and not any(start <= place < stop for start, stop in self._left):
                shown.append(self._repaired(self.items[place]))
        return shown, places

    def _repaired(self, item: Item) -> Item:
        text = self._results.get(item.get("call_id", "")) if "output" in item else None
        return item if text is None else {**item, "output": text}


def _call(item: Item) -> ToolCall:
    raw = item.get("arguments", item.get("input"))
    arguments = arguments_of(raw)
    return ToolCall(
        id=str(item["call_id"]),
        name=str(item["name"]),
        arguments=arguments,
        raw_arguments=raw if arguments is None and isinstance(raw, str) else None,
    )


def _key(item: Item) -> tuple[Any, bool] | None:
    id = item.get("call_id") or item.get("id")
    return None if not id else (id, "output" in item)
