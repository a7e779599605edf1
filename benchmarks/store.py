"""Cost of a write to the store for the caller, compared with a direct commit, and the store's throughput.

Run: .venv/bin/python benchmarks/store.py [--json] [--rows N]
Both write the same rows, steps of about 1 KB, to SQLite in WAL mode with synchronous=NORMAL, in turns:
- write: `Store.write`, in the caller; the writer's thread commits meanwhile on the same cores
- commit: one SQLAlchemy transaction per row, on an open connection, of prepared values
Bar: the median of write is at most a tenth of that of commit; 5,000 rows per second are durable.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path

from agentguard.store import Store
from agentguard.store.db.database_address import resolve_address
from agentguard.store.db.engine import IMMEDIATE_TRANSACTION, build_engine
from agentguard.store.db.migration import ensure_tables
from agentguard.store.db.row_mapping import to_parameters
from agentguard.store.db.rows import EffectRow, StepRow
from agentguard.store.db.tables import TABLE_MAPPINGS
from agentguard.store.trajectory_mapping import build_step_row
from agentguard.store.write.batch import _build_upsert
from agentguard.trajectory.model import Observation, Source, Step, ToolCall

ROUNDS = 10


def step(index: int) -> Step:
    call = ToolCall(id=f"c{index}", name="search", arguments={"query": f"what is {index}", "limit": 10})
    return Step(
        index=index,
        source=Source.AGENT,
        agent="worker",
        content=f"step {index}: " + "some words that an agent says " * 15,
        tool_calls=(call,),
        observations=(Observation(content="what came back " * 25, call_id=call.id, tool="search"),),
    )


def microseconds(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "median_us": round(statistics.median(ordered) * 1e6, 2),
        "p99_us": round(ordered[int(len(ordered) * 0.99)] * 1e6, 2),
    }


def timed_writes(store: Store, rows: list[StepRow]) -> list[float]:
    times = []
    for row in rows:
        start = time.perf_counter()
        store.write(row)
        times.append(time.perf_counter() - start)
    store.flush(60)
    return times


def timed_commits(folder: Path, rounds: list[list[StepRow]]):
    """Yield the times of one round per iteration."""
    address = resolve_address(folder / "direct.db")
    engine = build_engine(address)
    ensure_tables(engine, address)
    statement = _build_upsert(TABLE_MAPPINGS[StepRow], "sqlite")
    with engine.connect().execution_options(**IMMEDIATE_TRANSACTION) as connection:
        for rows in rounds:
            times = []
            for values in [to_parameters(row) for row in rows]:
                start = time.perf_counter()
                with connection.begin():
                    connection.execute(statement, values)
                times.append(time.perf_counter() - start)
            yield times
    engine.dispose()


def sustained(store: Store, rows: list[StepRow]) -> float:
    """Return rows per second from the first write until all are durable; the queue never overflows."""
    start = time.perf_counter()
    for at in range(0, len(rows), 5000):
        for row in rows[at : at + 5000]:
            store.write(row)
        store.flush(120)
    return len(rows) / (time.perf_counter() - start)


def claims(store: Store) -> list[float]:
    times = []
    for i in range(200):
        start = time.perf_counter()
        store.claim(EffectRow(run_id="r", tool="t", arguments=str(i)))
        times.append(time.perf_counter() - start)
    return times


def measure(count: int, folder: Path) -> dict[str, object]:
    rows = [build_step_row("run", step(i)) for i in range(count)]
    size = count // ROUNDS
    rounds = [rows[i * size : (i + 1) * size] for i in range(ROUNDS)]
    with Store.open(folder / "store.db") as store:
        writes: list[float] = []
        commits: list[float] = []
        for mine, direct in zip(rounds, timed_commits(folder, rounds), strict=False):
            writes += timed_writes(store, mine)
            commits += direct
        rate = sustained(store, [build_step_row("more", step(i)) for i in range(count * 2)])
        claimed = claims(store)
        health = store.get_health()
    write, commit = microseconds(writes), microseconds(commits)
    return {
        "rows": count,
        "python": platform.python_version(),
        "write": write,
        "commit": commit,
        "write_over_commit": {
            "median": round(write["median_us"] / commit["median_us"], 4),
            "p99": round(write["p99_us"] / commit["p99_us"], 4),
        },
        "durable_rows_per_s": round(rate),
        "claim": microseconds(claimed),
        "lost": health.lost,
        "refused": health.refused,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; a temporary one, if absent")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        found = measure(chosen.rows, Path(folder))
    if chosen.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
