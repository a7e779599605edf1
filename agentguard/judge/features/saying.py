"""Features of what a step says: its form, its code, and the classes of its words and its neighbours'."""

from __future__ import annotations

import math

from agentguard.judge.features.layout import Layout
from agentguard.judge.features.lexicon import AT, NAMES
from agentguard.judge.features.scan import Scan
from agentguard.judge.features.tools import changes
from agentguard.judge.features.walk import Walk, Whole, overlap

_PER = 30.0  # words a rate counts over
_SMOOTH = 5.0
_ASSUME = AT["assume"]
_WORDS = tuple(f"wording.{name}" for name in NAMES)
_RATES = tuple(f"rate.{name}" for name in NAMES)
_NEXT = tuple(f"next.{name}" for name in NAMES)
_PREVIOUS = tuple(f"previous.{name}" for name in NAMES)
_ZEROS = (0.0,) * len(NAMES)


def saying(held: Layout, facts: Whole, walk: Walk, index: int) -> dict[str, float]:
    """Form, code and wording of one candidate."""
    place, candidates = held.place[index], held.candidates
    before = held.said[candidates[place - 1]] if place else None
    after = held.said[candidates[place + 1]] if place + 1 < len(candidates) else None
    one = held.said[index]
    out = _form(one, facts, before, after)
    calls = held.run.steps[index].tool_calls
    out["form.calls"] = len(calls)
    out["form.changes"] = sum(changes(call.name) for call in calls)
    out |= _code(held, walk, index)
    out |= zip(_WORDS, map(math.log1p, one.counts), strict=True)
    out |= zip(_RATES, _rates(one), strict=True)
    out |= zip(_NEXT, _rates(after), strict=True)
    out |= zip(_PREVIOUS, _rates(before), strict=True)
    assumes = one.counts[_ASSUME] > 0
    out["wording.first_to_assume"] = assumes and walk.assumed == 0
    out["wording.assumed_before"] = walk.assumed
    return out


def _rates(one: Scan | None) -> tuple[float, ...]:
    if one is None:
        return _ZEROS
    scale = _PER / (one.words + _SMOOTH)
    return tuple(count * scale for count in one.counts)


def _form(one: Scan, facts: Whole, before: Scan | None, after: Scan | None) -> dict[str, float]:
    return {
        "form.code": one.has_code,
        "form.fences": one.fences,
        "form.literals": math.log1p(one.literals),
        "form.items": math.log1p(one.items),
        "form.headings": math.log1p(one.headings),
        "form.questions": one.questions,
        "form.asks": one.asks,
        "form.ends": one.ends,
        "form.length": math.log1p(one.length),
        "form.relative_length": one.length / facts.mean_length,
        "form.longest": one.length >= facts.longest,
        "form.next_length": math.log1p(after.length) if after else 0.0,
        "form.previous_length": math.log1p(before.length) if before else 0.0,
        "form.next_code": after.has_code if after else 0.0,
        "form.previous_code": before.has_code if before else 0.0,
        "form.next_ends": after.ends if after else 0.0,
    }


def _code(held: Layout, walk: Walk, index: int) -> dict[str, float]:
    one = held.said[index]
    code, place = one.code, held.place[index]
    again = later = fresh = 0.0
    if one.has_code:
        nearby = held.candidates[place + 1 : place + 9]
        again = max((overlap(code.words, seen) for seen in walk.codes[-8:]), default=0.0)
        later = max((overlap(code.words, held.said[i].code.words) for i in nearby), default=0.0)
        fresh = math.log1p(len(one.numbers - one.prose_numbers - walk.env_numbers - walk.numbers))
    return {
        "code.length": math.log1p(code.length),
        "code.stand_ins": code.stand_ins,
        "code.strings": math.log1p(code.strings),
        "code.catches": code.catches,
        "code.functions": code.functions,
        "code.numbers": math.log1p(code.numbers),
        "code.comments": math.log1p(code.comments),
        "code.http": code.http,
        "code.reads": code.reads,
        "code.searches": code.searches,
        "code.imports": code.imports,
        "code.share": code.length / (1 + one.length),
        "code.like_earlier": again,
        "code.like_later": later,
        "code.unsourced_numbers": fresh,
        "code.not_run": one.has_code and index not in held.brief and not held.ran(index),
    }
