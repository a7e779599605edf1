"""Choice among any number of options with single-token labels.

One question has up to twenty options, one letter each. More options are split, in their order, into as few
groups of nearly equal size as possible (at most twenty). The model first chooses the group, then the option
within it: P(option) = P(group) × P(option | group).

Groups are opened in order of probability, until `PROBABILITY_COVERAGE` of the probability is in opened groups
or `BEAM_WIDTH` groups are open. The options of an unopened group share its probability evenly. So 400 options
take at most 1 + `BEAM_WIDTH` calls, all with the same beginning of the prompt. The probabilities sum to 1.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from agentguard.judge.base import ChoiceQuestion, Predicate, Question
from agentguard.judge.llm.types import LABELS, CallError, CallUsage, LabelProbabilities

BEAM_WIDTH: Final = 4
PROBABILITY_COVERAGE: Final = 0.95
MAX_OPTIONS: Final = 4_096

AskLabels = Callable[[Sequence[str]], Awaitable[LabelProbabilities | CallError]]
"""Function that asks for one of at most twenty options; the keys of its answer are their labels, in order."""


def list_options(question: Question) -> tuple[str, ...]:
    """Return the closed set of a question, in its order."""
    if isinstance(question, Predicate):
        return ("yes", "no")
    if isinstance(question, ChoiceQuestion):
        return question.options
    return tuple(str(n) for n in range(question.low, min(question.high, question.low + MAX_OPTIONS) + 1))


async def pick_option(options: Sequence[str], ask: AskLabels) -> LabelProbabilities | CallError:
    """Return the probability of each option, keyed by the options; these must be distinct."""
    if len(options) == 1:
        return LabelProbabilities(probabilities={options[0]: 1.0}, label_mass=None, usage=CallUsage())
    if len(options) <= len(LABELS):
        result = await ask(options)
        return result if isinstance(result, CallError) else _rekey(result, options)
    groups = split_options(options)
    outer = await ask([_describe_group(group) for group in groups])
    if isinstance(outer, CallError):
        return outer
    shares = list(outer.probabilities.values())
    open_groups = _select_groups(shares)
    inner = await asyncio.gather(*(pick_option(groups[i], ask) for i in open_groups))
    usage, masses = outer.usage, [outer.label_mass]
    probabilities = {option: shares[i] / len(group) for i, group in enumerate(groups) for option in group}
    for i, result in zip(open_groups, inner, strict=True):
        if isinstance(result, CallError):
            return result
        usage += result.usage
        masses.append(result.label_mass)
        probabilities |= {option: shares[i] * p for option, p in result.probabilities.items()}
    known = [mass for mass in masses if mass is not None]
    return LabelProbabilities(probabilities=probabilities, label_mass=min(known, default=None), usage=usage)


def trace_choice(options: Sequence[str], option: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the shown options and the index of each choice of `pick_option` that leads to an option."""
    if len(options) == 1:
        return
    if len(options) <= len(LABELS):
        yield tuple(options), options.index(option)
        return
    groups = split_options(options)
    place = next(i for i, group in enumerate(groups) if option in group)
    yield tuple(map(_describe_group, groups)), place
    yield from trace_choice(groups[place], option)


def split_options(options: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Split into consecutive groups, at most twenty, whose sizes differ by at most one."""
    count = min(len(LABELS), -(-len(options) // len(LABELS)))
    bounds = [len(options) * i // count for i in range(count + 1)]
    return tuple(tuple(options[a:b]) for a, b in itertools.pairwise(bounds))


def _select_groups(probabilities: Sequence[float]) -> list[int]:
    indices: list[int] = []
    covered = 0.0
    for i in sorted(range(len(probabilities)), key=lambda i: (-probabilities[i], i)):
        if covered >= PROBABILITY_COVERAGE or len(indices) == BEAM_WIDTH:
            break
        indices.append(i)
        covered += probabilities[i]
    return indices


def _describe_group(group: Sequence[str]) -> str:
    if all(option.isdecimal() for option in group):
        return f"one of {group[0]} to {group[-1]}"
    return "one of: " + "; ".join(group)


def _rekey(picked: LabelProbabilities, options: Sequence[str]) -> LabelProbabilities:
    probabilities = dict(zip(options, picked.probabilities.values(), strict=True))
    return LabelProbabilities(probabilities=probabilities, label_mass=picked.label_mass, usage=picked.usage)
