"""Gain and cost of voting: correct calls against calls of the model, with the binomial prediction.

    python benchmarks/voting.py [--calls N] [--independent P] [--common C] [--coverage K] [--seed S] [--json]

The benchmark does not call a model. Generators return numbers, and the correct number is 0. With probability
C, a question is a *common* error of a generator: each of its answers is the same wrong number. Otherwise each
answer is wrong independently with probability P, in one of nine ways. The guard's own session holds the vote
and requests candidates as for an integration: in stages, and only candidates that can still decide the vote.
An undecided result is not delivered, as if the guard escalated to a person.

Predicted, with q = 1 - P and r = (1 - C) q:

- ``single``: the first answer: r correct, at one call;
- ``vote 2 of 3``: three answers of one generator: (1 - C)(q^3 + 3 q^2 P);
- ``n-version 2 of 3``: three generators with independent common errors: r^3 + 3 r^2 (1 - r);
- ``recovery block``: two other generators are alternates, and an acceptance test rejects a wrong answer with
  probability K and never a correct one: r (1 + f + f^2), with the probability f = (1 - r) K of a rejection;
- ``vote on writes``: every fifth call writes, and only those calls are voted on: their accuracy is that of
  the
  vote, at a fifth of the extra calls.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

from agentguard import _sync_async
from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis
from agentguard.recover.actions import SampleVariant
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.plan import RecoveryOutcome
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.recover.selective_redundancy import SelectiveRedundancy
from agentguard.runtime.session import Session, resolve_turn
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory
from agentguard.verdict import Verdict

RUN, WRITES, WRONG = 25, 5, 9
"""Calls of one run; with rare writes, one of this many calls writes; number of different wrong answers."""

TOOLS = tuple(ToolSpec(name=name) for name in ("read", "write"))


@dataclass(frozen=True, kw_only=True)
class Rates:
    """P, C and K."""

    independent: float
    common: float
    coverage: float

    @property
    def right(self) -> float:
        """Return the probability that one answer is correct."""
        return (1 - self.common) * (1 - self.independent)


class Generators:
    """All generators of one row, by name; counts the answers."""

    def __init__(self, rates: Rates, seed: int) -> None:
        self._rates, self._seed, self._dice = rates, seed, random.Random(seed)
        self.asked = 0

    def answer(self, question: int, model: str) -> int:
        """Return the next answer of the generator ``model``."""
        self.asked += 1
        shared = random.Random(f"{self._seed} {question} {model}")
        if shared.random() < self._rates.common:
            return shared.randint(1, WRONG)
        return self._dice.randint(1, WRONG) if self._dice.random() < self._rates.independent else 0

    def accept(self, run: Trajectory) -> bool:
        """Run the acceptance test."""
        return number(run.steps[-1]) == 0 or self._dice.random() >= self._rates.coverage


class Nothing:
    """Localizer that is never called."""

    name = "nothing"

    def locate(self, trajectory: Trajectory, findings: Any) -> Diagnosis:
        """Return no result."""
        del findings
        return Diagnosis(
            trajectory_id=trajectory.id, method=self.name, verdict=Verdict.UNDECIDED, probability=0.5
        )


def protections(generators: Generators) -> dict[str, SelectiveRedundancy | None]:
    """Return the settings of each row."""
    block = {"recovery_block": {"models": ["second", "third"], "accept": generators.accept}}
    return {
        "single": None,
        "vote 2 of 3": SelectiveRedundancy(),
        "n-version 2 of 3": SelectiveRedundancy(models=["second", "third"]),
        "recovery block": SelectiveRedundancy(strategy=block),
        "vote on writes": SelectiveRedundancy(),
    }


def predictions(rates: Rates) -> dict[str, tuple[float, float]]:
    """Return the share of correct calls, and the answers per call, of each row."""
    p, c, r = rates.independent, rates.common, rates.right
    q, f = 1 - p, (1 - r) * rates.coverage
    same = c + (1 - c) * (q * q + p * p / WRONG)  # probability that two answers of one generator agree
    agree = r * r + (1 - r) ** 2 / WRONG  # the same for two generators
    vote = ((1 - c) * (q**3 + 3 * q * q * p), 3 - same)
    return {
        "single": (r, 1.0),
        "vote 2 of 3": vote,
        "n-version 2 of 3": (r**3 + 3 * r * r * (1 - r), 3 - agree),
        "recovery block": (r * (1 + f + f * f), 1 + f + f * f),
        "vote on writes": (vote[0], 1 + (vote[1] - 1) / WRITES),
    }


def play(name: str, rates: Rates, *, calls: int, seed: int) -> dict[str, Any]:
    """Run the generators under a guard; count the calls that write as correct or wrong."""
    generators = Generators(rates, seed)
    recover = RecoveryPolicy(
        redundancy=protections(generators)[name],
        budget=RecoveryBudget(resamples=None, extra_tokens=None),
        on_fail="hint",
    )
    guard = Guard(detectors={}, localizer=Nothing(), recover=recover)
    guard.tool(effect="write", name="write")(len)
    guard.tool(effect="read", name="read")(len)
    every = WRITES if name == "vote on writes" else 1
    right = wrong = sampled = 0
    for question in range(calls * every):
        if question % RUN == 0:
            meta = Trajectory(id=f"{question}", format="event_log", task="", steps=(), tools=TOOLS)
            session = guard.session(meta, Capabilities(sample=True))
        writes = question % every == 0
        before, known = generators.asked, len(session.recoveries)
        step = decide(session, "write" if writes else "read", asker(generators, question))
        sampled += generators.asked - before > 1
        undecided = any(one.outcome is RecoveryOutcome.REFUTED for one in session.recoveries[known:])
        right += writes and not undecided and number(step) == 0
        wrong += writes and not undecided and number(step) != 0
    return _row(name, rates, right=right, wrong=wrong, calls=calls) | {
        "asked_a_call": round(generators.asked / (calls * every), 3),
        "calls_sampled": round(sampled / (calls * every), 3),
    }


def asker(generators: Generators, question: int) -> Callable[[SampleVariant, str], Step]:
    """Return a function that requests one answer to a question."""

    def ask(variant: SampleVariant, tool: str) -> Step:
        given = {"number": generators.answer(question, variant.model or "first")}
        call = ToolCall(id="c", name=tool, arguments=given)
        return Step(index=0, source=Source.AGENT, agent="generator", tool_calls=(call,))

    return ask


def decide(session: Session, tool: str, ask: Callable[[SampleVariant, str], Step]) -> Step:
    """Decide one turn as an integration does."""
    body = resolve_turn(session, ask(SampleVariant(), tool), lambda one: one, lambda one: one)
    choice = _sync_async.run_sync(body, lambda variant: ask(variant, tool))
    session.commit(replace(choice.turn, observations=(Observation(content="noted", call_id="c"),)))
    return choice.turn


def number(step: Step) -> int:
    """Return the number in an answer."""
    return int((step.tool_calls[0].arguments or {})["number"])


def wilson(hits: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share (E. B. Wilson, JASA 22, 1927)."""
    share, square = hits / count, z * z / count
    middle = (share + square / 2) / (1 + square)
    half = z * sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return middle - half, middle + half


def _row(name: str, rates: Rates, *, right: int, wrong: int, calls: int) -> dict[str, Any]:
    success, cost = predictions(rates)[name]
    low, high = wilson(right, calls)
    return {
        "name": name,
        "right": round(right / calls, 4),
        "interval": [round(low, 4), round(high, 4)],
        "right_predicted": round(success, 4),
        "wrong_delivered": round(wrong / calls, 4),
        "asked_predicted": round(cost, 3),
    }


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=1500, help="calls that count, of each row")
    parser.add_argument("--independent", type=float, default=0.15, help="P")
    parser.add_argument("--common", type=float, default=0.05, help="C")
    parser.add_argument("--coverage", type=float, default=0.9, help="K")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    rates = Rates(independent=given.independent, common=given.common, coverage=given.coverage)
    began = time.perf_counter()
    rows = [play(name, rates, calls=given.calls, seed=given.seed) for name in predictions(rates)]
    if given.json:
        print(json.dumps({"rows": rows, "seconds": round(time.perf_counter() - began, 1), **vars(given)}))
        return 0
    print("| asked | right | predicted | wrong | asked a call | predicted | calls sampled |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        low, high = (f"{100 * end:.1f}" for end in row["interval"])
        cells = (
            row["name"],
            f"{100 * row['right']:.1f} % ({low}–{high})",
            f"{100 * row['right_predicted']:.1f} %",
            f"{100 * row['wrong_delivered']:.1f} %",
            f"{row['asked_a_call']:.2f}",
            f"{row['asked_predicted']:.2f}",
            f"{100 * row['calls_sampled']:.0f} %",
        )
        print("| " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
