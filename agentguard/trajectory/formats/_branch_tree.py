"""Tree of recorded turns with edits and retries as branches.

The current branch leads to the last recorded node. Each other path to a leaf is an abandoned branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from agentguard.trajectory.model import Branch, Step

T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False)
class TreeNode(Generic[T]):
    """Node of the tree.

    Attributes:
        id: id of the branch that begins with this node.
        order: position in the recording.
        value: content of the node.
        children: the nodes that follow this one.
        last_order: largest position below this node; `mark_last_orders` sets it.
    """

    id: str
    order: int
    value: T
    children: list[TreeNode[T]] = field(default_factory=list)
    last_order: int = 0


StepsOfPath = Callable[[Sequence[TreeNode[T]]], tuple[Step, ...]]


def build_branches(
    root: TreeNode[T], build_steps: StepsOfPath[T]
) -> tuple[tuple[Step, ...], tuple[Branch, ...]]:
    """Return the steps of the current branch, and the abandoned branches, each before its own forks.

    Args:
        root: the first node of every path.
        build_steps: builder of the steps of a path, numbered from 0.
    """
    mark_last_orders(root)
    path = find_current_path(root)
    steps = build_steps(path)
    return steps, tuple(_iter_branches(path, steps, build_steps))


def mark_last_orders(root: TreeNode[T]) -> list[TreeNode[T]]:
    """Set ``last_order`` of all nodes and return them; paths may be too long for recursion."""
    nodes = [root]
    for node in nodes:
        nodes += node.children
    for node in reversed(nodes):
        node.last_order = max([node.order, *(child.last_order for child in node.children)])
    return nodes


def find_current_path(node: TreeNode[T]) -> list[TreeNode[T]]:
    """Return the path from a node to the last recorded node below it."""
    path = [node]
    while path[-1].children:
        path.append(max(path[-1].children, key=lambda child: child.last_order))
    return path


def _iter_branches(
    current_path: list[TreeNode[T]], current_steps: tuple[Step, ...], build_steps: StepsOfPath[T]
) -> Iterator[Branch]:
    paths: list[tuple[str | None, int, list[TreeNode[T]], tuple[Step, ...]]]
    paths = [(None, 0, current_path, current_steps)]
    for parent, start, path, steps in paths:
        for position in range(start, len(path) - 1):
            for child in path[position].children:
                if child is path[position + 1]:
                    continue
                branch_path = [*path[: position + 1], *find_current_path(child)]
                branch_steps = build_steps(branch_path)
                fork = _find_fork_step(steps, branch_steps)
                yield Branch(id=child.id, fork_step=fork, steps=branch_steps[fork:], parent=parent)
                paths.append((child.id, position + 1, branch_path, branch_steps))


def _find_fork_step(current: tuple[Step, ...], abandoned: tuple[Step, ...]) -> int:
    """Return the first step in which two branches differ."""
    different = (i for i, (a, b) in enumerate(zip(current, abandoned, strict=False)) if a != b)
    return next(different, min(len(current), len(abandoned)))
