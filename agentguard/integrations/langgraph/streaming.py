"""Streaming of a guarded graph: the graph's own chunks, without traces of the pauses between segments."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass, replace
from typing import Any

from langgraph.types import Interrupt

INTERRUPT_KEY = "__interrupt__"


class ChunkFilter:
    """Filter for chunks that show the guard's pauses at turn boundaries.

    Args:
        options: options of the call.
        default_mode: the graph's own stream mode.
    """

    def __init__(self, options: Mapping[str, Any], default_mode: Any) -> None:
        mode = options.get("stream_mode") or default_mode
        self._has_modes = not isinstance(mode, str)
        self._modes = list(mode) if self._has_modes else [mode]
        self._has_subgraphs = bool(options.get("subgraphs"))
        self._is_typed = options.get("version") == "v2"
        self._pause_chunk: Any = None
        self._skips_state = False

    def start_segment(self, *, is_first: bool, is_forked: bool) -> None:
        """Start a segment. Its first state chunk repeats the last state, unless the state was forked."""
        self._skips_state, self._pause_chunk = not is_first and not is_forked, None

    def filter(self, chunk: Any) -> Iterator[Any]:
        """Yield the chunk, unless it shows a pause of the guard."""
        mode, root, payload = self._parse_chunk(chunk)
        if root and mode == "updates" and payload == {INTERRUPT_KEY: ()}:
            self._pause_chunk = chunk  # sent at the end if the call ends at this pause
            return
        if root and mode == "values" and self._skips_state:
            self._skips_state = False
            return
        yield chunk

    def finish(self, question: str | None) -> Iterator[Any]:
        """Yield the last chunk: the caller's pause, or the guard's question."""
        if question is not None:
            mode = "updates" if "updates" in self._modes else self._modes[0]
            yield self._build_chunk(mode, {INTERRUPT_KEY: (build_interrupt(question),)})
        elif self._pause_chunk is not None:
            yield self._pause_chunk

    def _parse_chunk(self, chunk: Any) -> tuple[str, bool, Any]:
        if self._is_typed:
            return chunk["type"], not chunk["ns"], chunk["data"]
        parts = list(chunk) if self._has_modes or self._has_subgraphs else [chunk]
        space = parts.pop(0) if self._has_subgraphs else ()
        mode = parts.pop(0) if self._has_modes else self._modes[0]
        return mode, not space, parts[0]

    def _build_chunk(self, mode: str, payload: Any) -> Any:
        if self._is_typed:
            return {"type": mode, "ns": (), "data": payload}
        parts = [*([()] if self._has_subgraphs else []), *([mode] if self._has_modes else []), payload]
        return tuple(parts) if len(parts) > 1 else payload


def add_question(output: Any, question: str | None) -> Any:
    """Return the result of ``invoke`` with the guard's question to a person as an interrupt."""
    if question is None:
        return output
    if is_dataclass(output) and not isinstance(output, type) and hasattr(output, "interrupts"):
        return replace(output, interrupts=(build_interrupt(question),))
    return {**(output if isinstance(output, Mapping) else {}), INTERRUPT_KEY: (build_interrupt(question),)}


def build_interrupt(question: str) -> Interrupt:
    """Build the guard's own interrupt."""
    return Interrupt(value=question, id=uuid.uuid4().hex)
