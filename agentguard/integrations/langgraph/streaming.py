"""What a guarded graph streams: the graph's own chunks, without the seams between its segments."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass, replace
from typing import Any

from langgraph.types import Interrupt

INTERRUPT = "__interrupt__"


class Chunks:
    """Leaves out what shows that the graph was paused at a turn boundary.

    Args:
        options: of the call.
        default: the graph's own stream mode.
    """

    def __init__(self, options: Mapping[str, Any], default: Any) -> None:
        mode = options.get("stream_mode") or default
        self._several = not isinstance(mode, str)
        self._modes = list(mode) if self._several else [mode]
        self._nested = bool(options.get("subgraphs"))
        self._typed = options.get("version") == "v2"
        self._held: Any = None
        self._again = False

    def segment(self, *, first: bool, forked: bool) -> None:
        """A segment begins: it streams the state it begins with, which is news after a fork alone."""
        self._again, self._held = not first and not forked, None

    def shown(self, chunk: Any) -> Iterator[Any]:
        """The chunk, unless it shows a seam."""
        mode, root, payload = self._read(chunk)
        if root and mode == "updates" and payload == {INTERRUPT: ()}:
            self._held = chunk  # the caller's own pause, if the call ends here
            return
        if root and mode == "values" and self._again:
            self._again = False
            return
        yield chunk

    def last(self, question: str | None) -> Iterator[Any]:
        """What ends the stream: the caller's pause, or the guard's question."""
        if question is not None:
            mode = "updates" if "updates" in self._modes else self._modes[0]
            yield self._written(mode, {INTERRUPT: (interrupt(question),)})
        elif self._held is not None:
            yield self._held

    def _read(self, chunk: Any) -> tuple[str, bool, Any]:
        if self._typed:
            return chunk["type"], not chunk["ns"], chunk["data"]
        parts = list(chunk) if self._several or self._nested else [chunk]
        space = parts.pop(0) if self._nested else ()
        mode = parts.pop(0) if self._several else self._modes[0]
        return mode, not space, parts[0]

    def _written(self, mode: str, payload: Any) -> Any:
        if self._typed:
            return {"type": mode, "ns": (), "data": payload}
        parts = [*([()] if self._nested else []), *([mode] if self._several else []), payload]
        return tuple(parts) if len(parts) > 1 else payload


def with_question(out: Any, question: str | None) -> Any:
    """What ``invoke`` returns, with the question that the guard put to a person as an interrupt."""
    if question is None:
        return out
    if is_dataclass(out) and not isinstance(out, type) and hasattr(out, "interrupts"):
        return replace(out, interrupts=(interrupt(question),))
    return {**(out if isinstance(out, Mapping) else {}), INTERRUPT: (interrupt(question),)}


def interrupt(question: str) -> Interrupt:
    """The guard's own interrupt."""
    return Interrupt(value=question, id=uuid.uuid4().hex)
