"""Search in the contents of all runs: with the search index against a scan of all steps, in turns.

Run: .venv/bin/python -m benchmarks.store_search [--runs 2000] [--repeats 20] [--postgresql] [--json]
Runs have 50 steps of about 1 KB: words with the frequencies of Zipf's law, an order number in each step, and
an error in each thousandth step. A scan is the same search without the index. Times are of the wall clock;
those of the index update and of writing are processor times of this process.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from sqlalchemy import text as sql

from agentguard.store import Store
from agentguard.store.db.run_summary import RunSummaryFilter
from agentguard.store.db.tables import SEARCH_DOCUMENTS
from agentguard.store.read.pagination import Page
from agentguard.store.read.step_search import StepSearcher
from agentguard.store.write.search_index import FTS_TABLE
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Trajectory
from benchmarks.store_scale import serving

STEPS_PER_RUN = 50
PAGE = Page(limit=25)


def build_vocabulary(size: int = 30_000) -> tuple[list[str], list[float]]:
    source = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(source.choices(letters, k=source.randint(2, 11))) for _ in range(size)]
    return words, list(accumulate(1 / rank for rank in range(1, size + 1)))


def iter_runs(count: int) -> Iterator[Trajectory]:
    source = random.Random(1)
    words, weights = build_vocabulary()
    for number in range(count):
        steps = []
        for index in range(STEPS_PER_RUN):
            chosen = source.choices(words, cum_weights=weights, k=150)
            place = number * STEPS_PER_RUN + index
            answer = " ".join(chosen[75:])
            if source.random() < 0.001:
                answer += f" ToolError: invalid arguments for call {place}"
            call = ToolCall(id=f"c{index}", name="get_order", arguments={"order": f"ORD-{place:07}"})
            steps.append(
                Step(
                    index=index,
                    source=Source.AGENT,
                    agent="worker",
                    content=" ".join(chosen[:75]),
                    tool_calls=(call,),
                    observations=(Observation(content=answer, call_id=call.id, tool=call.name),),
                )
            )
        yield Trajectory(id=f"run-{number:07}", format="synthetic", task=f"task {number}", steps=tuple(steps))


@contextmanager
def timed(results: dict[str, float], name: str) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    results[f"{name}_wall_s"] = round(time.perf_counter() - wall, 1)
    results[f"{name}_cpu_s"] = round(time.process_time() - cpu, 1)


def measure_index_bytes(store: Store) -> int:
    names = [SEARCH_DOCUMENTS.name]
    with store.begin_read() as connection:
        if connection.dialect.name == "postgresql":
            size = sql("SELECT pg_total_relation_size(CAST(:name AS regclass))")
            return sum(int(connection.execute(size, {"name": name}).scalar_one()) for name in names)
        pages = sql("SELECT sum(length(block)) FROM " + FTS_TABLE + "_data")
        words = sql(f"SELECT sum(length(words)) FROM {SEARCH_DOCUMENTS.name}")
        return sum(int(connection.execute(query).scalar_one()) for query in (pages, words))


def search(store: Store, text: str, *, uses_index: bool) -> Any:
    searcher = StepSearcher(text, "")
    if not uses_index:
        searcher._index_query = None
    with store.begin_read() as connection:
        return searcher.search(connection, RunSummaryFilter(), PAGE, None)


def measure_queries(store: Store, runs: int, repeats: int) -> dict[str, dict[str, float]]:
    words, _ = build_vocabulary()
    source = random.Random(2)

    def order() -> str:
        return f"ORD-{source.randrange(runs * STEPS_PER_RUN):07}"

    queries: dict[str, Callable[[], str]] = {
        "order number": order,
        "error text": lambda: "invalid arguments",
        "rare word": lambda: words[source.randrange(25_000, 30_000)],
        "phrase of two common words": lambda: f"{words[source.randrange(20)]} {words[source.randrange(20)]}",
        "phrase that no run has": lambda: f"{words[source.randrange(500, 900)]} no such text",
    }
    results = {}
    for name, build in queries.items():
        times: dict[bool, list[float]] = {True: [], False: []}
        for repeat in range(repeats):
            text = build()
            found = {}
            for uses_index in (True, False) if repeat < 3 else (True,):  # scans take long
                begin = time.perf_counter()
                result = search(store, text, uses_index=uses_index)
                times[uses_index].append(1e3 * (time.perf_counter() - begin))
                found[uses_index] = [one.run.run_id for one in result.runs[: PAGE.limit]]
            assert len(set(map(tuple, found.values()))) == 1, (text, found)
        indexed = sorted(times[True])
        results[name] = {
            "index_p50_ms": round(statistics.median(indexed), 1),
            "index_p95_ms": round(indexed[max(0, -(-len(indexed) * 95 // 100) - 1)], 1),
            "scan_p50_ms": round(statistics.median(times[False]), 1),
        }
    return results


def measure(url: str | Path, runs: int, repeats: int) -> dict[str, Any]:
    results: dict[str, Any] = {"runs": runs, "steps": runs * STEPS_PER_RUN}
    with Store.open(url) as store:
        times: dict[str, float] = {}
        with timed(times, "write"):
            for place, run in enumerate(iter_runs(runs)):
                store.write_run(run)
                if place % 100 == 99:
                    store.flush(120)
            store.flush(120)
        with timed(times, "index"):
            while store.update_search_index():
                pass
        results |= times
        results["content_mb"] = round(store.get_stats().bytes_in_use / 1e6, 1)
        results["index_mb"] = round(measure_index_bytes(store) / 1e6, 1)
        if store.address.path is None:
            with store._database.get_engine().connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT").execute(sql("ANALYZE"))
        results["queries"] = measure_queries(store, runs, repeats)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--postgresql", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.postgresql:
        with serving(None) as url:
            results = measure(url, arguments.runs, arguments.repeats)
    else:
        with tempfile.TemporaryDirectory() as folder:
            results = measure(Path(folder, "store.db"), arguments.runs, arguments.repeats)
    results["load"] = round(os.getloadavg()[0], 1)
    if arguments.json:
        print(json.dumps(results))
        return
    queries = results.pop("queries")
    for name, value in (*results.items(), *queries.items()):
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
