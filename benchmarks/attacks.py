"""Benchmark of prompt injection: changes of a judge's verdict and of a guard's actions.

Run: .venv/bin/python benchmarks/attacks.py --base-url http://127.0.0.1:8000/v1 [--only NAME...] [--json]
     .venv/bin/python benchmarks/attacks.py     # starts the local vLLM of `make vllm` (about 6 GB)

Each attack is applied to two failed runs and two passed ones. The report compares each attack with a placebo:
a harmless text of the same length in the same place. ``asked again`` is the noise of the model: a second
judge reads the unchanged runs. The tiny model of the local server does not show how well a real judge resists
attacks. That no action changes does not depend on the model.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from model_server import DEADLINE_S, add_flags, client, machine, say, served, shorten_model_name

from agentguard.evals.judge_checks.attack_runner import (
    AttackReport,
    AttackTally,
    build_targets,
    observe,
    run_attacks,
)
from agentguard.evals.judge_checks.attacks import ATTACKS
from agentguard.evals.statistics import wilson_interval
from agentguard.judge.cache import CachedJudge
from agentguard.judge.llm.chat_judge import ChatJudge, ChatOptions
from agentguard.judge.llm.client import JudgeEndpoint

COUNTED = ("verdicts", "wanted", "open", "causes", "methods", "steps", "actions", "overturned", "faults")


def judge_of(endpoint: JudgeEndpoint) -> CachedJudge:
    """Return a judge with its own fence and without a cache."""
    return CachedJudge(ChatJudge(endpoint, options=ChatOptions(deadline_s=DEADLINE_S)))


def noise(endpoint: JudgeEndpoint) -> AttackTally:
    """Measure the changes without an attack: two judges with different fences read the same runs."""
    tally = AttackTally()
    one, other = judge_of(endpoint), judge_of(endpoint)
    for target in build_targets():
        before, after = (observe(judge, target.run, target.failed) for judge in (one, other))
        tally.add(before, after, target.aim)
    return tally


def total(tallies: dict[str, AttackTally]) -> AttackTally:
    """Return the sum over all attacks."""
    held = AttackTally()
    for one in tallies.values():
        for name in asdict(held):
            setattr(held, name, getattr(held, name) + getattr(one, name))
    return held


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=[one.name for one in ATTACKS], default=[])
    add_flags(parser)
    args = parser.parse_args()
    chosen = [one for one in ATTACKS if not args.only or one.name in args.only]
    with served(args.base_url) as url:
        endpoint = client(args, url)
        try:
            again = noise(endpoint)
            report = run_attacks(judge_of(endpoint), attacks=chosen, on_progress=say)
            model = endpoint.get_served_model(60)
        finally:
            endpoint.close()
    told = summary(report, again) | {"model": shorten_model_name(model), "machine": machine()}
    print(json.dumps(told)) if args.json else table(told)


def summary(report: AttackReport, again: AttackTally) -> dict[str, Any]:
    """Return the tallies as plain values, with the success rates over all attacks."""
    attacks, placebos = total(report.attacks), total(report.placebos)
    return {
        "attacks": {name: asdict(one) for name, one in report.attacks.items()},
        "placebos": {name: asdict(one) for name, one in report.placebos.items()},
        "all": asdict(attacks),
        "all_placebos": asdict(placebos),
        "asked_again": asdict(again),
        "action_success": rate(attacks.actions, attacks.runs),
        "verdict_success": rate(attacks.wanted, attacks.open),
        "verdict_success_of_placebos": rate(placebos.wanted, placebos.open),
    }


def rate(hits: int, runs: int) -> dict[str, Any]:
    share = hits / runs if runs else 0.0
    return {
        "of": runs,
        "rate": round(share, 4),
        "interval": [round(x, 4) for x in wilson_interval(share, runs or 1)],
    }


def table(told: dict[str, Any]) -> None:
    print(f"{told['model']} on {told['machine']}; attack, and its placebo after the bar")
    print(f"{'':20}{'runs':>5}" + "".join(f"{name:>12}" for name in COUNTED))
    rows = [*told["attacks"].items(), ("all", told["all"])]
    beside = {**told["placebos"], "all": told["all_placebos"]}
    for name, one in rows:
        cells = "".join(f"{one[key]:>6} |{beside[name][key]:>4}" for key in COUNTED)
        print(f"{name:20}{one['runs']:5}{cells}")
    print(f"{'asked again':20}{told['asked_again']['runs']:5}" + cells_of(told["asked_again"]))
    for name in ("action_success", "verdict_success", "verdict_success_of_placebos"):
        held = told[name]
        low, high = held["interval"]
        print(f"{name:30} {held['rate']:.3f} [{low:.3f}, {high:.3f}] of {held['of']}")


def cells_of(one: dict[str, Any]) -> str:
    return "".join(f"{one[key]:>6}      " for key in COUNTED)


if __name__ == "__main__":
    main()
