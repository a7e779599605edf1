"""A question whose answer is known, asked again and again: what shows a hang or a silent corruption.

A server that is stuck still answers ``/health`` (measured: an engine stopped by SIGSTOP), and a replica whose
memory or weights went bad answers quickly, and wrongly. So the canary is a real question with a deadline, and
its probabilities are held against those of the server when it was new: bf16 and batching move them by a few
hundredths (1.5e-3 at most was measured on one prompt), corruption moves them further.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        shares: for each question the probability of ``"A"``; empty if one was not answered.
        right: how many of the questions it got right.
        asked: how many there were.
        fault: why there is no answer.
        seconds: what the answers took together.
    """

    shares: tuple[float, ...] = ()
    right: int = 0
    asked: int = len(_ASKED)
    fault: str | None = None
    seconds: float = 0.0

    def distance(self, first: Canary) -> float:
        """Largest total variation distance of an answer to that of ``first``; 0 if either has none."""
        pairs = zip(self.shares, first.shares, strict=False)
        return max((abs(one - other) for one, other in pairs), default=0.0)

    def as_dict(self) -> Mapping[str, object]:
        """For a state that people and programs read."""
        return {"right": self.right, "asked": self.asked, "fault": self.fault, "seconds": self.seconds}


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
