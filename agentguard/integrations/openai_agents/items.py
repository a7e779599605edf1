"""Conversion of the OpenAI Agents SDK's items to steps, and the view of the items that the model gets.

The SDK stores all items of a run in one append-only list. Therefore the guard hides rolled back items at
every later model call. The view stores the hidden ranges, and the guard's texts with their positions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agents import Agent

from agentguard.recover.actions import Repair
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Usage

Item = Mapping[str, Any]


def build_step(items: Iterable[Item], *, agent: str) -> Step:
    """Convert the items of a model's response to a step without index and tool results."""
    texts, thoughts, calls = [], [], []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            texts.append(join_text(item.get("content")))
        elif kind == "reasoning":
            thoughts.append(join_text(item.get("summary")) or join_text(item.get("content")))
        elif item.get("call_id") and item.get("name"):
            calls.append(_build_tool_call(item))
    return Step(
        index=0,
        source=Source.AGENT,
        agent=agent,
        content="\n".join(text for text in texts if text),
        reasoning="\n".join(text for text in thoughts if text),
        tool_calls=tuple(calls),
    )


def add_observations(items: Iterable[Item], step: Step, failed_call_ids: set[str]) -> Step:
    """Return the step with the results of its calls in the items."""
    results = {item.get("call_id"): item for item in items if "output" in item}
    observations = tuple(
        Observation(
            content=join_text(results[call.id]["output"]),
            call_id=call.id,
            tool=call.name,
            is_error=True if call.id in failed_call_ids else None,
        )
        for call in step.tool_calls
        if call.id in results
    )
    return replace(step, observations=observations)


def build_steps(items: Sequence[Item], *, agent: str) -> list[Step]:
    """Convert the input items of a run to steps: prompts and the turns of an earlier run."""
    steps: list[Step] = []
    turn: list[Item] = []
    has_results = False
    for item in (*items, {"role": "end"}):
        role = item.get("role")
        is_agent_item = role == "assistant" or (role is None and "output" not in item)
        if turn and (role in _ITEM_END_TYPES or (is_agent_item and has_results)):
            steps.append(add_observations(items, build_step(turn, agent=agent), set()))
            turn = []
        has_results = not is_agent_item
        if is_agent_item:
            turn.append(item)
        elif role in _SOURCE_BY_ROLE:
            source = _SOURCE_BY_ROLE[role]
            name = "human" if source is Source.USER else "system"
            steps.append(Step(index=0, source=source, agent=name, content=join_text(item.get("content"))))
    return steps


_SOURCE_BY_ROLE = {"user": Source.USER, "system": Source.SYSTEM, "developer": Source.SYSTEM}
_ITEM_END_TYPES = frozenset({*_SOURCE_BY_ROLE, "end"})


def join_text(content: Any) -> str:
    """Return the text of a content, a summary or a tool output: a string, or parts with texts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return str(content.get("text") or content.get("refusal") or "")
    if isinstance(content, Sequence):
        return "\n".join(text for part in content if (text := join_text(part)))
    return "" if content is None else str(content)


def build_usage(usage: Any) -> Usage:
    """Convert the usage of a response."""
    return Usage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        cached_tokens=getattr(usage.input_tokens_details, "cached_tokens", None) or None,
    )


def parse_arguments(text: Any) -> dict[str, Any] | None:
    """Parse the arguments of a call; return None if the text is not a JSON object."""
    try:
        arguments = json.loads(text) if text else {}
    except (TypeError, ValueError):
        return None
    return arguments if isinstance(arguments, dict) else None


class HistoryView:
    """View of the SDK's item list that the model gets.

    Attributes:
        items: the latest list of the SDK.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._hidden_ranges: list[tuple[int, int]] = []
        self._guard_texts: list[tuple[int, str]] = []
        self._step_ends: list[int] = []
        self._replaced_results: dict[str, str] = {}

    def update(self, items: Sequence[Item]) -> bool:
        """Replace the list; return False if it does not extend the old one, for example after a handoff.

        In that case hidden calls and their results stay hidden, and the guard's texts are removed.
        """
        before, self.items = self.items, list(items)
        if self.items[: len(before)] == before:
            return True
        hidden_keys = {
            _build_item_key(item) for start, stop in self._hidden_ranges for item in before[start:stop]
        } - {None}
        self._hidden_ranges = [
            (i, i + 1) for i, item in enumerate(self.items) if _build_item_key(item) in hidden_keys
        ]
        self._guard_texts = []
        self._step_ends = [len(self.items)] * len(self._step_ends)
        return False

    def end_steps(self, count: int = 1) -> None:
        """Mark the current end of the list as the end of ``count`` steps."""
        self._step_ends += [len(self.items)] * count

    def add_guard_text(self, text: str) -> None:
        """Add a text of the guard at the current end of the list."""
        self._guard_texts.append((len(self.items), text))

    def replace_result(self, call_id: str | None, text: str) -> None:
        """Replace the text of a tool result in the view."""
        if call_id is not None:
            self._replaced_results[call_id] = text

    def truncate(self, to_step: int) -> None:
        """Hide the items from step ``to_step`` on, and the guard's texts directly before that step."""
        start = self._step_ends[to_step - 1] if to_step else 0
        self._hidden_ranges.append((start, len(self.items)))
        self._guard_texts = [(place, text) for place, text in self._guard_texts if place < start]
        del self._step_ends[to_step:]

    def build_items(self) -> list[Any]:
        """Return the visible items and the guard's texts in order."""
        return self._build_items_with_positions()[0]

    def rebase(self) -> list[Any]:
        """Replace the list by the visible items, and return them as the input of a new runner."""
        visible, places = self._build_items_with_positions()
        self._step_ends = [places[end] for end in self._step_ends]
        self.items, self._hidden_ranges, self._guard_texts = list(visible), [], []
        return visible

    def _build_items_with_positions(self) -> tuple[list[Any], list[int]]:
        """Return the visible items, and the position among them of each position in the list."""
        visible: list[Any] = []
        places: list[int] = []
        for place in range(len(self.items) + 1):
            places.append(len(visible))
            visible += [{"role": "user", "content": text} for at, text in self._guard_texts if at == place]
            if place < len(self.items) and not any(
                start <= place < stop for start, stop in self._hidden_ranges
            ):
                visible.append(self._apply_replaced_result(self.items[place]))
        return visible, places

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
    """Steps of a session, synchronous with the view that the model gets.

    Args:
        session: session of the run.

    Attributes:
        view: the model's view of the items.
        fixed_step_count: number of leading steps that cannot be rolled back: the input of the run, and the
            steps before a handoff that rewrote the items.
    """

    def __init__(self, session: Session) -> None:
        self._session, self.view, self.fixed_step_count = session, HistoryView(), 0
        self._steps: list[Step] = []
        self._speakers: list[Agent[Any]] = []

    def commit_step(self, step: Step, speaker: Agent[Any]) -> None:
        """Commit a step that ends at the current end of the view."""
        self._steps.append(self._session.commit(step))
        self._speakers.append(speaker)
        self.view.end_steps()

    def fix_steps(self) -> None:
        """Exclude all current steps from rollback."""
        self.fixed_step_count = len(self._steps)

    def roll_back(self, to_step: int, *, speaker: Agent[Any]) -> Agent[Any]:
        """Roll back to the start of a step; commit again the steps that cannot be rolled back.

        Args:
            to_step: index of the step in the session.
            speaker: agent that continues if no step follows the target.

        Returns:
            The agent that continues.
        """
        step_count = max(to_step, self.fixed_step_count)
        if step_count < len(self._speakers):
            speaker = self._speakers[step_count]
        self.view.truncate(step_count)
        fixed_steps = self._steps[to_step:step_count]
        del self._steps[to_step:], self._speakers[step_count:]
        for step in fixed_steps:
            self._steps.append(self._session.commit(step))
        return speaker

    def replace_result(self, repair: Repair) -> None:
        """Replace the text of a tool result."""
        observation = self._steps[repair.step].observations[repair.index]
        self.view.replace_result(observation.call_id, repair.text)
