"""Cost of saving a run's state, in memory and written behind, and the savings of the cadence.

Run: .venv/bin/python benchmarks/snapshots.py [--json] [--turns N] [--runs N]

1. A boundary: `Keeper.boundary`, with a snapshot at each, compared with
   ``states.append(copy.deepcopy(state))``.
   Both save the same JSON states of about 1 KB, 100 KB and 5 MB, of which a little changes at each turn. Both
   run in turns. The measure is processor time, since neither waits. Memory of the peer is the size of one
   copy
   (tracemalloc) times the turns.
2. A turn of a guarded loop with a state of 100 KB, compared with the same turn without a store. The store
   works, is slow (50 ms more per commit), or is down. The kinds of turns alternate, so that all see the
   same
   machine. The measure is wall time, which includes waiting, and processor time of the thread.
3. Cadence, in virtual time: runs of 60 turns of a second, snapshots of a given cost, and failures at random
   times. A failure rolls the run back to its last snapshot. Time lost, as a share of the work, for four
   cadences: each turn, never, the measured cadence, and Daly's optimum for the true failure rate, which is
   unknown in practice.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentguard.guard import Guard
from agentguard.localize.baselines.last_error import LastErrorLocalizer
from agentguard.recover.snapshots.manager import (
    CheckpointInterval,
    SnapshotManager,
    SnapshotOptions,
    compute_daly_interval,
)
from agentguard.store import Store
from agentguard.store.options import StoreOptions

SIZES = {"1 KB": 1_000, "100 KB": 100_000, "5 MB": 5_000_000}
EACH = SnapshotOptions(max_turns=1)
SLOW_S = 0.05
WORK = 60
COSTS = (0.02, 0.2, 2.0)
BETWEEN = (10, 40, 160)


def state_of(size: int) -> dict[str, Any]:
    """Return a JSON state of about the given size: records with a text, a number and a list each."""
    rng = random.Random(7)
    words = [f"word{i}" for i in range(2000)]
    records = [record(i, words, rng) for i in range(max(1, size // 245))]
    return {"turn": 0, "records": records, "log": []}


def record(number: int, words: list[str], rng: random.Random) -> dict[str, Any]:
    text, tags = " ".join(rng.choices(words, k=20)), rng.choices(words, k=3)
    return {"id": number, "text": text, "at": rng.random(), "tags": tags}


def change(state: dict[str, Any], turn: int) -> None:
    """Change the state as a turn does: a counter, a record, a line at the end."""
    state["turn"] = turn
    state["records"][turn * 37 % len(state["records"])]["text"] = f"changed at turn {turn}"
    state["log"].append(f"turn {turn}: looked at record {turn * 37}")
    del state["log"][:-5]


def timed(part: Callable[[], Any], clock: Callable[[], float] = time.thread_time) -> float:
    start = clock()
    part()
    return clock() - start


def boundaries(size: int, turns: int) -> dict[str, float]:
    state = state_of(size)
    manager = SnapshotManager(lambda: state, state.update, options=EACH)
    copies: list[Any] = []
    ours, peers = [], []
    for turn in range(turns):
        change(state, turn)
        ours.append(timed(lambda: manager.save_if_due(turn)))  # noqa: B023  called at once
        peers.append(timed(lambda: copies.append(copy.deepcopy(state))))
        del copies[:-2]  # deepcopy would exhaust the memory; it is calculated below
    tracemalloc.start()
    kept = copy.deepcopy(state)
    one = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    mine, theirs = statistics.median(ours) * 1e6, statistics.median(peers) * 1e6
    return {
        "json_bytes": len(json.dumps(state)),
        "turns": turns,
        "boundary_us": round(mine, 1),
        "boundary_worst_us": round(max(ours) * 1e6, 1),
        "deepcopy_us": round(theirs, 1),
        "time_ratio": round(mine / theirs, 3),
        "kept_bytes": manager.history.size_bytes,
        "deepcopy_bytes": one * turns,
        "memory_ratio": round(manager.history.size_bytes / (one * turns), 5),
    }


def latency(turns: int, folder: Path) -> dict[str, Any]:
    """Return the microseconds of a turn, by the state of the store."""
    (folder / "file").write_text("no folder")
    down = Store.open(folder / "file" / "s.db", connect=False, options=StoreOptions(max_bytes=1_000_000))
    working, late_one = Store.open(folder / "a.db"), Store.open(folder / "b.db")
    stores: dict[str, Store | None] = {"none": None, "works": working, "slow": late_one, "down": down}
    commit = late_one._writer._commit

    def late(batch: Any) -> Any:
        time.sleep(SLOW_S)
        return commit(batch)

    late_one._writer._commit = late  # type: ignore[method-assign]
    runs = {name: loop(store) for name, store in stores.items()}
    wall: dict[str, list[float]] = {name: [] for name in runs}
    busy: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, turn in runs.items():
            began = time.perf_counter()
            busy[name].append(timed(turn))
            wall[name].append(time.perf_counter() - began)
    made = {name: figures(wall[name][5:], busy[name][5:]) for name in runs}
    works = made["works"]
    for name, store in stores.items():
        made[name]["over_works"] = round(made[name]["median_us"] / works["median_us"], 3)
        made[name]["cpu_over_works"] = round(made[name]["cpu_median_us"] / works["cpu_median_us"], 3)
        if store is not None:
            made[name]["lost_rows"] = store.get_health().lost
            store.close(0.2)
    return made


def loop(store: Store | None) -> Callable[[], None]:
    """Return one turn of a guarded loop as a function that can be called repeatedly."""
    state, counter = state_of(100_000), iter(range(10**9))

    def look(place: int) -> str:
        """Look."""
        change(state, place)
        return f"nothing at {place}"

    guard = Guard(localizer=LastErrorLocalizer(), store=store)
    guard.tool(effect="read")(look)
    run = guard.run("x", tools=[look], save=lambda: state, restore=state.update, snapshots=EACH)

    def model(_: list[Any]) -> Any:
        function = {"name": "look", "arguments": json.dumps({"place": next(counter)})}
        return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}

    return lambda: run.tools(run.model(model))


def figures(wall: list[float], busy: list[float]) -> dict[str, float]:
    ordered = sorted(wall)
    return {
        "median_us": round(statistics.median(ordered) * 1e6, 1),
        "p99_us": round(ordered[int(len(ordered) * 0.99)] * 1e6, 1),
        "cpu_median_us": round(statistics.median(busy) * 1e6, 1),
    }


def lost(cost: float, between: float, policy: str, rng: random.Random) -> float:
    """Return the seconds that a run of `WORK` turns takes beyond its work."""
    cadence, fixed = CheckpointInterval(free_cost_s=0.0), max(1, round(compute_daly_interval(cost, between)))
    at = saved = since = 0
    spent = 0.0
    while at < WORK:
        due = {"every": since > 0, "never": False, "daly": since >= fixed, "cadence": cadence.is_due()}[
            policy
        ]
        if due:
            spent += cost
            saved, since = at, 0
            cadence.record_snapshot(cost)
        spent += 1.0
        at, since = at + 1, since + 1
        cadence.record_turn(1.0)
        if rng.random() < 1 / between:
            at, since = saved, 0
            cadence.record_failure()
    return spent - WORK


def cadences(runs: int) -> list[dict[str, float]]:
    made = []
    for cost in COSTS:
        for between in BETWEEN:
            row: dict[str, float] = {"cost_s": cost, "turns_between_failures": between}
            for policy in ("every", "never", "cadence", "daly"):
                rng = random.Random(f"{cost} {between} {policy}")
                total = sum(lost(cost, between, policy, rng) for _ in range(runs))
                row[policy] = round(total / runs / WORK, 3)
            row["cadence_over_daly"] = round((1 + row["cadence"]) / (1 + row["daly"]), 3)
            row["cadence_over_every"] = round((1 + row["cadence"]) / (1 + row["every"]), 3)
            made.append(row)
    return made


def show(found: dict[str, Any]) -> None:
    print("A boundary, us: saved, worst, deepcopy, ratio; bytes: kept, deepcopy, ratio")
    columns = (
        "boundary_us",
        "boundary_worst_us",
        "deepcopy_us",
        "time_ratio",
        "kept_bytes",
        "deepcopy_bytes",
    )
    for name, row in found["boundary"].items():
        cells = " ".join(f"{row[column]:>12}" for column in (*columns, "memory_ratio"))
        print(f"{name:>8} x {row['turns']:<4}{cells}")
    print("\nA turn, 100 KB, us: median, p99, over a store that works; processor time, over the same")
    for name, row in found["turn"].items():
        columns = ("median_us", "p99_us", "over_works", "cpu_median_us", "cpu_over_works")
        print(f"{name:>8} " + " ".join(f"{row[column]:>12}" for column in columns))
    print("\nTime lost, share of the work: cost s, turns between failures: every, never, cadence, Daly")
    for row in found["cadence"]:
        cells = " ".join(f"{row[name]:>9}" for name in ("every", "never", "cadence", "daly"))
        print(f"{row['cost_s']:>6} {row['turns_between_failures']:>6} {cells}   x {row['cadence_over_daly']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--turns", type=int, default=200, help="boundaries and turns; 20 of 5 MB")
    parser.add_argument("--runs", type=int, default=200, help="simulated runs per cell")
    asked = parser.parse_args()
    found: dict[str, Any] = {"boundary": {}, "cadence": cadences(asked.runs)}
    for name, size in SIZES.items():
        found["boundary"][name] = boundaries(size, min(asked.turns, 20) if size > 10**6 else asked.turns)
        print(f"measured {name}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        found["turn"] = latency(asked.turns, Path(folder))
    print(json.dumps(found)) if asked.json else show(found)


if __name__ == "__main__":
    main()
