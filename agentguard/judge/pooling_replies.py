"""What vLLM's pooling endpoints send, read with suspicion: probabilities, scores and vectors, or `Failed`.

Shapes as vLLM 0.32 gives them: ``/classify`` a row of ``probs`` for each text, ``/score`` a ``score`` for
each pair, ``/v1/embeddings`` an ``embedding`` for each text. Rows may come in any order and say their
``index``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from agentguard.judge.wire import Failed, Fault

Row = tuple[float, ...]
_SUM: Final = 0.02
_MOST: Final = 65_536


def class_rows(data: Any, count: int, classes: int | None) -> tuple[Row, ...] | Failed:
    """The probability of each of so many classes, for each text; of any number if None."""
    return _rows(data, count, lambda one: _probabilities(one.get("probs"), classes))


def score_rows(data: Any, count: int) -> tuple[Row, ...] | Failed:
    """One score in ``[0, 1]`` for each pair; any other is no probability."""
    return _rows(data, count, lambda one: _within(_floats([one.get("score")])))


def vector_rows(data: Any, count: int, length: int | None) -> tuple[Row, ...] | Failed:
    """A vector of a known length for each text; of any length if None."""
    return _rows(data, count, lambda one: _long(_floats(one.get("embedding")), length))


def _rows(data: Any, count: int, read: Callable[[dict[str, Any]], Row | None]) -> tuple[Row, ...] | Failed:
    listed = data.get("data") if isinstance(data, dict) else None
    if not isinstance(listed, list) or len(listed) != count:
        return Failed(fault=Fault.MALFORMED, message="the endpoint did not answer for each text")
    held: dict[int, Row] = {}
    for place, one in enumerate(listed):
        row = read(one) if isinstance(one, dict) else None
        index = one.get("index", place) if isinstance(one, dict) else place
        if row is None or not isinstance(index, int):
            return Failed(
                fault=Fault.OUTSIDE, message="the endpoint's numbers are not those of the classifier"
            )
        held[index] = row
    if set(held) != set(range(count)):
        return Failed(fault=Fault.MALFORMED, message="the endpoint did not answer for each text")
    return tuple(held[place] for place in range(count))


def _probabilities(value: Any, classes: int | None) -> Row | None:
    row = _within(_long(_floats(value), classes))
    return row if row is not None and abs(math.fsum(row) - 1.0) <= _SUM else None


def _within(row: Row | None) -> Row | None:
    return row if row is not None and all(0.0 <= one <= 1.0 for one in row) else None


def _long(row: Row | None, length: int | None) -> Row | None:
    return row if row is not None and length in (None, len(row)) else None


def _floats(value: Any) -> Row | None:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST:
        return None
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in value)
    row = tuple(map(float, value)) if numbers else ()
    return row if row and all(map(math.isfinite, row)) else None
