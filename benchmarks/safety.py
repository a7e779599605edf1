"""Response safety: share of replies with a known tier that a served model rates correctly.

Run: .venv/bin/python benchmarks/safety.py --base-url http://127.0.0.1:8000/v1 [--model NAME] [--json]
     .venv/bin/python benchmarks/safety.py        # starts the local vLLM of `make vllm` (about 6 GB)

The replies are the safety cases of `agentguard judge check`, each a choice of four tiers.
The model rates them in three ways:
- ``plain``: once, as the command does;
- ``both orders``: in both orders of the options, with the mean of the two;
- ``agreed``: as a guard asks one judge; an answer counts only if the two orders agree.

The report compares the accuracy with chance (one in four) and with the most frequent tier. `safe told` is
the share of unsafe replies that were rated safe. ``auroc`` measures how well the probability of ``safe``
separates safe replies from others (0.5 is chance). Eighteen replies are few: see the intervals.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from model_server import DEADLINE_S, add_flags, client, machine, served, shorten_model_name

from agentguard.evals.judge_checks.reference_cases import SafetyCase, build_safety_cases
from agentguard.evals.metrics import auroc
from agentguard.evals.statistics import wilson_interval
from agentguard.judge.base import Judge
from agentguard.judge.cache import CachedJudge
from agentguard.judge.ensemble.question_variants import BothOrdersJudge
from agentguard.judge.ensemble.unanimous import UnanimousJudge
from agentguard.judge.llm.chat_judge import ChatJudge, ChatOptions
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.response_safety import (
    SafetyAssessment,
    SafetyRules,
    SafetyTier,
    build_assessment,
    build_safety_question,
)


def assess_cases(judge: Judge, cases: tuple[SafetyCase, ...]) -> list[SafetyAssessment]:
    """Return the judge's distribution for each reply; no tier if the judge could not answer."""
    held = []
    for one in cases:
        (answer,) = judge.decide(one.run, (build_safety_question(one.run.steps[-1]),))
        held.append(build_assessment(one.run.steps[-1].index, answer, SafetyRules()))
    return held


def likeliest(one: SafetyAssessment) -> SafetyTier | None:
    """Return the tier with the highest probability, as `agentguard judge check` does."""
    return max(one.probabilities, key=lambda tier: one.probabilities[tier]) if one.probabilities else None


def summary(cases: tuple[SafetyCase, ...], held: list[SafetyAssessment]) -> dict[str, Any]:
    """Return the figures of one way to ask; a missing answer is wrong."""
    said = [likeliest(one) for one in held]
    right = sum(tier is one.tier for tier, one in zip(said, cases, strict=True))
    risky = [tier for tier, one in zip(said, cases, strict=True) if one.tier is not SafetyTier.SAFE]
    low, high = wilson_interval(right / len(cases), len(cases))
    pairs = [
        (case.tier is SafetyTier.SAFE, one.probabilities[SafetyTier.SAFE])
        for case, one in zip(cases, held, strict=True)
        if one.probabilities
    ]
    both = len({safe for safe, _ in pairs}) == 2
    return {
        "n": len(cases),
        "answered": sum(tier is not None for tier in said),
        "right": right,
        "accuracy": round(right / len(cases), 4),
        "interval": [round(low, 4), round(high, 4)],
        "safe_told": round(risky.count(SafetyTier.SAFE) / len(risky), 4),
        "auroc": round(auroc(*zip(*pairs, strict=True)), 4) if both else None,
        "said": dict(Counter(str(tier) for tier in said)),
        "faults": dict(Counter(one.fault for one in held if one.fault)),
    }


def measured(endpoint: JudgeEndpoint, cases: tuple[SafetyCase, ...]) -> dict[str, Any]:
    """Measure all ways to ask; each distinct question is sent once."""
    judge = CachedJudge(ChatJudge(endpoint, options=ChatOptions(deadline_s=DEADLINE_S)))
    ways: dict[str, Judge] = {
        "plain": judge,
        "both orders": BothOrdersJudge(judge),
        "agreed": UnanimousJudge([judge]),
    }
    return {name: summary(cases, assess_cases(way, cases)) for name, way in ways.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_flags(parser)
    args = parser.parse_args()
    cases = build_safety_cases()
    tiers = Counter(str(one.tier) for one in cases)
    with served(args.base_url) as url:
        endpoint = client(args, url)
        try:
            ways = measured(endpoint, cases)
            model = endpoint.get_served_model(60)
        finally:
            endpoint.close()
    told = {
        "model": shorten_model_name(model),
        "machine": machine(),
        "tiers": dict(tiers),
        "chance": 1 / len(SafetyTier),
        "majority": round(max(tiers.values()) / len(cases), 4),
        "ways": ways,
    }
    print(json.dumps(told)) if args.json else table(told)


def table(told: dict[str, Any]) -> None:
    """Return the figures as a text table."""
    print(f"{told['model']} on {told['machine']}; replies by tier: {told['tiers']}")
    print(f"chance {told['chance']:.3f}, always the commonest tier {told['majority']:.3f}")
    titles = f"{'answered':>10}{'right':>7}{'accuracy':>10}{'95 %':>18}{'safe told':>11}{'auroc':>7}"
    print(f"{'':12}{'n':>4}{titles}")
    for name, one in told["ways"].items():
        low, high = one["interval"]
        area = "-" if one["auroc"] is None else f"{one['auroc']:.2f}"
        print(
            f"{name:12}{one['n']:4}{one['answered']:10}{one['right']:7}{one['accuracy']:10.3f}"
            f"{f'{low:.3f} to {high:.3f}':>18}{one['safe_told']:11.3f}{area:>7}"
        )
        print(f"{'':12}said: {one['said']}" + (f"; faults: {one['faults']}" if one["faults"] else ""))


if __name__ == "__main__":
    main()
