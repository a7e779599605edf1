"""Filter for the stream of a guarded graph: the graph's chunks, without traces of the guard's pauses."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from langgraph.types import Interrupt

CHECKPOINT_MODE = "checkpoints"
INTERRUPT_KEY = "__interrupt__"


class ChunkFilter:
    """Filter that removes chunks of other stream modes than the caller's, and chunks of the guard's pauses.

    The guard adds the stream mode ``checkpoints``, which reports each turn boundary before its turn runs.

    Args:
        options: options of the call.
        default_mode: the graph's own stream mode.

    Attributes:
        options: options for the graph's ``stream``.
    """

    def __init__(self, options: Mapping[str, Any], default_mode: Any) -> None:
        mode = options.get("stream_mode") or default_mode
        self._has_modes = not isinstance(mode, str)
        self._modes = list(mode) if self._has_modes else [mode]
        self._has_subgraphs = bool(options.get("subgraphs"))
        self._is_typed = options.get("version") == "v2"
        self._pause_chunk: Any = None
        self._last_values: Any = None
        self._skips_state = False
        modes = self._modes if CHECKPOINT_MODE in self._modes else [*self._modes, CHECKPOINT_MODE]
        self.options: dict[str, Any] = {**options, "stream_mode": modes}

    def start_segment(self, *, is_first: bool, is_forked: bool) -> None:
        """Start a segment. Its first state chunk repeats the last state, unless the state was forked."""
        self._skips_state, self._pause_chunk = not is_first and not is_forked, None

    def get_checkpoint(self, chunk: Any) -> Mapping[str, Any] | None:
        """Return the checkpoint of the root graph that a chunk reports; None for other chunks."""
        mode, namespace, payload = self._parse_chunk(chunk)
        return payload if mode == CHECKPOINT_MODE and not namespace else None

    def filter(self, chunk: Any) -> Iterator[Any]:
        """Yield the chunk in the caller's form; yield nothing if the caller must not get it."""
        mode, namespace, payload = self._parse_chunk(chunk)
        if mode not in self._modes:
            return
        if not namespace and mode == "updates" and payload == {INTERRUPT_KEY: ()}:
            self._pause_chunk = chunk  # `finish` yields it if the call ends here
            return
        if not namespace and mode == "values":
            self._last_values = payload
            if self._skips_state:
                self._skips_state = False
                return
        yield self._format_chunk(chunk)

    def finish(self, question: str | None) -> Iterator[Any]:
        """Yield the last chunk, if any: the caller's pause, or the guard's question as an interrupt."""
        if question is not None:
            yield self._build_question_chunk((build_interrupt(question),))
        elif self._pause_chunk is not None:
            yield self._format_chunk(self._pause_chunk)

    def _build_question_chunk(self, interrupts: tuple[Interrupt, ...]) -> Any:
        mode = "updates" if "updates" in self._modes else self._modes[0]
        payload: Any = {INTERRUPT_KEY: interrupts}
        if mode == "values" and self._is_typed:
            return {"type": mode, "ns": (), "data": self._last_values, "interrupts": interrupts}
        if mode == "values" and isinstance(self._last_values, Mapping):
            payload = {**self._last_values, **payload}
        if self._is_typed:
            return {"type": mode, "ns": (), "data": payload}
        return self._format_chunk(((), mode, payload) if self._has_subgraphs else (mode, payload))

    def _parse_chunk(self, chunk: Any) -> tuple[str, Any, Any]:
        if self._is_typed:
            return chunk["type"], chunk["ns"], chunk["data"]
        return (chunk[1], chunk[0], chunk[2]) if self._has_subgraphs else (chunk[0], (), chunk[1])

    def _format_chunk(self, chunk: Any) -> Any:
        """Return a chunk in the form of the caller's stream modes: with its mode only if they are a list."""
        if self._is_typed or self._has_modes:
            return chunk
        return (chunk[0], chunk[2]) if self._has_subgraphs else chunk[1]


def build_interrupt(question: str) -> Interrupt:
    """Build an interrupt of the guard with a question as its value."""
    return Interrupt(value=question, id=uuid.uuid4().hex)
