"""Completeness of a run: content that the recording lacks or that the importer could not read."""

from __future__ import annotations

from collections.abc import Mapping

from agentguard.trajectory.model import Trajectory

_MAX_TYPES = 5


def describe_gaps(run: Trajectory) -> tuple[str, ...]:
    """Return a clause for each kind of content that the run lacks; empty if the run is complete."""
    gaps = []
    if not run.is_content_recorded:
        gaps.append("this trace was recorded without message content")
    if run.unknown_parts:
        gaps.append(describe_unknown_parts(run.unknown_parts))
    return tuple(gaps)


def describe_unknown_parts(counts: Mapping[str, int]) -> str:
    """Return one sentence with the most frequent types of unknown parts and their numbers."""
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    types = ", ".join(f"{number} of type {kind}" for kind, number in order[:_MAX_TYPES])
    more = f", and {len(order) - _MAX_TYPES} more types" if len(order) > _MAX_TYPES else ""
    total = sum(counts.values())
    noun = "part was" if total == 1 else "parts were"
    return f"{total} {noun} not understood: {types}{more}"
