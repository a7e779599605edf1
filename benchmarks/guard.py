"""Cost of the guard per turn: rules, recorder and effect ledger, in process, without findings.

    python benchmarks/guard.py [--turns 1000] [--repeats 3] [--store] [--each] [--peers] [--json]

A turn is all events of a session: boundary, propose, the ledger before and after a tool, commit. The agent of
a warehouse reads or changes an order that an earlier result named. The kinds of turns differ in the size of
the tool results. All detectors run with their defaults. Times are wall times with the garbage collector on.
On
a shared machine, the thread's processor time (``cpu_median_us``) is more accurate. The report uses the repeat
with the least disturbance.

`--peers` runs the turns of one run (at most 100) through alternatives in the same process: a plain recorder
without rules, LangChain's agent with a scripted model (no middleware, empty hooks, LangChain's own limits and
retries, the guard), and a graph of LangGraph with and without the guard.
`--store` attaches a store in SQLite, so that the times contain the encoding of each step and finding.
`--each` reports the cost of each detector.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

from guard_turns import SIZES, Turn, meta, turns

from agentguard.detect.base import detectors
from agentguard.guard import Guard
from agentguard.recover.capabilities import Capabilities
from agentguard.runtime.session import Session
from agentguard.store import Store
from agentguard.trajectory.model import Source, Step

BAR_US = 300.0
LENGTHS = (10, 100, 1_000)
_RUN_NUMBERS = count()


def declared(guard: Guard) -> Guard:
    """Return the guard with the declared tools."""
    guard.tool(effect="write", name="change_order")(len)
    guard.tool(effect="read", name="get_order")(len)
    return guard


def session_of(guard: Guard) -> Session:
    """Start and return a session."""
    # A store has the effects of a run: with the same ID, the next run would find its calls executed.
    run = replace(meta(), id=f"r{next(_RUN_NUMBERS)}")
    session = guard.session(run, Capabilities(reject=True, truncate=True))
    session.commit(Step(index=0, source=Source.USER, agent="user", content=session.run.task))
    return session


def play(session: Session, turn: Turn) -> None:
    """Play all events of one turn."""
    session.check_boundary()
    session.propose(turn.proposed)
    for call, seen in zip(turn.whole.tool_calls, turn.whole.observations, strict=True):
        claim = session.begin_tool(call.name, call.arguments or {})
        session.end_tool(claim, seen.content)
    session.commit(turn.whole)
    if turn.reply is not None:
        session.commit(turn.reply)


def guarded(
    made: Sequence[Turn], guard: Guard | None = None, *, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the microseconds of each turn under the guard."""
    session = session_of(declared(guard or Guard()))
    gc.collect()
    taken = []
    for turn in made:
        start = clock()
        play(session, turn)
        taken.append((clock() - start) * 1e6)
    if session.recoveries or session.failures:
        raise SystemExit("something was found where nothing was to be found")
    return taken


def measure(
    kind: str, length: int, *, repeats: int, store: Store | None
) -> tuple[dict[str, float | int | str], list[float]]:
    """Return one line of the table and its times, from the repeat with the least disturbance."""
    runs = [turns(kind, length, seed=seed) for seed in range(repeats)]
    taken = min((guarded(made, Guard(store=store)) for made in runs), key=sum)
    computed = min((guarded(made, Guard(store=store), clock=time.thread_time) for made in runs), key=sum)
    cpu = round(statistics.median(computed), 1)
    return {"kind": kind, "turns": length} | summary(taken) | {"cpu_median_us": cpu}, taken


@contextmanager
def opened_store(is_wanted: bool) -> Iterator[Store | None]:
    """Open an empty store for the time of the block; None if none is wanted."""
    if not is_wanted:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/runs.db") as store:
        yield store


def summary(taken: Sequence[float]) -> dict[str, float]:
    """Return quantiles, in microseconds."""
    ranked = sorted(taken)
    at = {"p10_us": 0.1, "median_us": 0.5, "p90_us": 0.9, "p99_us": 0.99}
    return {name: round(ranked[min(len(ranked) - 1, int(len(ranked) * q))], 1) for name, q in at.items()} | {
        "mean_us": round(statistics.fmean(ranked), 1)
    }


def each(kind: str, length: int) -> dict[str, float]:
    """Return the median microseconds per turn that each detector adds."""
    made = turns(kind, length, seed=0)
    none = statistics.median(guarded(made, Guard(detectors={})))
    alone = {
        name: statistics.median(guarded(made, Guard(detectors={name: None}))) for name in detectors().names()
    }
    return {"(none)": round(none, 1)} | {name: round(value - none, 1) for name, value in alone.items()}


def peers(turn_count: int, repeats: int) -> dict[str, float]:
    """Return the microseconds per turn of the alternatives; imports LangChain only here."""
    import guard_peers

    made = turns("small", turn_count, seed=0)
    return guard_peers.peers(made, meta(), lambda: declared(Guard()), repeats=repeats)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description="What the guard costs a turn.")
    parser.add_argument("--turns", type=int, default=1_000, help="length of the longest run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--store", action="store_true", help="attach a store")
    parser.add_argument("--each", action="store_true", help="tell the cost of each detector")
    parser.add_argument("--peers", action="store_true", help="measure others, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(argv)
    lengths = [length for length in LENGTHS if length <= chosen.turns]
    with opened_store(chosen.store) as store:
        measured = [
            measure(kind, length, repeats=chosen.repeats, store=store) for kind in SIZES for length in lengths
        ]
    rows = [line for line, _ in measured]
    whole = statistics.median(
        time_us for line, taken in measured if line["turns"] == lengths[-1] for time_us in taken
    )
    found: dict[str, object] = {"rows": rows, "median_us": round(whole, 1), "bar_us": BAR_US}
    found["met"] = whole <= BAR_US
    if chosen.each:
        found["each_us"] = {kind: each(kind, 300) for kind in ("small", "20KB")}
    if chosen.peers:
        found["peers_us"] = peers(min(chosen.turns, 100), chosen.repeats)
    if chosen.json:
        print(json.dumps(found))
    else:
        _show(found, rows)
    return 0 if found["met"] else 1


def _show(found: dict[str, object], rows: Sequence[dict[str, float | int | str]]) -> None:
    names = ("p10_us", "median_us", "p90_us", "p99_us", "mean_us", "cpu_median_us")
    print(f"{'turn':8}{'turns':>7}" + "".join(f"{name:>15}" for name in names))
    for one in rows:
        print(f"{one['kind']:8}{one['turns']:7}" + "".join(f"{one[name]:15.1f}" for name in names))
    verdict = "met" if found["met"] else "missed"
    print(f"median over all kinds of turns: {found['median_us']} µs; the bar is {BAR_US:g} µs, {verdict}")
    for key in ("each_us", "peers_us"):
        if key in found:
            print(json.dumps(found[key], indent=1))


if __name__ == "__main__":
    raise SystemExit(main())
