"""Grouping of runs by question and by agent.

Training and test data never share a question. The agent follows from the recorded format, model and tools.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agentguard.trajectory.model import Trajectory

_SEPARATOR_PATTERN = re.compile(r"[\W_]+")


def normalize_group_key(text: str) -> str:
    """Return a question or task id without differences of case, punctuation, spacing and Unicode form."""
    return _SEPARATOR_PATTERN.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()


@dataclass(frozen=True, slots=True)
class AgentTraits:
    """Traits of a run that identify its agent.

    Attributes:
        format: format of the record.
        model: model of most steps; empty if none is recorded.
        tools: names of the called tools.
    """

    format: str
    model: str
    tools: frozenset[str]


def describe_agent(run: Trajectory) -> AgentTraits:
    """Return the traits of the agent of a run."""
    tools = frozenset(call.name for step in run.steps for call in step.tool_calls)
    return AgentTraits(run.format, _find_model(run), tools)


def group_by_agent(runs: Sequence[Trajectory]) -> tuple[str, ...]:
    """Return the name of the agent of each run; see `group_by_traits`."""
    return group_by_traits([describe_agent(run) for run in runs])


def group_by_traits(runs: Sequence[AgentTraits]) -> tuple[str, ...]:
    """Return the name of the agent of each run.

    Two runs are of one agent if they have the same format and model, and are connected by shared tools. Runs
    without a tool call are of the agent with the most runs of their format and model.
    """
    settings = [(run.format, run.model) for run in runs]
    tools = [run.tools for run in runs]
    parent: dict[tuple[str, str, str], tuple[str, str, str]] = {}

    def find_root(key: tuple[str, str, str]) -> tuple[str, str, str]:
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    for setting, names in zip(settings, tools, strict=True):
        keys = sorted((*setting, name) for name in names)
        for key in keys:
            parent[find_root(key)] = find_root(keys[0])
    roots = [
        find_root((*setting, min(names))) if names else None
        for setting, names in zip(settings, tools, strict=True)
    ]
    counts = Counter(root for root in roots if root is not None)
    largest: dict[tuple[str, str], tuple[str, str, str]] = {}
    for root, _ in counts.most_common():
        largest.setdefault(root[:2], root)
    return tuple(
        "/".join(part for part in root or largest.get(setting, (*setting, "")) if part)
        for root, setting in zip(roots, settings, strict=True)
    )


def _find_model(run: Trajectory) -> str:
    """Return the model of most steps of a run; empty if none is recorded."""
    counts = Counter(step.model for step in run.steps if step.model)
    return counts.most_common(1)[0][0] if counts else ""
