"""The tree that spans form, and the order in which things happened in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agentguard.trajectory.formats._otel import Span


def order_of(spans: Sequence[Span]) -> tuple[list[int | None], tuple[int, ...]]:
    """Each span's parent, and all spans in the order things happened (both as positions in ``spans``)."""
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
    return parents, tuple(_walk(inside, len(spans)))


def _walk(inside: Mapping[int | None, list[int]], count: int) -> Iterator[int]:
    done: set[int] = set()
    # Spans that are only reachable through a circle of parents come last, each as a root of its own.
    for root in (*inside.get(None, ()), *range(count)):
        stack = [root]
        while stack:
            i = stack.pop()
            if i not in done:
                done.add(i)
                yield i
                stack.extend(reversed(inside.get(i, ())))
