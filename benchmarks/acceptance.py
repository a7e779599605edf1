"""Benchmark of the acceptance-test loop: share of correct delivered outputs, and cost.

Run: .venv/bin/python benchmarks/acceptance.py --base-url http://127.0.0.1:8000/v1 [--tasks 200] [--json]
     .venv/bin/python benchmarks/acceptance.py          # starts the local vLLM of `make vllm` (about 6 GB)

A small model extracts five fields of a short order text as JSON. If the rules reject an output, the model
produces it again from the start. The prompt then also contains the reason and similar examples. The policy is
``RecoveryPolicy(escalations={"acceptance": {"restart": {"times": k}}})``. An output is correct if all five
fields match the text. The rules do not see the correct fields. They accept a wrong value if the text contains
it. The target is 87.5 % correct before and 98 % delivered correct after (Wang, IFIP WG 10.4, 2024).
``--hard`` sets the share of texts with such a second value, and with it the difficulty.

For comparison, a simulated generator is correct in 87.5 % of the cases, under rules with given error rates.
The report also contains the prediction for independent attempts.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from acceptance_tasks import FIELDS, SCHEMA, Extraction, extraction, rules
from model_server import served

from agentguard.evals.statistics import wilson_interval
from agentguard.guard import Guard
from agentguard.recover.acceptance.acceptance_test import AcceptanceTest, AcceptanceVerdict
from agentguard.recover.acceptance.rules import FunctionRule, extract_field, normalize_text
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.recovery_policy import RecoveryPolicy

EXAMPLES, POOL = 10, 64
SIMULATED_P = 0.875
_WORD = re.compile(r"\w+")
TOLD = "Extract the order as JSON."


@dataclass
class Attempt:
    """One output: whether it is correct, whether the rules accepted it, and its tokens."""

    correct: bool
    accepted: bool = False
    tokens: int = 0


@dataclass
class Played:
    """One task and its attempts, in order. The last attempt is delivered."""

    attempts: list[Attempt] = field(default_factory=list)

    def after(self, again: int) -> list[Attempt]:
        return self.attempts[: again + 1]


def guard_of(accept: AcceptanceTest, again: int) -> Guard:
    """Build the guard of the loop: no detectors, an acceptance test, a fixed number of restarts."""
    recover = RecoveryPolicy(
        escalations={"acceptance": {"restart": {"times": max(1, again)}}},
        budget=RecoveryBudget(rollbacks=again, rollbacks_per_step=again, extra_tokens=None),
    )
    return Guard(detectors={}, localizer="last_error", accept=accept, recover=recover)


class Model:
    """Client of one model that extracts orders; thread-safe."""

    def __init__(self, base_url: str, api_key: str, model: str, temperature: float) -> None:
        from openai import OpenAI

        self._client = OpenAI(base_url=base_url, api_key=api_key, max_retries=5, timeout=120.0)
        self.name = model or str(next(iter(self._client.models.list())).id)
        self._temperature = temperature

    def ask(self, said: str, seed: int, attempt: int) -> tuple[str, int]:
        """Return the output and its tokens, prompt included; ``said`` is the text plus guard additions."""
        text, mark, note = said.partition("\n\n[guard]")
        examples = "\n\n".join(
            f"Text: {one.text}\nJSON: {_json(one)}" for one in select_examples(text, attempt)
        )
        prompt = f"{TOLD}{mark}{note}\n\n{examples}\n\nText: {text}\nJSON:"
        form = {"type": "json_schema", "json_schema": {"name": "order", "strict": True, "schema": SCHEMA}}
        reply = self._client.chat.completions.create(
            model=self.name,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=120,
            temperature=0.0 if attempt == 0 else self._temperature,
            seed=seed * 100 + attempt,
            response_format=form,  # type: ignore[arg-type]
        )
        used = reply.usage
        return reply.choices[0].message.content or "", (used.total_tokens if used else 0)


def select_examples(text: str, attempt: int) -> list[Extraction]:
    """Return the examples of an attempt: first those shared by all tasks (one prefill), then similar ones.

    A small model repeats its mistake if the input is the same, so the input must differ.
    Words that few examples contain weigh most. The most similar example is last (Liu et al., arXiv
    2101.06804).
    """
    pool = [extraction(10_000_000 + one, hard=0.5) for one in range(POOL)]
    if attempt == 0:
        return covering(pool)
    words = [set(_WORD.findall(one.text)) for one in pool]
    seen = Counter(word for one in words for word in one)
    asked = set(_WORD.findall(text))
    near = [sum(1 / seen[word] for word in one & asked) for one in words]
    pool = [pool[at] for at in sorted(range(POOL), key=lambda at: -near[at])]
    return pool[(attempt - 1) * EXAMPLES : attempt * EXAMPLES][::-1]


def covering(pool: Sequence[Extraction]) -> list[Extraction]:
    """Return examples that cover as many different goods and cities as possible."""
    chosen: list[Extraction] = []
    seen: set[str] = set()
    while len(chosen) < EXAMPLES:
        left = [one for one in pool if one not in chosen]
        chosen.append(max(left, key=lambda one: len({one.gold["goods"], one.gold["city"]} - seen)))
        seen |= {chosen[-1].gold["goods"], chosen[-1].gold["city"]}
    return chosen


def play(task: Extraction, seed: int, model: Model, again: int) -> Played:
    """Play one task in the loop."""
    played = Played()

    def call(messages: list[dict[str, str]]) -> str:
        text, tokens = model.ask(messages[0]["content"], seed, len(played.attempts))
        played.attempts.append(Attempt(correct(text, task), tokens=tokens))
        return text or "{}"

    def record_verdict(verdict: AcceptanceVerdict) -> None:
        played.attempts[-1].accepted = verdict.accepted

    accept = AcceptanceTest(*rules().rules, observers=[record_verdict])
    with guard_of(accept, again).run(task.text) as run:
        while not run.done:
            run.tools(run.model(call))
    return played


def correct(output: str, task: Extraction) -> bool:
    return all(
        normalize_text(extract_field(output, name) or "") == normalize_text(task.gold[name])
        for name in FIELDS
    )


def simulated(seed: int, again: int, *, wrong_accepted: float, right_refused: float) -> Played:
    """Run the loop with a generator of 87.5 % accuracy, under rules with given error rates."""
    rng = random.Random(f"simulated:{seed}")
    played = Played()

    def call(messages: list[dict[str, str]]) -> str:
        del messages
        right = rng.random() < SIMULATED_P
        played.attempts.append(Attempt(right))
        return "right" if right else "wrong"

    def judge(output: str, run: Any) -> bool:
        del run
        accepted = rng.random() >= right_refused if output == "right" else rng.random() < wrong_accepted
        played.attempts[-1].accepted = accepted
        return accepted

    with guard_of(AcceptanceTest(FunctionRule(judge, name="simulated")), again).run("a task") as run:
        while not run.done:
            run.tools(run.model(call))
    return played


def report(played: Sequence[Played], most: int) -> dict[str, Any]:
    """Return the figures after each number of restarts; shares are fractions."""
    every = [attempt for one in played for attempt in one.attempts]
    wrong = [a for a in every if not a.correct]
    right = [a for a in every if a.correct]
    return {
        "tasks": len(played),
        "rules": {
            "wrong_accepted": _of(sum(a.accepted for a in wrong), len(wrong)),
            "right_refused": _of(sum(not a.accepted for a in right), len(right)),
        },
        "after": {str(again): _after(played, again) for again in range(most + 1)},
        "single_shot": _of(sum(one.attempts[0].correct for one in played), len(played)),
    }


def _after(played: Sequence[Played], again: int) -> dict[str, Any]:
    last = [one.after(again)[-1] for one in played]
    accepted = [a for a in last if a.accepted]
    spent = [one.after(again) for one in played]
    return {
        "accepted": _of(len(accepted), len(last)),
        "correct_of_accepted": _of(sum(a.correct for a in accepted), len(accepted)),
        "correct_of_all": _of(sum(a.correct for a in last), len(last)),
        "calls": round(sum(len(one) for one in spent) / len(spent), 3),
        "tokens": round(sum(a.tokens for one in spent for a in one) / len(spent), 1),
    }


def arithmetic(most: int, *, wrong_accepted: float, right_refused: float) -> dict[str, dict[str, float]]:
    """Return the prediction for independent attempts that are correct with the same probability."""
    good = SIMULATED_P * (1 - right_refused)
    accept = good + (1 - SIMULATED_P) * wrong_accepted
    table = {}
    for again in range(most + 1):
        by_then = 1 - (1 - accept) ** (again + 1)
        table[str(again)] = {
            "accepted": round(by_then, 4),
            "correct_of_accepted": round(good / accept, 4),
            "calls": round(by_then / accept, 4),
        }
    return table


def show(name: str, found: dict[str, Any]) -> None:
    faults = found["rules"]
    print(f"\n{name}: {found['tasks']} tasks, single shot correct {_format_share(found['single_shot'])}")
    print(
        f"rules: wrong outputs accepted {_format_share(faults['wrong_accepted'])}, "
        f"right ones refused {_format_share(faults['right_refused'])}"
    )
    print("re-executions   accepted   correct of accepted [95 %]   correct of all [95 %]   calls  tokens")
    for again, row in found["after"].items():
        print(
            f"{again:>13}   {row['accepted']['share']:8.3f}   "
            f"{_format_share(row['correct_of_accepted']):>26}   "
            f"{_format_share(row['correct_of_all']):>21}   {row['calls']:5.2f}  {row['tokens']:6.0f}"
        )


def _of(part: int, whole: int) -> dict[str, Any]:
    if not whole:
        return {"share": None, "of": 0, "interval": None}
    low, high = wilson_interval(part / whole, whole)
    return {"share": round(part / whole, 4), "of": whole, "interval": [round(low, 4), round(high, 4)]}


def _format_share(share: dict[str, Any]) -> str:
    if share["share"] is None:
        return "none"
    low, high = share["interval"]
    return f"{share['share']:.3f} [{low:.3f}, {high:.3f}]"


def _json(one: Extraction) -> str:
    return json.dumps({name: one.gold[name] for name in FIELDS})


def measured(args: argparse.Namespace) -> tuple[str, list[Played]]:
    done, lock = [0], threading.Lock()
    with served(args.base_url) as url, ThreadPoolExecutor(args.streams) as pool:
        model = Model(url, args.api_key, args.model, args.temperature)

        def one(seed: int) -> Played:
            played = play(extraction(seed, hard=args.hard), seed, model, args.again)
            with lock:
                done[0] += 1
                if done[0] % 20 == 0 or sys.stderr.isatty():
                    took = time.perf_counter() - args.began
                    print(f"{done[0]} of {args.tasks} tasks, {took:.0f} s", file=sys.stderr, flush=True)
            return played

        seeds = range(args.seed * 100_000, args.seed * 100_000 + args.tasks)
        return model.name, list(pool.map(one, seeds))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tasks", type=int, default=200)
    add("--seed", type=int, default=0)
    add("--again", type=int, default=4, help="re-executions at most")
    add("--hard", type=float, default=0.03, help="share of texts that name a second value")
    add("--temperature", type=float, default=0.7, help="of re-executions; the first attempt is greedy")
    add("--streams", type=int, default=8, help="tasks at a time")
    add("--base-url", help="of an OpenAI-compatible endpoint; the local vLLM if absent")
    add("--model", default="", help="name of the model there; the first that it lists if absent")
    add("--api-key", default="none")
    add("--simulated", type=int, default=2000, help="tasks of the simulated generator")
    add("--only-simulated", action="store_true")
    add("--json", action="store_true")
    args = parser.parse_args()
    args.began = time.perf_counter()
    return args


def main() -> None:
    args = arguments()
    found: dict[str, Any] = {}
    faults = {"wrong_accepted": 0.1, "right_refused": 0.02}
    if not args.only_simulated:
        from openai import OpenAIError

        try:
            name, played = measured(args)
        except (OpenAIError, StopIteration) as error:
            where = args.base_url or "the local vLLM"
            raise SystemExit(f"{where}: {type(error).__name__}: {error}") from None
        found[name] = report(played, args.again)
    drawn = [simulated(seed, args.again, **faults) for seed in range(args.simulated)]
    found["simulated"] = report(drawn, args.again) | {"arithmetic": arithmetic(args.again, **faults)}
    if args.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        show(name, figures)
    print("\nby arithmetic: " + json.dumps(found["simulated"]["arithmetic"]))


if __name__ == "__main__":
    main()
