"""Text of the difference of two bundles for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson

from agentguard.bundles.bundle import Bundle
from agentguard.bundles.run_difference import RunDifference, ValueDifference
from agentguard.cli.terminal_text import to_one_line
from agentguard.verdict import describe_verdict

_EXCERPT_CHARS: Final = 160
_CONTEXT_CHARS: Final = 30


def describe_difference(
    difference: RunDifference, files: Sequence[str], bundles: Sequence[Bundle]
) -> Iterator[str]:
    """Yield the lines of a comparison: both runs, the first differing step and the first differing call."""
    for file, bundle in zip(files, bundles, strict=True):
        verdict = describe_verdict(bundle.diagnosis.get("verdict", ""))
        yield f"{file}: {verdict}, {len(bundle.trajectory.steps)} steps"
    if bundles[0].trajectory.task != bundles[1].trajectory.task:
        yield "the tasks differ"
    yield from _describe_value("step", difference.step, files)
    yield from _describe_value("tool call", difference.call, files)


def _describe_value(subject: str, difference: ValueDifference | None, files: Sequence[str]) -> Iterator[str]:
    if difference is None:
        yield f"all {subject}s are equal"
        return
    place = f" in {difference.field}" if difference.field else ""
    yield f"first different {subject}{place}"
    texts = [_encode_text(value) for value in difference.values]
    start = max(0, _count_common_characters(*texts) - _CONTEXT_CHARS)
    for file, step, text in zip(files, difference.steps, texts, strict=True):
        excerpt = ("…" if start else "") + to_one_line(text[start:], _EXCERPT_CHARS)
        yield f"  {file}: " + ("none" if step is None else f"step {step}: {excerpt}")


def _count_common_characters(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((count for count, (one, other) in pairs if one != other), min(len(first), len(second)))


def _encode_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
