"""Does recovery help: success under five procedures at the same budget of turns, in generated text games.

Run: .venv/bin/python benchmarks/recovery.py --games 300 [--seed 0] [--json]
     .venv/bin/python benchmarks/recovery.py --games 20 --agent chat --base-url URL --model NAME

Games are TextWorld's, generated from the seed in three difficulties. The agent is scripted, with memory,
reflection, planning and action parts; in each turn each kind of error of AgentErrorTaxonomy strikes it at its
rate. What it does after a correction is an assumption, and varied: it heeds each one, half of them, or none.
A heeded correction keeps errors away for three turns and makes it look again at what it believed.

The unit of the budget is one attempt: the turns that the game allows. ``success`` is at two attempts' cost.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentguard.evals.inject.error_rates import AGENT_ERRORS
from agentguard.evals.metrics import wilson
from agentguard.evals.paired import difference
from agentguard.testing.textworld.generated import Difficulty, Scenario, scenario
from agentguard.testing.textworld.library import GameLibrary
from agentguard.testing.textworld.process import Rates
from agentguard.testing.textworld.run import TextWorldRun
from agentguard.trajectory.model import Step, Trajectory

sys.path.insert(0, str(Path(__file__).resolve().parent))

from recovery_arms import ARMS, Attempted, Budgeted, Playable, make_guard

HEEDS = {"always": 1.0, "half": 0.5, "never": 0.0}
MIDDLE = "half"
ATTEMPTS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
BUDGET = 2.0
RATE = 0.15
"""Errors a turn, over all kinds: at this rate an unguarded agent fails about half of the games."""


class Scripted:
    """The scripted agent in a game, with a stated answer to corrections."""

    def __init__(self, given: Scenario, games: GameLibrary, *, seed: int, heeds: float, rate: float) -> None:
        total = sum(weight for code, weight in AGENT_ERRORS.items() if not code.startswith("system"))
        rates = {
            code: rate * weight / total
            for code, weight in AGENT_ERRORS.items()
            if not code.startswith("system")
        }
        self._run = TextWorldRun(given, games, seed=seed, errors=Rates(rates=rates))
        self._heeds = heeds
        self._struck: list[int] = []

    @property
    def trajectory(self) -> Trajectory:
        return self._run.trajectory

    @property
    def done(self) -> bool:
        return self._run.done

    @property
    def won(self) -> bool:
        return self._run.won

    @property
    def struck(self) -> tuple[int, ...]:
        return tuple(self._struck)

    def step(self) -> Step:
        before = len(self._run.errors.made)
        step = self._run.step()
        if len(self._run.errors.made) > before:
            self._struck.append(step.index)
        return step

    def truncate(self, to_step: int, correction: str) -> None:
        self._struck = [step for step in self._struck if step < to_step]
        self._run.truncate(to_step, correction, heeds=self._heeds)

    def correct(self, correction: str) -> None:
        self._run.correct(correction, heeds=self._heeds)


@dataclass(frozen=True)
class Outcome:
    """One game: the attempts' length, and what became of it under each procedure."""

    unit: int
    group: str
    results: dict[str, Attempted]

    def won(self, arm: str, attempts: float) -> bool:
        found = self.results[arm]
        return found.won and found.turns <= attempts * self.unit


Maker = Callable[[Scenario, GameLibrary, int], Playable]


def play(makers: dict[str, Maker], args: argparse.Namespace, *, most: float) -> dict[str, list[Outcome]]:
    """Every game under every procedure and assumption; a game is opened once for all of them."""
    found: dict[str, list[Outcome]] = {name: [] for name in makers}
    with GameLibrary(args.games_folder, held=4) as games:
        for number in range(args.games):
            given = scenario(args.seed * 1_000_000 + number, list(Difficulty)[number % len(Difficulty)])
            same: dict[str, Attempted] = {}
            for name, make in makers.items():
                results = {}
                for arm, procedure in ARMS.items():
                    if arm not in same:
                        budgeted = Budgeted(make(given, games, number), int(most * given.max_turns))
                        procedure(budgeted, GUARD)
                        results[arm] = budgeted.finish()
                    # What is never told anything does not depend on how it takes it.
                    if arm in UNTOLD:
                        results[arm] = same.setdefault(arm, results.get(arm) or same[arm])
                found[name].append(Outcome(given.max_turns, given.id, results))
            games.trim()
            _progress(args, number + 1)
    return found


GUARD = make_guard()
UNTOLD = ("none", "plain_retry")


def scripted(args: argparse.Namespace, heeds: dict[str, float]) -> dict[str, list[Outcome]]:
    def maker(share: float) -> Maker:
        return lambda given, games, seed: Scripted(given, games, seed=seed, heeds=share, rate=args.rate)

    return play({name: maker(share) for name, share in heeds.items()}, args, most=max(ATTEMPTS))


def chat(args: argparse.Namespace) -> dict[str, list[Outcome]]:
    from recovery_chat import ChatAgent, client

    endpoint = client(args.base_url, args.api_key)

    def make(given: Scenario, games: GameLibrary, seed: int) -> Playable:
        return ChatAgent(given, games, endpoint, model=args.model, seed=seed)

    return play({args.model: make}, args, most=BUDGET)


def report(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """All figures of one assumption."""
    count = len(outcomes)
    arms = list(ARMS)
    curve = {arm: {f"{a:g}": _share(o.won(arm, a) for o in outcomes) for a in ATTEMPTS} for arm in arms}
    success = {arm: curve[arm][f"{BUDGET:g}"] for arm in arms}
    passed = [o for o in outcomes if o.results["none"].won]
    lost = sum(not o.won("agentguard", BUDGET) for o in passed)
    aimed = sum(o.results["agentguard"].aimed for o in outcomes)
    peer = sum(o.results["agentdebug"].aimed for o in outcomes)
    against = {
        arm: difference(
            [float(o.won("agentguard", BUDGET)) for o in outcomes],
            [float(o.won(arm, BUDGET)) for o in outcomes],
            [o.group for o in outcomes],
        )
        for arm in arms
        if arm != "agentguard"
    }
    return {
        "games": count,
        "success": success,
        "interval": {arm: [round(x, 4) for x in wilson(success[arm], count)] for arm in arms},
        "curve": curve,
        "gain_over": {
            arm: {"mean": round(d.mean, 4), "interval": [round(d.low, 4), round(d.high, 4)]}
            for arm, d in against.items()
        },
        "false_alarm_loss": round(lost / count, 4),
        "disturbed": _share(o.results["agentguard"].online > 0 for o in passed),
        "hit_rate": round(sum(o.results["agentguard"].hit for o in outcomes) / aimed, 4) if aimed else None,
        "hit_rate_agentdebug": round(sum(o.results["agentdebug"].hit for o in outcomes) / peer, 4)
        if peer
        else None,
        "turns": {arm: _mean(o.results[arm].turns for o in outcomes) for arm in arms},
        "wasted_turns": {arm: _mean(o.results[arm].wasted for o in outcomes) for arm in arms},
        "triggers": dict(
            Counter(t for o in outcomes for t in o.results["agentguard"].triggers).most_common()
        ),
    }


def show(name: str, found: dict[str, Any]) -> None:
    print(f"\n{name}: {found['games']} games, success at the cost of so many attempts")
    print(f"{'':14}" + "".join(f"{a:>7g}" for a in ATTEMPTS) + "   95 % at 2      turns  wasted")
    for arm in ARMS:
        row = "".join(f"{found['curve'][arm][f'{a:g}']:7.3f}" for a in ATTEMPTS)
        low, high = found["interval"][arm]
        spent = f"{found['turns'][arm]:8.1f}{found['wasted_turns'][arm]:8.1f}"
        print(f"{arm:14}{row}   [{low:.3f}, {high:.3f}]{spent}")
    gain = ", ".join(
        f"{arm} {d['mean']:+.3f} [{d['interval'][0]:+.3f}, {d['interval'][1]:+.3f}]"
        for arm, d in found["gain_over"].items()
    )
    print(f"agentguard against, at 2 attempts' cost: {gain}")
    print(
        f"games lost that pass unguarded: {found['false_alarm_loss']:.4f} of all; passing runs that were "
        f"acted on: {found['disturbed']:.3f}; rollbacks that hit an injected step: {found['hit_rate']} "
        f"(agentdebug {found['hit_rate_agentdebug']})"
    )
    print("set off by: " + ", ".join(f"{name} {count}" for name, count in found["triggers"].items()))


def _share(flags: Any) -> float:
    held = [bool(flag) for flag in flags]
    return round(sum(held) / len(held), 4) if held else 0.0


def _mean(values: Any) -> float:
    held = list(values)
    return round(sum(held) / len(held), 2) if held else 0.0


def _progress(args: argparse.Namespace, done: int) -> None:
    if sys.stderr.isatty() or done % 20 == 0:
        took = time.perf_counter() - args.began
        print(f"{done} of {args.games} games, {took:.0f} s", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--games", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=RATE, help="errors a turn of the scripted agent")
    parser.add_argument(
        "--heeds", choices=[*HEEDS, "all"], default="all", help="one assumption, or all three"
    )
    parser.add_argument("--agent", choices=["scripted", "chat"], default="scripted")
    parser.add_argument("--base-url", help="of an OpenAI-compatible endpoint, for --agent chat")
    parser.add_argument("--model", default="model", help="name of the model there")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--games-folder", type=Path, help="keeps compiled games from one use to the next")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.games < 1:
        parser.error("--games must be at least 1")
    if args.agent == "chat" and not args.base_url:
        parser.error("--agent chat needs --base-url")
    args.began = time.perf_counter()
    if args.agent == "chat":
        played = chat(args)
    else:
        played = scripted(args, HEEDS if args.heeds == "all" else {args.heeds: HEEDS[args.heeds]})
    found = {name: report(outcomes) for name, outcomes in played.items()}
    headline = found.get(MIDDLE) or next(iter(found.values()))
    if args.json:
        print(json.dumps({**headline, "budget_attempts": BUDGET, "assumptions": found}))
        return
    for name, figures in found.items():
        show(f"corrections heeded: {name}" if args.agent == "scripted" else name, figures)


if __name__ == "__main__":
    main()
