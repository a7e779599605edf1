"""Editor for the steps of a run; a comparison with the source run yields the list of changes."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator
from dataclasses import replace

from agentguard.evals.inject.edits.base import FieldChange, RewrittenRun, TailHandling
from agentguard.evals.inject.edits.run_index import RunIndex, read_call_text
from agentguard.trajectory.model import RootCause, Source, Step

_CLIP = 400
_AROUND = 12
_MAX_FAREWELL = 300
_NUMBER = re.compile(r"\d+")


class RunEditor:
    """Steps of a run, each with its index in the source run (None if the step is new).

    Args:
        run_index: index of the source run.
        rng: draws the ids of repeated calls.
    """

    def __init__(self, run_index: RunIndex, rng: random.Random) -> None:
        self.run_index = run_index
        self._rng = rng
        self._lines: list[tuple[Step, int | None]] = [(step, step.index) for step in run_index.steps]
        self._ids = [call.id for step in run_index.steps for call in step.tool_calls]

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, step: int) -> Step:
        return self._lines[step][0]

    def set(self, step: int, to: Step) -> None:
        """Replace a step."""
        self._lines[step] = (to, self._lines[step][1])

    def remove(self, first: int, end: int) -> None:
        """Remove the steps from ``first`` to before ``end``."""
        del self._lines[first:end]

    def truncate(self, end: int) -> None:
        """End the run before step ``end``."""
        del self._lines[end:]

    def append(self, step: Step) -> None:
        """Append a step that the source run does not have."""
        self._lines.append((step, None))

    def append_message(self, like: Step, text: str) -> None:
        """Append a turn of the agent of ``like`` with ``text`` and without tool calls."""
        self.append(build_message_turn(like, text))

    def copy_step(self, step: Step) -> Step:
        """Return a copy of a step whose calls have new ids."""
        ids = {call.id: self._generate_id(call.id) for call in step.tool_calls}
        calls = tuple(replace(call, id=ids[call.id]) for call in step.tool_calls)
        observations = tuple(
            replace(observation, call_id=ids.get(observation.call_id or "", observation.call_id))
            for observation in step.observations
        )
        return replace(step, tool_calls=calls, observations=observations)

    def append_farewell(self, before: int) -> None:
        """Append the last user turn of the source run if it has no value unknown before ``before``."""
        last = self.run_index.steps[-1]
        if last.source is not Source.USER or len(last.content) > _MAX_FAREWELL or last.index < before:
            return
        if (
            self.run_index.stated_values[last.index]
            <= self.run_index.collect_values_before(before) | self.run_index.initial_values
        ):
            self.append(last)

    def finish(self, *, step: int, cause: RootCause, tail: TailHandling) -> RewrittenRun:
        """Number the steps and collect the differences from the source run."""
        steps = tuple(self._renumber(step))
        changes = tuple(self._find_changes(steps))
        return RewrittenRun(steps=steps, step=step, cause=cause, changes=changes, tail=tail)

    def _renumber(self, first: int) -> Iterator[Step]:
        before: Step | None = None
        for index, (step, origin) in enumerate(self._lines):
            if index >= first or origin != index:
                step = replace(step, index=index, source_index=self._compute_index(step, before, origin))
                if origin is None and before is not None:
                    step = _assign_times(step, before)
            before = step
            yield step

    def _compute_index(self, step: Step, before: Step | None, origin: int | None) -> int | None:
        """Return the index of the step in the source format, or None if the source has no such index."""
        has_indices = all(one.source_index is not None for one in self.run_index.steps)
        if before is None or before.source_index is None or not has_indices:
            return step.source_index if origin is not None else None
        return before.source_index + self._count_records(before)

    def _count_records(self, step: Step) -> int:
        """Return the number of source records of a numbered step; for a copied step, as in the source run."""
        origin = self._lines[step.index][1]
        default_count = 1 + len(step.observations)
        if origin is None or origin + 1 >= len(self.run_index.steps):
            return default_count
        original, following = self.run_index.steps[origin], self.run_index.steps[origin + 1]
        if original.source_index is None or following.source_index is None:
            return default_count
        has_same_results = len(original.observations) == len(step.observations)
        return max(1, following.source_index - original.source_index) if has_same_results else default_count

    def _find_changes(self, steps: tuple[Step, ...]) -> Iterator[FieldChange]:
        origins = {origin for _, origin in self._lines if origin is not None}
        last = max(origins, default=-1)
        for index, (_, origin) in enumerate(self._lines):
            if origin is None:
                yield FieldChange(step=index, field="step", before=None, after="inserted")
            else:
                yield from diff_steps(self.run_index.steps[origin], steps[index])
        for origin in range(last):
            if origin not in origins:
                yield FieldChange(step=origin, field="step", before="removed", after=None)
        if (removed_count := len(self.run_index.steps) - last - 1) > 0:
            yield FieldChange(step=last + 1, field="steps", before=f"{removed_count} left out", after=None)

    def _generate_id(self, like: str) -> str:
        next_id = _increment_id(self._ids, like)
        new_id = next_id or _draw_id(like, self._rng)
        while new_id in self._ids:
            new_id = _draw_id(like, self._rng) if next_id is None else f"{new_id}0"
        self._ids.append(new_id)
        return new_id


def build_message_turn(like: Step, text: str) -> Step:
    """Return a turn of the agent of ``like`` with only ``text``; a reflection if its turns have modules."""
    modules = {"reflection": text} if like.modules else {}
    return replace(
        like, content=text, reasoning="", modules=modules, tool_calls=(), observations=(), extra={}
    )


def diff_steps(old: Step, new: Step) -> Iterator[FieldChange]:
    """Yield every field in which two versions of a step differ, except index, position and time."""
    old_fields, new_fields = _list_step_fields(old), _list_step_fields(new)
    for field in dict.fromkeys((*old_fields, *new_fields)):
        before, after = old_fields.get(field), new_fields.get(field)
        if before is not None and after is not None and before != after:
            before, after = _clip_texts(before, after)
        if before != after:
            yield FieldChange(step=new.index, field=field, before=_shorten(before), after=_shorten(after))


def _list_step_fields(step: Step) -> dict[str, str]:
    """Return all fields of a step that an edit may change, as text."""
    fields = {"content": step.content, "reasoning": step.reasoning}
    fields |= {f"modules.{name}": text for name, text in step.modules.items()}
    for i, call in enumerate(step.tool_calls):
        fields |= {f"tool_calls[{i}].name": call.name, f"tool_calls[{i}].arguments": read_call_text(call)}
    for i, observation in enumerate(step.observations):
        fields[f"observations[{i}]"] = observation.content
        fields |= {f"observations[{i}].tool": observation.tool} if observation.tool else {}
        fields |= {f"observations[{i}].extra": repr(dict(observation.extra))} if observation.extra else {}
        fields |= (
            {f"observations[{i}].is_error": str(observation.is_error).lower()}
            if observation.is_error is not None
            else {}
        )
    return fields | ({"extra": repr(dict(step.extra))} if step.extra else {})


def _clip_texts(before: str, after: str) -> tuple[str, str]:
    """Return the parts in which two texts differ, with a little shared text around them."""
    size = min(len(before), len(after))
    start = next((i for i in range(size) if before[i] != after[i]), size)
    end = next((i for i in range(size - start) if before[-1 - i] != after[-1 - i]), size - start)
    first, last = max(0, start - _AROUND), max(0, end - _AROUND)
    return before[first : len(before) - last], after[first : len(after) - last]


def _shorten(text: str | None) -> str | None:
    return text if text is None or len(text) <= _CLIP else f"{text[:_CLIP]} …"


def _assign_times(step: Step, before: Step) -> Step:
    """Return a new step that begins when the previous step ends and keeps the duration of its model step."""
    if before.started_at is None:
        return replace(step, started_at=None, ended_at=None)
    begins = before.ended_at if before.ended_at is not None else before.started_at
    if step.started_at is None or step.ended_at is None:
        return replace(step, started_at=begins, ended_at=None)
    return replace(step, started_at=begins, ended_at=begins + (step.ended_at - step.started_at))


def _increment_id(ids: list[str], like: str) -> str | None:
    """Return the next id if the ids of the run count up ("call-7-0"), else None."""
    numbers = [int(match[0][:9]) for id_ in ids if (match := _NUMBER.search(id_))]
    has_one_form = len({_NUMBER.sub("#", id_) for id_ in ids}) == 1
    is_rising = has_one_form and numbers == sorted(numbers)
    number = _NUMBER.search(like)
    if not is_rising or number is None or len(number[0]) > 6:
        return None
    return f"{like[: number.start()]}{max(numbers) + 1}{like[number.end() :]}"


def _draw_id(like: str, rng: random.Random) -> str:
    """Return a random id of the same form; the part after the first ``_`` or ``-`` is drawn."""
    head = re.match(r"[A-Za-z]+[_-]", like)
    start = head.end() if head else 0
    return like[:start] + "".join(_draw_character(c, rng) for c in like[start:] or "a0a0a0")


def _draw_character(c: str, rng: random.Random) -> str:
    for letters in (string.digits, string.ascii_lowercase, string.ascii_uppercase):
        if c in letters:
            return rng.choice(letters)
    return c
