"""Cost of a judge: AgentDebug's published two stages, our ``two_stage``, and ``fused``, on one server.

Run: .venv/bin/python benchmarks/judge.py RUNS --base-url http://127.0.0.1:8000/v1 [--runs 20] [--json]
     .venv/bin/python benchmarks/judge.py RUNS     # starts the local vLLM of `make vllm` (about 6 GB)

RUNS are the files of Who&When. Each procedure processes the same failed runs, each with its own cold prefix
cache. Prompt tokens *computed* are from the server's counters: received tokens minus tokens from the prefix
cache. ``diagnosis`` is ``fused`` that also asks whether the run failed; the report compares its tokens with
those of the transcript. At the end, all runs are diagnosed concurrently to measure the throughput, once for
each number after ``--at-once``. With ``--journal FILE`` an interrupted benchmark continues. ``--minutes``
limits the measuring time; ``--minutes 0`` measures the throughput alone.

The tiny model of the local server cannot judge: its tokens and seconds are meaningful, its accuracy is not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from judge_arms import ARMS, Journal, Row, Server, localizer, measure, render_transcript, warm
from model_server import add_flags, key, machine, say, served, shorten_model_name

from agentguard.detect.detection import detect
from agentguard.evals.datasets.dataset import load_dataset
from agentguard.evals.statistics import wilson_interval
from agentguard.judge.llm.types import CallError
from agentguard.trajectory.model import Trajectory

CHARACTERS = 3.0
"""Minimum of characters per token; it bounds the length of a run for a context size."""
BARS = {"two_stage": (0.1, 0.2), "fused": (0.02, None)}
"""Targets: shares of the published procedure's computed tokens and seconds."""
WHOLE = 1.15
Case = tuple[Trajectory, int | None]


def chosen(cases: Sequence[Case], count: int, pick: str, longest: int) -> list[Case]:
    """Return runs that fit: the shortest, or runs spread evenly over all lengths."""
    sized = sorted(
        ((len(render_transcript(run)), run.id, run, gold) for run, gold in cases), key=lambda one: one[:2]
    )
    fitting = [(run, gold) for size, _, run, gold in sized if size <= longest]
    if pick == "shortest" or len(fitting) <= count:
        return fitting[:count]
    return [fitting[(2 * place + 1) * len(fitting) // (2 * count)] for place in range(count)]


def measured(server: Server, cases: Sequence[Case], journal: Journal, args: argparse.Namespace) -> None:
    """Measure all procedures over all runs until the time is over."""
    end = time.monotonic() + args.minutes * 60
    for place, (run, gold) in enumerate(cases, 1):
        for arm in args.arms:
            if time.monotonic() > end:
                say(f"{args.minutes:g} minutes are over; {place - 1} of {len(cases)} runs are measured")
                return

            def make(arm: str = arm, run: Trajectory = run, gold: int | None = gold) -> Row:
                return measure(server, arm, run, gold)

            row = journal.get(run.id, arm, make)
            say(
                f"{place:3} {run.id[:24]:24} {arm:20} {row.computed:8.0f} of {row.sent:8.0f} tokens, "
                f"{row.calls:4.0f} calls, {row.seconds:7.1f} s, {row.faults} faults"
            )


def throughput(server: Server, cases: Sequence[Case], at_once: int) -> dict[str, Any]:
    """Diagnose many runs concurrently with one judge, from a cold prefix cache."""
    endpoint = server.endpoint(at_once)
    method = localizer("diagnosis", endpoint)
    found = [(run, detect(run).findings) for run, _ in cases]
    try:
        before, started = server.work(), time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            told = list(pool.map(lambda one: method.locate(*one), found))
        took, after = time.perf_counter() - started, server.work()
    finally:
        endpoint.close()
    done: dict[str, Any] = {"runs": len(told), "at_once": at_once, "seconds": round(took, 2)}
    done["runs_a_minute"] = round(60 * len(told) / took, 1)
    done["steps_a_second"] = round(sum(len(run.steps) for run, _ in cases) / took, 1)
    done["questions_a_second"] = round(sum(one.usage.get("calls", 0) for one in told) / took, 1)
    done["without_judge"] = sum(bool(one.failures) for one in told)
    if before is not None and after is not None:
        spent = after - before
        done["computed_tokens_a_second"] = round(spent.computed_tokens / took)
        done["prefix_cache_hit_rate"] = round(spent.hit_rate, 4)
    return done


def summary(rows: Sequence[Row], arms: Sequence[str]) -> dict[str, Any]:
    """Return totals by procedure over the runs that every procedure has processed."""
    by = {arm: [row for row in rows if row.arm == arm] for arm in arms}
    count = len(by[arms[0]])
    found: dict[str, Any] = {"runs": count}
    if not count:
        return found
    found["prompt_tokens"] = {arm: round(sum(r.computed for r in held)) for arm, held in by.items()}
    found["prompt_tokens_sent"] = {arm: round(sum(r.sent for r in held)) for arm, held in by.items()}
    found["written_tokens"] = {arm: round(sum(r.written for r in held)) for arm, held in by.items()}
    found["calls"] = {arm: round(sum(r.calls for r in held)) for arm, held in by.items()}
    found["faults"] = {arm: sum(r.faults for r in held) for arm, held in by.items()}
    found["seconds"] = {arm: round(sum(r.seconds for r in held), 1) for arm, held in by.items()}
    right = {arm: statistics.fmean(r.right for r in held) for arm, held in by.items()}
    found["accuracy"] = {arm: round(share, 4) for arm, share in right.items()}
    found["intervals"] = {
        arm: [round(x, 4) for x in wilson_interval(share, count)] for arm, share in right.items()
    }
    found["transcript_tokens"] = sum(r.transcript for r in by[arms[0]])
    found["of_transcript"] = {
        arm: round(sum(r.computed for r in held) / found["transcript_tokens"], 3) for arm, held in by.items()
    }
    found["counted_by"] = sorted({row.counted for row in rows})
    found["bars"] = bars(found)
    return found


def bars(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return target, measurement and result of each bar."""
    told = []
    tokens, seconds = found["prompt_tokens"], found["seconds"]
    whole = "published_two_stage"
    for arm, (of_tokens, of_seconds) in BARS.items() if tokens.get(whole) else ():
        if arm in tokens:
            told.append(bar(f"{arm}: tokens", tokens[arm] / tokens[whole], of_tokens))
            sent = found["prompt_tokens_sent"][whole]
            told.append(bar(f"{arm}: tokens computed, of those sent to it", tokens[arm] / sent, of_tokens))
        if arm in tokens and of_seconds is not None:
            told.append(bar(f"{arm}: seconds", seconds[arm] / seconds[whole], of_seconds))
    if "diagnosis" in tokens:
        told.append(bar("diagnosis: computed, of the transcript", found["of_transcript"]["diagnosis"], WHOLE))
    return told


def bar(name: str, got: float, at_most: float) -> dict[str, Any]:
    return {"bar": name, "at_most": at_most, "measured": round(got, 4), "met": got <= at_most}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="RUNS")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--pick", choices=("spread", "shortest"), default="spread")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--context", type=int, default=16_384, help="of the local server; bounds the runs")
    parser.add_argument("--longest", type=int, help="longest transcript in characters")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument(
        "--at-once", type=int, nargs="*", default=[4], help="runs side by side for the throughput"
    )
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--journal", type=Path)
    add_flags(parser)
    args = parser.parse_args()
    longest = args.longest or int(args.context * CHARACTERS * 0.6)
    data = load_dataset("who_and_when", args.paths)
    every = [(r.trajectory, case.step) for r, case in zip(data.records, data.build_cases(), strict=True)]
    cases = chosen(every, args.runs, args.pick, longest)
    with served(args.base_url, args.context) as url:
        server = Server(url, model=args.model, key=key(args), concurrency=args.concurrency)
        endpoint = server.endpoint()
        info = endpoint.loop.run(endpoint.fetch_info(60))
        endpoint.close()
        if isinstance(info, CallError):
            raise SystemExit(f"{url}: {info.message}")
        journal = Journal(args.journal, info.version)
        warm(server, args.arms if args.minutes else ())
        measured(server, cases, journal, args)
        fast = [throughput(server, cases, at_once) for at_once in args.at_once]
    found = summary(journal.rows([run.id for run, _ in cases], args.arms), args.arms)
    told = {"machine": machine(), "model": shorten_model_name(info.version), "picked": args.pick, **found}
    told["throughput"] = fast
    print(json.dumps(told)) if args.json else table(told, args.arms)


def table(told: dict[str, Any], arms: Sequence[str]) -> None:
    print(f"{told['model']} on {told['machine']}; {told['runs']} runs, {told['picked']}")
    if told["runs"]:
        cost(told, arms)
    for fast in told["throughput"]:
        print("throughput: " + ", ".join(f"{k} {v}" for k, v in fast.items()))


def cost(told: dict[str, Any], arms: Sequence[str]) -> None:
    print(f"{'':22}{'computed':>10}{'sent':>10}{'of transcript':>15}{'calls':>8}{'seconds':>10}{'step':>8}")
    for arm in arms:
        low, high = told["intervals"][arm]
        print(
            f"{arm:22}{told['prompt_tokens'][arm]:10}{told['prompt_tokens_sent'][arm]:10}"
            f"{told['of_transcript'][arm]:15.2f}{told['calls'][arm]:8}{told['seconds'][arm]:10.1f}"
            f"{told['accuracy'][arm]:8.3f} [{low:.3f}, {high:.3f}]"
        )
    for one in told["bars"]:
        word = "met" if one["met"] else "MISSED"
        print(f"{one['bar']:48} {one['measured']:8.3f}, at most {one['at_most']:g}: {word}")


if __name__ == "__main__":
    main()
