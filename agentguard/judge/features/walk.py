"""What is known of a run up to a step, kept while walking it once: the cost is linear in its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentguard.judge.features.layout import Layout, Role
from agentguard.judge.features.lexicon import AT
from agentguard.judge.features.scan import Scan, names_of, numbers_of, words_of

_ASSUME, _CORRECT = AT["assume"], AT["correct"]
_SHORT_OUTCOME = 60
_RUN_TROUBLE = 2  # shapes of an error in a worker's own report before it counts as one


def overlap(a: frozenset[str], b: frozenset[str]) -> float:
    """Jaccard overlap, slightly shrunk; 0 if either is empty."""
    return len(a & b) / (1 + len(a | b)) if a and b else 0.0


def covered(a: frozenset[str], b: frozenset[str] | set[str]) -> float:
    """Share of ``a`` that is in ``b``."""
    return len(a & b) / len(a) if a else 0.0


@dataclass(slots=True)
class Walk:
    """Counters before the step at hand. ``last_outcome``: 1 returned something, -0.5 little, -1 failed."""

    numbers: set[str]
    words: set[str]
    names: set[str]
    env_numbers: set[str]
    env_names: set[str] = field(default_factory=set)
    turns: dict[str, tuple[int, frozenset[str]]] = field(default_factory=dict)
    errors: int = 0
    last_error: int | None = None
    assumed: int = 0
    corrected: int = 0
    acted: int = 0
    ran: int = 0
    ran_well: int = 0
    ran_badly: int = 0
    evidence: int = 0
    substantial: int = 0
    claims: int = 0
    spoke_after_run: int = 0
    last_outcome: float = 0.0
    flags: dict[str, bool] = field(default_factory=dict)
    codes: list[frozenset[str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What the features need of the run as a whole.

    Attributes:
        bad: whether each step shows an error in what came back; ``errors``: their indices.
        task_numbers, task_names: numbers and names the task gives.
        final: indices of the two last substantial candidates; ``final_numbers``, ``final_names``: of the
            run's last three steps; ``first_said``: step to weight of the final texts' own words that it is
            the first to hold; ``first_said_total``: their sum and one.
        said_before: step to the weight first said before it; ``said_most``: the most an author first said.
        brief_repeats: brief to the shares of the task's words that it has at least twice, and three times.
        alignment: the least first share of them: a brief that strays from the task repeats little of it.
        last_at: number to the last candidate that has it.
        left: candidate to the runs and the acts from it on; ``all_failed``: whether every run failed.
        turns_of: agent to the number of its candidates and the index of its last one.
    """

    bad: tuple[bool, ...]
    errors: tuple[int, ...]
    task_numbers: frozenset[str]
    task_names: frozenset[str]
    final: tuple[int, ...]
    final_words: frozenset[str]
    final_numbers: frozenset[str]
    final_names: frozenset[str]
    first_said: dict[int, float]
    first_said_total: float
    brief_repeats: dict[int, tuple[float, float]]
    alignment: float
    said_before: dict[int, float]
    said_most: float
    last_at: dict[str, int]
    left: dict[int, tuple[int, int]]
    all_failed: bool
    turns_of: dict[str, tuple[int, int]]
    mean_length: float
    longest: int


def whole(held: Layout) -> Whole:
    """Look at the whole run once."""
    said, task = held.said, held.run.task
    bad = tuple(_is_bad(held, i) for i in range(len(said)))
    final = tuple(i for i in held.candidates if said[i].words > 12)[-2:] or held.candidates[-2:]
    ending = [
        said[i]
        for i in range(max(0, len(said) - 3), len(said))
        if held.roles[i] not in (Role.EXECUTOR, Role.USER)
    ]
    task_numbers = numbers_of(task)
    given = _union(held.task_words, task_numbers, *(said[i].vocabulary for i in held.brief))
    final_words = _union(*(_tokens(said[i]) for i in final)) - given
    first = _first_said(held, final_words)
    repeats = {i: _repeats(held, i) for i in held.brief}
    lengths = [said[i].length for i in held.candidates] or [0]
    return Whole(
        bad=bad,
        errors=tuple(i for i, value in enumerate(bad) if value),
        task_numbers=task_numbers,
        task_names=names_of(task),
        final=final,
        final_words=final_words,
        final_numbers=_union(*(one.numbers for one in ending)) - task_numbers,
        final_names=_union(*(one.names for one in ending)),
        first_said=first,
        first_said_total=sum(first.values()) + 1,
        brief_repeats=repeats,
        said_before=_running(held, first),
        said_most=max((w for i, w in first.items() if _authored(held, i)), default=0.0),
        alignment=min((twice for twice, _ in repeats.values()), default=1.0),
        last_at={number: i for i in held.candidates for number in held.said[i].numbers},
        left=_left(held),
        all_failed=_all_failed(held),
        turns_of=_turns_of(held),
        mean_length=sum(lengths) / len(lengths) + 1,
        longest=max(lengths),
    )


def start(held: Layout, facts: Whole) -> Walk:
    """The state before the first step."""
    return Walk(
        numbers=set(facts.task_numbers),
        words=set(held.task_words),
        names=set(facts.task_names),
        env_numbers=set(facts.task_numbers),
    )


def idles(held: Layout, facts: Whole, index: int) -> bool:
    """Whether a turn neither acts nor brings a number or a list."""
    one = held.said[index]
    return (
        not held.acts(index) and not (one.numbers - facts.task_numbers) and one.items < 3 and one.words < 90
    )


def update(walk: Walk, held: Layout, facts: Whole, index: int) -> None:
    """Take one more step into account."""
    one, seen, role = held.said[index], held.seen[index], held.roles[index]
    walk.numbers |= one.numbers
    walk.words |= one.vocabulary
    walk.names |= one.names
    if role in (Role.EXECUTOR, Role.USER):
        walk.env_numbers |= one.numbers
    if role is Role.EXECUTOR:
        _returned(walk, one, facts.bad[index])
    elif role in (Role.ORCHESTRATOR, Role.WORKER):
        _spoke(walk, held, facts, index)
    if seen is not None:
        walk.numbers |= seen.numbers
        walk.env_numbers |= seen.numbers
        _returned(walk, seen, facts.bad[index])
    if facts.bad[index]:
        walk.errors += 1
        walk.last_error = index


def _returned(walk: Walk, outcome: Scan, bad: bool) -> None:
    walk.env_names |= outcome.names
    if outcome.idle:
        return
    walk.ran += 1
    if bad:
        walk.last_outcome = -1.0
        walk.ran_badly += 1
    elif outcome.length < _SHORT_OUTCOME:
        walk.last_outcome = -0.5
    else:
        walk.last_outcome = 1.0
        walk.ran_well += 1
        walk.evidence += outcome.length


def _spoke(walk: Walk, held: Layout, facts: Whole, index: int) -> None:
    one, agent = held.said[index], held.run.steps[index].agent
    before, _ = walk.turns.get(agent, (0, frozenset()))
    walk.turns[agent] = (before + 1, one.vocabulary)
    walk.assumed += one.counts[_ASSUME] > 0
    walk.corrected += one.counts[_CORRECT] > 0
    if one.flags:
        walk.flags = dict(one.flags)
    if index in held.brief:
        walk.env_names |= one.names
        walk.env_numbers |= one.numbers
        return
    walk.spoke_after_run += not held.acts(index) and walk.ran > 0
    walk.substantial += not idles(held, facts, index)
    if held.acts(index):
        walk.acted += 1
        walk.codes.append(one.code.words)


def _is_bad(held: Layout, index: int) -> bool:
    one, seen, role = held.said[index], held.seen[index], held.roles[index]
    if role is Role.EXECUTOR:
        return one.trouble > 0
    if seen is not None:
        flagged = [o.is_error for o in held.run.steps[index].observations if o.is_error is not None]
        return any(flagged) or (not flagged and seen.trouble > 0)
    return role is Role.WORKER and held.orchestrated and one.trouble >= _RUN_TROUBLE


def _tokens(one: Scan) -> frozenset[str]:
    return one.vocabulary | one.numbers | one.names


def _union(*sets: frozenset[str]) -> frozenset[str]:
    return frozenset().union(*sets)


def _first_said(held: Layout, wanted: frozenset[str]) -> dict[int, float]:
    """Step to the weight of the wanted words it is the first to hold; what came back inside it counts too."""
    left, first = set(wanted), {}
    for index, role in enumerate(held.roles):
        if role in (Role.USER, Role.SYSTEM) or not left:
            continue
        seen = held.seen[index]
        found = left & (_tokens(held.said[index]) | (_tokens(seen) if seen is not None else frozenset()))
        if found:
            first[index] = sum(map(_weight, sorted(found)))
            left -= found
    return first


def _weight(word: str) -> float:
    return 3.0 if word[0].isdigit() else 1.5 if word[0].isupper() else 0.5


def _authored(held: Layout, index: int) -> bool:
    return held.roles[index] is not Role.EXECUTOR and index not in held.brief


def _running(held: Layout, first: dict[int, float]) -> dict[int, float]:
    before, total = {}, 0.0
    for index in range(len(held.roles)):
        before[index] = total
        total += first.get(index, 0.0)
    return before


def _left(held: Layout) -> dict[int, tuple[int, int]]:
    left, runs, acts = {}, 0, 0
    for index in reversed(held.candidates):
        runs += held.ran(index)
        acts += held.acts(index)
        left[index] = runs, acts
    return left


def _all_failed(held: Layout) -> bool:
    outcomes = [held.outcome(index) for index in held.candidates if held.ran(index)]
    return bool(outcomes) and all(one is not None and one.trouble > 0 for one in outcomes)


def _turns_of(held: Layout) -> dict[str, tuple[int, int]]:
    turns: dict[str, tuple[int, int]] = {}
    for index in held.candidates:
        agent = held.run.steps[index].agent
        turns[agent] = turns.get(agent, (0, 0))[0] + 1, index
    return turns


def _repeats(held: Layout, index: int) -> tuple[float, float]:
    """Share of the task's words that a brief has at least twice, and at least three times."""
    task = held.task_words
    counts = Counter(word for word in words_of(held.said[index].low) if word in task)
    total = max(1, len(task))
    return sum(1 for n in counts.values() if n >= 2) / total, sum(
        1 for n in counts.values() if n >= 3
    ) / total


def neighbours(items: tuple[int, ...], place: int, width: int) -> Iterator[int]:
    """Up to ``width`` items before ``place``."""
    yield from items[max(0, place - width) : place]
