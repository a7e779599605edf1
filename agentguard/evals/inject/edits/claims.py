"""Errors in what an agent says: a result misread, and a value recalled that never was."""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentguard.evals.inject.edits.base import Rewritten, Tail
from agentguard.evals.inject.edits.carry import Swap, carry
from agentguard.evals.inject.edits.draft import Draft
from agentguard.evals.inject.edits.maker import Maker
from agentguard.evals.inject.edits.reading import Reading
from agentguard.evals.inject.edits.values import Kind, Value, like, variants

_RECALLED = (Kind.AMOUNT, Kind.CODE, Kind.DATE)


class WrongClaim(Maker):
    """A turn states a value wrongly; ``reason`` says so, with ``{old}`` and ``{new}``."""

    reason: str

    def stated(self, read: Reading, step: int, swaps: list[Swap], rng: random.Random) -> Rewritten | None:
        """The first of the swaps, in an order drawn by ``rng``, that can honestly be carried on."""
        for swap in _dealt(swaps, rng):
            draft = Draft(read, rng)
            tail = carry(draft, step, swap, rng)
            if tail is not None and (tail is Tail.TRUNCATED or _matters(draft)):
                told = self.reason.format(old=swap.old.text, new=swap.new)
                cause = self.cause(read.steps[step].agent, step, told)
                return draft.finish(step=step, cause=cause, tail=tail)
        return None


class MisreadObservation(WrongClaim):
    """A value of the result just received is stated wrongly, and used wrongly from there on."""

    name = "misread_observation"
    summary = "a value of the last result is stated wrongly and used so from there on"
    codes = (
        "agent_error:reflection.outcome_misinterpretation",
        "agentrx:misinterpretation_of_tool_output",
    )
    module = "reflection"
    reason = "The result says {old}; the agent states {new}."

    def make(self, read: Reading, step: int, rng: random.Random) -> Rewritten | None:
        """Take another value of the same result, or a slip of it."""
        source = read.last_seen(step)
        if source is None:
            return None
        swaps = [
            Swap(old=old, new=new, invented=new.lower() not in read.known, users=True)
            for old in _sorted(read.said[step])
            if old in read.seen[source] and read.origin(old) == source and _used(read, step, old)
            for new in _misread(read, source, old)
        ]
        return self.stated(read, step, swaps, rng)


class HallucinatedMemory(WrongClaim):
    """A value from earlier in the run is recalled as one that nobody ever gave."""

    name = "hallucinated_memory"
    summary = "a value from earlier in the run is recalled as one that stands nowhere"
    codes = ("agent_error:memory.hallucination", "agentrx:invention_of_new_information")
    module = "memory"
    reason = "The agent recalls {new}, which nobody gave; it was {old}."

    def make(self, read: Reading, step: int, rng: random.Random) -> Rewritten | None:
        """Take a slip of a value that does not stand in the last result."""
        source = read.last_seen(step)
        fresh = read.seen[source] if source is not None else frozenset()
        swaps = []
        for old in _sorted(read.said[step]):
            origin = read.origin(old)
            if old.kind not in _RECALLED or old in fresh or origin is None or origin >= step:
                continue
            if not _used(read, step, old):
                continue
            from_user = origin < 0 or not read.seen[origin] & {old}
            slips = [new for new in variants(old) if new.lower() not in read.known]
            swaps += [Swap(old=old, new=new, invented=True, users=not from_user) for new in slips]
        return self.stated(read, step, swaps, rng)


MISREAD_OBSERVATION = MisreadObservation()
HALLUCINATED_MEMORY = HallucinatedMemory()


def _used(read: Reading, step: int, value: Value) -> bool:
    """Whether the value reaches a later call or the agent's last words at all: most do not."""
    talk = [i for i in range(step, len(read.steps)) if read.is_agent(i) and read.steps[i].content]
    acted = any(value in read.sent[i] for i in range(step, len(read.steps)))
    return acted or (bool(talk) and value in read.said[talk[-1]])


def _matters(draft: Draft) -> bool:
    """Whether the wrong value reaches a call or the agent's last words: a slip in passing fails no run."""
    source = draft.read.steps
    talk = [i for i in range(len(draft)) if draft.read.is_agent(i) and source[i].content]
    acted = any(draft[i].tool_calls != source[i].tool_calls for i in range(len(draft)))
    return acted or (bool(talk) and draft[talk[-1]].content != source[talk[-1]].content)


def _dealt(swaps: list[Swap], rng: random.Random) -> Iterator[Swap]:
    """All swaps; each value is as likely to come first, however many slips it has."""
    shuffled = rng.sample(swaps, len(swaps))
    olds = list(dict.fromkeys(swap.old for swap in swaps))
    rng.shuffle(olds)
    yield from sorted(shuffled, key=lambda swap: olds.index(swap.old))


def _misread(read: Reading, source: int, old: Value) -> list[str]:
    beside = [one.text for one in _sorted(read.seen[source]) if like(one, old)]
    return beside + [slip for slip in variants(old) if slip.lower() not in read.known]


def _sorted(values: frozenset[Value]) -> list[Value]:
    """Sets have no order of their own: the draw must not depend on it."""
    return sorted(values, key=lambda value: (value.kind, value.text))
