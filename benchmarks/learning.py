"""Benchmark of learning from recoveries: a stream of generated games, with and without learning.

    python benchmarks/learning.py --games 120 [--seed 0] [--games-folder /tmp/tw_games] [--json]

The games and the scripted agent are those of `recovery.py`, under the middle assumption: the agent follows
half of the corrections. Each game is played twice from the same start with the same random numbers: under a
guard without schemata, and under a guard that learnt from the earlier games. Schemata of the same task are
not used. ``success`` is at the cost of ``--budget`` attempts. The default is 1.25, since at 2 nearly all
games are won. ``hit`` is the share of rollbacks to a step with an injected error. The report shows the second
half of the stream separately, since the first half has few earlier games.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from agentguard_lab.textworld.game_cache import GameLibrary
from agentguard_lab.textworld.scenarios import Difficulty, build_scenario
from recovery_arms import CAN, Attempted, Budgeted, _carry_out, _turn, make_guard
from recovery_scripted import Scripted

from agentguard.evals.statistics import mcnemar_p_value, wilson_interval
from agentguard.guard import Guard
from agentguard.runtime.error_schema_feedback import SchemaFeedback
from agentguard.schemata.live_cache import SchemaCache
from agentguard.schemata.model import SchemaStatus

ACCEPTANCE_RATE, RATE = 0.5, 0.25


def play(run: Scripted, most: int, guard: Guard) -> tuple[Attempted, Counter[str]]:
    """Play one game under a guard, report the outcome to it, and return the results of its recoveries."""
    held = Budgeted(run, most)
    meta = replace(run.trajectory, steps=(), branches=())
    with guard.override(accept=lambda _: run.won or "the task is not done"):
        session = guard.session(meta, CAN)
    while not held.over:
        plan = session.end() if run.done else session.check_boundary()
        if plan is not None:
            _carry_out(held, plan, session)
        elif run.done:
            break
        if not run.done and held.left > 0:
            _turn(held, session)
    session.end(is_refusable=False)
    if guard.components.schemata is not None and not guard.components.schemata.flush(60):
        raise SystemExit("learning did not come to an end")
    told = Counter(str(one.outcome) for one in session.recoveries)
    told["spoke"] = sum(bool(one.schemata) for one in session.recoveries)
    return held.finish(), told


def compared(off: Sequence[Attempted], on: Sequence[Attempted]) -> dict[str, Any]:
    """Compare success and hits of the same games with learning off and on: 95 % intervals, paired test."""
    gained = sum(b.won and not a.won for a, b in zip(off, on, strict=True))
    lost = sum(a.won and not b.won for a, b in zip(off, on, strict=True))
    made: dict[str, Any] = {
        "games": len(on),
        "gained": gained,
        "lost": lost,
        "mcnemar_p": mcnemar_p_value(gained, lost),
    }
    for name, played in (("off", off), ("on", on)):
        won = sum(one.won for one in played) / max(1, len(played))
        aimed = sum(one.aimed for one in played)
        hit = sum(one.hit for one in played) / max(1, aimed)
        made[name] = {
            "success": round(won, 4),
            "success_interval": [round(x, 4) for x in wilson_interval(won, max(1, len(played)))],
            "aimed": aimed,
            "hit": round(hit, 4),
            "hit_interval": [round(x, 4) for x in wilson_interval(hit, max(1, aimed))],
            "turns": round(sum(one.turns for one in played) / max(1, len(played)), 1),
        }
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Play the stream and print the results."""
    parser = argparse.ArgumentParser(description="Does it help a guard to learn from its recoveries.")
    parser.add_argument("--games", type=int, default=120)
    parser.add_argument("--budget", type=float, default=1.25, help="attempts that a game may cost")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--games-folder", default=None, help="keeps compiled games for the next time")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(argv)
    learning = SchemaFeedback(SchemaCache(), allow_same_task=False)
    without, taught = make_guard(), make_guard()
    played: dict[str, list[Attempted]] = {"off": [], "on": []}
    told: dict[str, Counter[str]] = {"off": Counter(), "on": Counter()}
    began, levels = time.perf_counter(), list(Difficulty)
    with GameLibrary(chosen.games_folder, max_open=2) as games:
        for number in range(chosen.games):
            given = build_scenario(chosen.seed * 1_000_000 + number, levels[number % len(levels)])
            for name, guard in (("off", without), ("on", taught)):
                run = Scripted(given, games, seed=number, acceptance_rate=ACCEPTANCE_RATE, rate=RATE)
                with guard.override(schemata=learning if name == "on" else False):
                    result, outcomes = play(run, int(chosen.budget * given.max_turns), guard)
                played[name].append(result)
                told[name] += outcomes
            games.trim()
    half = chosen.games // 2
    found = {
        "all": compared(played["off"], played["on"]),
        "second_half": compared(played["off"][half:], played["on"][half:]),
        "recoveries": {name: dict(counts) for name, counts in told.items()},
        "schemata": {
            str(status): sum(one.status is status for one in learning.cache) for status in SchemaStatus
        },
        "confirmed": sum(one.confirmed for one in learning.cache),
        "refuted": sum(one.refuted for one in learning.cache),
        "not_learnt": [*learning.queue.failures],
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(found, indent=None if chosen.json else 1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
