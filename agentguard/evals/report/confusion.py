"""The third part of a report: what was taken for what."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from agentguard.evals.predict import Prediction
from agentguard.evals.report.page import heading, paragraph, table
from agentguard.evals.result import Evaluation
from agentguard.evals.scores import Case

_MOST: Final = 10  # names in a table; rarer ones are taken together
_OTHER: Final = "others"
_NOTHING: Final = "none"

Counts = Mapping[tuple[str, str], float]
_Gold = Callable[[Case], str | None]
_Said = Callable[[Prediction], str | None]


def confusion(result: Evaluation) -> Iterator[str]:
    """Yield a table each of outcomes, agents and modules, where the data set annotates two or more."""
    for title, gold, said in _KINDS:
        counts = confused(result, gold, said)
        if len({true for true, _ in counts}) > 1:
            yield heading(3, title)
            yield paragraph("A row is what is annotated, a column what was said; numbers are runs.", "soft")
            yield _table(title, counts)


def confused(result: Evaluation, gold: _Gold, said: _Said) -> Counts:
    """(annotated, said) to the number of runs, averaged over the repeats."""
    cases = {case.run: case for case in result.cases}
    counted: Counter[tuple[str, str]] = Counter()
    for prediction in result.predictions:
        true = gold(cases[prediction.run])
        if true is not None:
            counted[true, said(prediction) or _NOTHING] += 1
    return {pair: n / max(1, result.repeats) for pair, n in counted.items()}


def _outcome(case: Case) -> str | None:
    return None if case.failed is None else "failed" if case.failed else "passed"


_KINDS: Final[tuple[tuple[str, _Gold, _Said], ...]] = (
    ("Outcomes and verdicts", _outcome, lambda said: said.verdict),
    ("Agents", lambda case: case.agent, lambda said: said.agents[0] if said.agents else None),
    ("Modules", lambda case: case.module, lambda said: said.module),
)


def _table(title: str, counts: Counts) -> str:
    rows, columns = _names(counts, 0), _names(counts, 1)
    held: defaultdict[tuple[str, str], float] = defaultdict(float)
    for (true, said), n in counts.items():
        held[true if true in rows else _OTHER, said if said in columns else _OTHER] += n
    cells = [
        [
            true,
            *(
                (f"{held[true, said]:.3g}", _style(true, said)) if held[true, said] else ""
                for said in columns
            ),
        ]
        for true in rows
    ]
    return table(title, ("annotated", *columns), cells)


def _style(true: str, said: str) -> str:
    return "n yes" if true == said else "n"


def _names(counts: Counts, side: int) -> list[str]:
    """The most frequent names of one side, and a place for the others if there are more."""
    totals: defaultdict[str, float] = defaultdict(float)
    for pair, n in counts.items():
        totals[pair[side]] += n
    names = sorted(totals, key=lambda name: (-totals[name], name))
    return names if len(names) <= _MOST else [*(n for n in names[: _MOST - 1] if n != _OTHER), _OTHER]
