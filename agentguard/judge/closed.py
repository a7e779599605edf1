"""Picking one of any number of options with labels that a model says in one token.

Up to twenty options are asked at once, a letter each. More are split, in their order, into as few groups of
nearly equal size as there can be (at most twenty). First the group is asked, then the option within it:
P(option) = P(group) × P(option | group). Groups are opened likeliest first, until `COVER` of the probability
is in opened groups or `BEAM` of them are open; what is in the others is shared evenly among their options. So
400 options cost at most 1 + `BEAM` calls, all over the same beginning of the prompt, and the probabilities
always sum to 1.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from agentguard.judge.base import Choice, Predicate, Question
from agentguard.judge.wire import ALPHABET, Failed, Picked, Spent

BEAM: Final = 4
COVER: Final = 0.95
MOST_OPTIONS: Final = 4_096

Ask = Callable[[Sequence[str]], Awaitable[Picked | Failed]]
"""Asks for one of some options as shown, at most twenty; the answer is keyed by their labels, in order."""


def options_of(question: Question) -> tuple[str, ...]:
    """The closed set of a question, in its order."""
    if isinstance(question, Predicate):
        return ("yes", "no")
    if isinstance(question, Choice):
        return question.options
    return tuple(str(n) for n in range(question.low, min(question.high, question.low + MOST_OPTIONS) + 1))


async def pick_option(options: Sequence[str], ask: Ask) -> Picked | Failed:
    """The probability of each option, keyed by the options themselves, which must differ."""
    if len(options) == 1:
        return Picked(probabilities={options[0]: 1.0}, mass=None, spent=Spent())
    if len(options) <= len(ALPHABET):
        picked = await ask(options)
        return picked if isinstance(picked, Failed) else _renamed(picked, options)
    groups = split(options)
    outer = await ask([_described(group) for group in groups])
    if isinstance(outer, Failed):
        return outer
    shares = list(outer.probabilities.values())
    opened = _opened(shares)
    inner = await asyncio.gather(*(pick_option(groups[i], ask) for i in opened))
    spent = outer.spent
    held = {option: shares[i] / len(group) for i, group in enumerate(groups) for option in group}
    for i, picked in zip(opened, inner, strict=True):
        if isinstance(picked, Failed):
            return picked
        spent += picked.spent
        held |= {option: shares[i] * p for option, p in picked.probabilities.items()}
    return Picked(probabilities=held, mass=outer.mass, spent=spent)


def split(options: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Consecutive groups, at most twenty, whose sizes differ by at most one."""
    count = min(len(ALPHABET), -(-len(options) // len(ALPHABET)))
    bounds = [len(options) * i // count for i in range(count + 1)]
    return tuple(tuple(options[a:b]) for a, b in itertools.pairwise(bounds))


def _opened(shares: Sequence[float]) -> list[int]:
    opened: list[int] = []
    covered = 0.0
    for i in sorted(range(len(shares)), key=lambda i: (-shares[i], i)):
        if covered >= COVER or len(opened) == BEAM:
            break
        opened.append(i)
        covered += shares[i]
    return opened


def _described(group: Sequence[str]) -> str:
    if all(option.isdecimal() for option in group):
        return f"one of {group[0]} to {group[-1]}"
    return "one of: " + "; ".join(group)


def _renamed(picked: Picked, options: Sequence[str]) -> Picked:
    named = dict(zip(options, picked.probabilities.values(), strict=True))
    return Picked(probabilities=named, mass=picked.mass, spent=picked.spent)
