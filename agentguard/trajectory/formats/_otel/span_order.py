"""Order of the spans of a trace: parents before children, siblings by start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agentguard.trajectory.formats._otel.spans import OperationKind, SourceSpan


def order_spans(spans: Sequence[SourceSpan]) -> tuple[list[int | None], tuple[int, ...]]:
    """Return the parent of each span, and all spans in order of time (both as positions in ``spans``)."""
    by_id: dict[str, int] = {}
    for i, span in enumerate(spans):
        by_id.setdefault(span.id, i)
    parents = [by_id.get(span.parent) if span.parent else None for span in spans]
    parents = [None if parent == i else parent for i, parent in enumerate(parents)]
    inside: dict[int | None, list[int]] = {}
    for i, parent in enumerate(parents):
        inside.setdefault(parent, []).append(i)
    for siblings in inside.values():
        siblings.sort(key=lambda i: (float("inf") if spans[i].start is None else spans[i].start or 0.0, i))
    return parents, tuple(_walk_depth_first(inside, len(spans)))


def _walk_depth_first(children: Mapping[int | None, list[int]], count: int) -> Iterator[int]:
    visited_spans: set[int] = set()
    # Spans that are reachable only through a cycle of parents come last, each as its own root.
    for root in (*children.get(None, ()), *range(count)):
        stack = [root]
        while stack:
            i = stack.pop()
            if i not in visited_spans:
                visited_spans.add(i)
                yield i
                stack.extend(reversed(children.get(i, ())))


def find_loops(spans: Sequence[SourceSpan], parents: Sequence[int | None]) -> set[int]:
    """Return the model spans that contain several model calls: loops, recorded as if they were one call.

    Calls of a tool or an agent inside the span do not count.
    """
    counts: dict[int, int] = {}
    for i, span in enumerate(spans):
        if span.kind is not OperationKind.LLM:
            continue
        seen, up = {i}, parents[i]
        while up is not None and up not in seen and spans[up].kind is OperationKind.OTHER:
            seen.add(up)
            up = parents[up]
        if up is not None and spans[up].kind is OperationKind.LLM:
            counts[up] = counts.get(up, 0) + 1
    return {i for i, count in counts.items() if count > 1}
