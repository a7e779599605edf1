"""A question whose answer is known, asked again and again: what shows a hang or a silent corruption.

A server that is stuck still answers ``/health`` (measured: an engine stopped by SIGSTOP), and a replica whose
memory or weights went bad answers quickly, and wrongly. So the canary is a real question with a deadline, and
its probabilities are held against those of the server when it was new: bf16 and batching move them by a few
hundredths (1.5e-3 at most was measured on one prompt), corruption moves them further.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agentguard.judge.endpoint import Endpoint
from agentguard.judge.wire import Failed, Message

FARTHEST: Final = 0.25
"""Total variation distance from the first answer at which a server counts as corrupted."""

_ASKED: Final = (
    ("A cat has four legs. How many legs does the cat have?\nA: four\nB: nine", "A"),
    ("The door is open. Is the door open or closed?\nA: closed\nB: open", "B"),
    ("First came red, then came blue. Which came second?\nA: red\nB: blue", "B"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """How a server answered.

    Attributes:
        shares: probabilities: for each question that of ``"A"``, or all that a classifier or scorer gave;
            empty if a question was not answered.
        vectors: what an embedding model gave.
        right: how many of the questions it got right.
        asked: how many there were.
        fault: why there is no answer.
        seconds: what the answers took together.
        farthest: the distance from the first answer at which its server counts as corrupted.
    """

    shares: tuple[float, ...] = ()
    vectors: tuple[tuple[float, ...], ...] = ()
    right: int = 0
    asked: int = len(_ASKED)
    fault: str | None = None
    seconds: float = 0.0
    farthest: float = FARTHEST

    def distance(self, first: Canary) -> float:
        """How far an answer is from that of ``first`` at most; 0 if either has none.

        Of probabilities their difference, of vectors 1 minus their cosine; 1 where there are more or fewer.
        """
        if not (self.shares or self.vectors) or not (first.shares or first.vectors):
            return 0.0
        sizes = [(len(one.shares), *map(len, one.vectors)) for one in (self, first)]
        if sizes[0] != sizes[1]:
            return 1.0
        shares = [abs(one - other) for one, other in zip(self.shares, first.shares, strict=True)]
        vectors = [1.0 - cosine(*pair) for pair in zip(self.vectors, first.vectors, strict=True)]
        return max((*shares, *vectors))

    def strays(self, first: Canary) -> bool:
        """Whether its answers are no longer those of ``first``."""
        return self.distance(first) > self.farthest

    def as_dict(self) -> Mapping[str, object]:
        """For a state that people and programs read."""
        return {"right": self.right, "asked": self.asked, "fault": self.fault, "seconds": self.seconds}


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Of the angle between two vectors of one length; 0 where either has none."""
    length = math.sqrt(math.fsum(x * x for x in one)) * math.sqrt(math.fsum(y * y for y in other))
    return math.fsum(x * y for x, y in zip(one, other, strict=True)) / length if length else 0.0


async def ask(endpoint: Endpoint, deadline_s: float) -> Canary:
    """Ask all questions, one after the other, each within the deadline."""
    shares, right, seconds = [], 0, 0.0
    for text, answer in _ASKED:
        message: Message = {"role": "user", "content": f"{text}\nAnswer with one capital letter."}
        picked = await endpoint.pick((message,), ("A", "B"), deadline_s=deadline_s)
        if isinstance(picked, Failed):
            return Canary(fault=str(picked.fault), seconds=seconds)
        shares.append(picked.probabilities["A"])
        right += max(picked.probabilities, key=lambda label: picked.probabilities[label]) == answer
        seconds += picked.spent.seconds
    return Canary(shares=tuple(shares), right=right, seconds=seconds)
