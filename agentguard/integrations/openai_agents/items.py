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

from agents import Agent

from agentguard.runtime.session import Session
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Usage

Item = Mapping[str, Any]


def build_step(items: Iterable[Item], *, agent: str) -> Step:
    """What a model answered as a step whose tools have not run; its index is set when it is committed."""
    said, thought, calls = [], [], []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            said.append(join_text(item.get("content")))
        elif kind == "reasoning":
            thought.append(join_text(item.get("summary")) or join_text(item.get("content")))
        elif item.get("call_id") and item.get("name"):
            calls.append(_build_tool_call(item))
    return Step(
        index=0,
        source=Source.AGENT,
        agent=agent,
        content="\n".join(text for text in said if text),
        reasoning="\n".join(text for text in thought if text),
        tool_calls=tuple(calls),
    )


def add_observations(items: Iterable[Item], step: Step, failed_call_ids: set[str]) -> Step:
    """The step with what its calls returned, as far as it is among the items."""
    answers = {item.get("call_id"): item for item in items if "output" in item}
    seen = tuple(
        Observation(
            content=join_text(answers[call.id]["output"]),
            call_id=call.id,
            tool=call.name,
            is_error=True if call.id in failed_call_ids else None,
        )
        for call in step.tool_calls
        if call.id in answers
    )
    return replace(step, observations=seen)


def build_steps(items: Sequence[Item], *, agent: str) -> list[Step]:
    """The items a run begins with as steps: a prompt, and the turns of an earlier run."""
    made: list[Step] = []
    turn: list[Item] = []
    answered = False
    for item in (*items, {"role": "end"}):
        role = item.get("role")
        ours = role == "assistant" or (role is None and "output" not in item)
        if turn and (role in _ITEM_END_TYPES or (ours and answered)):
            made.append(add_observations(items, build_step(turn, agent=agent), set()))
            turn = []
        answered = not ours
        if ours:
            turn.append(item)
        elif role in _SOURCE_BY_ROLE:
            source = _SOURCE_BY_ROLE[role]
            name = "human" if source is Source.USER else "system"
            made.append(Step(index=0, source=source, agent=name, content=join_text(item.get("content"))))
    return made


_SOURCE_BY_ROLE = {"user": Source.USER, "system": Source.SYSTEM, "developer": Source.SYSTEM}
_ITEM_END_TYPES = frozenset({*_SOURCE_BY_ROLE, "end"})


def join_text(content: Any) -> str:
    """The text of a content, a summary or a tool's output: a string, or parts with a text."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return str(content.get("text") or content.get("refusal") or "")
    if isinstance(content, Sequence):
        return "\n".join(text for part in content if (text := join_text(part)))
    return "" if content is None else str(content)


def build_usage(usage: Any) -> Usage:
    """What a response cost."""
    return Usage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        cached_tokens=getattr(usage.input_tokens_details, "cached_tokens", None) or None,
    )


def parse_arguments(text: Any) -> dict[str, Any] | None:
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
        self._hidden_ranges: list[tuple[int, int]] = []
        self._guard_texts: list[tuple[int, str]] = []
        self._step_ends: list[int] = []
        self._replaced_results: dict[str, str] = {}

    def update(self, items: Sequence[Item]) -> bool:
        """Take the list in; False if it does not go on from what it was, e.g. a handoff has rewritten it.

        Calls that were left out stay out then, too, with their answers; what the guard said is said no more.
        """
        before, self.items = self.items, list(items)
        if self.items[: len(before)] == before:
            return True
        gone = {
            _build_item_key(item) for start, stop in self._hidden_ranges for item in before[start:stop]
        } - {None}
        self._hidden_ranges = [
            (i, i + 1) for i, item in enumerate(self.items) if _build_item_key(item) in gone
        ]
        self._guard_texts = []
        self._step_ends = [len(self.items)] * len(self._step_ends)
        return False

    def end_steps(self, count: int = 1) -> None:
        """``count`` steps end where the list ends now."""
        self._step_ends += [len(self.items)] * count

    def add_guard_text(self, text: str) -> None:
        """Say something where the list ends now."""
        self._guard_texts.append((len(self.items), text))

    def replace_result(self, call_id: str | None, text: str) -> None:
        """Show another text in place of what a call returned."""
        if call_id is not None:
            self._replaced_results[call_id] = text

    def truncate(self, to_step: int) -> None:
        """Leave out all from step ``to_step`` on, and what was said since the step before it."""
        at = self._step_ends[to_step - 1] if to_step else 0
        self._hidden_ranges.append((at, len(self.items)))
        self._guard_texts = [(place, text) for place, text in self._guard_texts if place < at]
        del self._step_ends[to_step:]

    def build_items(self) -> list[Any]:
        """The items that are not left out, and what the guard said among them."""
        return self._build_items_with_positions()[0]

    def rebase(self) -> list[Any]:
        """Make what is shown the whole list, for a run that begins from it."""
        shown, places = self._build_items_with_positions()
        self._step_ends = [places[end] for end in self._step_ends]
        self.items, self._hidden_ranges, self._guard_texts = list(shown), [], []
        return shown

    def _build_items_with_positions(self) -> tuple[list[Any], list[int]]:
        """What is shown, and for each place in the list where it is there."""
        shown: list[Any] = []
        places: list[int] = []
        for place in range(len(self.items) + 1):
            places.append(len(shown))
            shown += [{"role": "user", "content": text} for at, text in self._guard_texts if at == place]
            if place < len(self.items) and not any(
                start <= place < stop for start, stop in self._hidden_ranges
            ):
                shown.append(self._apply_replaced_result(self.items[place]))
        return shown, places

    def _apply_replaced_result(self, item: Item) -> Item:
        text = self._replaced_results.get(item.get("call_id", "")) if "output" in item else None
        return item if text is None else {**item, "output": text}


def _build_tool_call(item: Item) -> ToolCall:
    raw = item.get("arguments", item.get("input"))
    arguments = parse_arguments(raw)
    return ToolCall(
        id=str(item["call_id"]),
        name=str(item["name"]),
        arguments=arguments,
        raw_arguments=raw if arguments is None and isinstance(raw, str) else None,
    )


def _build_item_key(item: Item) -> tuple[Any, bool] | None:
    id = item.get("call_id") or item.get("id")
    return None if not id else (id, "output" in item)


class RunHistory:
    """Steps of a session, side by side with the view that the model gets.

    Args:
        session: of the run.

    Attributes:
        view: what the model gets.
        given: steps that are never taken back: what the run began with, or what a handoff has rewritten.
    """

    def __init__(self, session: Session) -> None:
        self._session, self.view, self.fixed_step_count = session, HistoryView(), 0
        self._steps: list[Step] = []
        self._speakers: list[Agent[Any]] = []

    def commit_step(self, step: Step, speaker: Agent[Any]) -> None:
        """A step that ends where the view ends now."""
        self._steps.append(self._session.commit(step))
        self._speakers.append(speaker)
        self.view.end_steps()

    def fix_steps(self) -> None:
        """Nothing of what is there now can be taken back any more."""
        self.fixed_step_count = len(self._steps)

    def roll_back(self, to_step: int, *, speaker: Agent[Any]) -> Agent[Any]:
        """Cut before a step; what cannot be taken back is committed again.

        Args:
            to_step: of the session, from 0.
            speaker: who goes on where nobody has spoken after that.

        Returns:
            Whose turn it is now.
        """
        at = max(to_step, self.fixed_step_count)
        if at < len(self._speakers):
            speaker = self._speakers[at]
        self.view.truncate(at)
        again = self._steps[to_step:at]
        del self._steps[to_step:], self._speakers[at:]
        for step in again:
            self._steps.append(self._session.commit(step))
        return speaker

    def replace_result(self, step: int, field: str, text: str) -> None:
        """Put a text in place of what a call of a step returned; ``field`` is ``observations[i]``."""
        at = int(field.partition("[")[2].rstrip("]"))
        self.view.replace_result(self._steps[step].observations[at].call_id, text)
