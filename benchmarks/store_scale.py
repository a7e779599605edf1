"""Latency of the store's queries and deletions on PostgreSQL with ten million steps.

Run: .venv/bin/python -m benchmarks.store_scale [--runs 200000] [--repeats 20] [--summaries-only] [--json]
A private PostgreSQL server with 16 MB of shared buffers gets one diagnosed run, which SQL statements copy to
all others: 50 steps and 5 findings a run, values of the sorted columns at random, a fifth of the runs failed.
A second tenant has a tenth of the runs. The benchmark measures the pages of the run list in each order, the
filters, the failures page, and deletions with the waits of a writer.
Bar: the 95th percentile of each query is at most 300 ms; no write waits longer than 1 s for a deletion.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, create_engine, text

import agentguard
from agentguard.localize.serialization import build_diagnosis_rows
from agentguard.store import Store
from agentguard.store.db.database_address import resolve_address
from agentguard.store.db.run_summary import SORT_COLUMNS, RunSort, RunSummaryFilter, VerdictFilter
from agentguard.store.db.tables import DIAGNOSES, FINDINGS, OVERVIEWS, RUNS, STEPS
from agentguard.store.read.failure_statistics import count_failures_over_time, group_failures_by_code
from agentguard.store.read.pagination import Page
from agentguard.store.read.summary_queries import refresh_summaries
from benchmarks.diagnose import synthetic_run
from tests.postgres import Postgres, programs

STEPS_PER_RUN = 50
FINDINGS_PER_RUN = 5
TEMPLATE = "template"
OTHER = "other"
BAR_MS = 300.0
RUN_KEY = "'run-' || lpad(n::text, 8, '0')"
# Seeded by the number of the run, so that each database is equal.
DRAW = "((hashint4(n * 31 + {salt})::bigint + 2147483648) / 4294967296.0)"


def draw(salt: int) -> str:
    return DRAW.format(salt=salt)


VALUES: dict[Table, dict[str, str]] = {
    RUNS: {"id": RUN_KEY, "created_at": "1.7e9 + n * 60"},
    STEPS: {"run_id": RUN_KEY, "created_at": "1.7e9 + n * 60"},
    DIAGNOSES: {"id": "'d-' || n", "run_id": RUN_KEY, "created_at": "1.7e9 + n * 60"},
    FINDINGS: {"id": "t.id || n", "run_id": RUN_KEY, "created_at": "1.7e9 + n * 60"},
    OVERVIEWS: {
        "run_id": RUN_KEY,
        "created_at": "1.7e9 + n * 60",
        "began_at": "1.7e9 + n * 60",
        "updated_at": "1.7e9 + n * 60",
        "task": f"'Find record ' || floor({draw(1)} * 1000000)",
        "verdict": f"CASE WHEN {draw(2)} < 0.2 THEN 'failed' ELSE 'no_failure_found' END",
        "probability": draw(2),
        "step": f"floor({draw(3)} * 50)",
        "agent": f"'agent-' || floor({draw(4)} * 20)",
        "code": f"CASE WHEN {draw(2)} < 0.2 THEN 'mast/' || floor({draw(5)} * 14) ELSE '' END",
        "tokens": f"floor({draw(6)} * 100000)",
        "cost_usd": f"CASE WHEN {draw(7)} < 0.1 THEN NULL ELSE {draw(8)} END",
        "duration_s": f"{draw(9)} * 600",
        "guard_s": draw(10),
        "findings": f"floor({draw(11)} * 10)",
        "models": f"chr(10) || 'model-' || floor({draw(12)} * 5) || chr(10)",
        "stale": "false",
    },
}


def copy_runs(connection: Connection, table: Table, runs: range, tenant: str) -> None:
    columns = [column.name for column in table.columns]
    values = {"tenant": f"'{tenant}'"} | VALUES[table]
    names = ", ".join(f'"{name}"' for name in columns)
    source = ", ".join(values.get(name, f't."{name}"') for name in columns)
    connection.execute(
        text(
            f"INSERT INTO {table.name} ({names}) SELECT {source} "
            f"FROM generate_series({runs.start}, {runs.stop - 1}) n, {table.name} t "
            f"WHERE t.tenant = '{TEMPLATE}'"
        )
    )


def fill(url: str, runs: int, tables: Sequence[Table]) -> None:
    run = synthetic_run(STEPS_PER_RUN, 0)
    with Store.open(url) as store:
        store.write_run(run, tenant=TEMPLATE)
        diagnosis, *findings = build_diagnosis_rows(agentguard.diagnose(run), tenant=TEMPLATE)
        store.write(diagnosis, *findings[:FINDINGS_PER_RUN])
        store.flush(60)
    engine = create_engine(resolve_address(url).url)
    begin = time.perf_counter()
    for tenant, count in (("", runs), (OTHER, runs // 10)):
        for start in range(0, count, 20_000):
            with engine.begin() as connection:
                for table in tables:
                    copy_runs(connection, table, range(start, min(start + 20_000, count)), tenant)
        print(f"{time.perf_counter() - begin:6.0f} s: {count:,} runs of tenant {tenant!r}", flush=True)
    refresh_summaries(engine)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
        size = connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
    print(f"{time.perf_counter() - begin:6.0f} s: analyzed, {size / 2**30:.1f} GiB", flush=True)
    engine.dispose()


def iter_queries(store: Store, repeat: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    def list_page(filter: RunSummaryFilter, sort: RunSort, after: str | None = None) -> Any:
        return store.list_run_summaries(filter, sort, Page(limit=50, after=after))

    everything = RunSummaryFilter()
    for name in SORT_COLUMNS:
        for descending in (True, False):
            sort = RunSort(by=name, descending=descending)
            label = f"sort {name} {'desc' if descending else 'asc'}"
            yield label, partial(list_page, everything, sort)
            after = list_page(everything, sort).next
            yield f"{label}, page 2", partial(list_page, everything, sort, after)
    newest = RunSort(by="time", descending=True)
    filters = {
        "verdict": RunSummaryFilter(verdicts=frozenset({VerdictFilter.FAILED})),
        "agent": RunSummaryFilter(agent=f"agent-{repeat}"),
        "code": RunSummaryFilter(code="mast/3"),
        "model": RunSummaryFilter(model="model-2"),
        "rare cost": RunSummaryFilter(min_cost=0.99999),
        "text": RunSummaryFilter(text=f"record 12{repeat}45"),
        "text without a run": RunSummaryFilter(text="no such text"),
    }
    for name, filter in filters.items():
        yield f"filter {name}", partial(list_page, filter, newest)
        yield f"count {name}", partial(store.count_run_summaries, filter, max_count=10_001)
    yield "facets", store.get_facets
    yield "failures over time", partial(count_failures_over_time, store)
    yield "failures by code", partial(group_failures_by_code, store)
    yield "one run", partial(store.get_record, f"run-{repeat * 997:08}")


def measure_queries(url: str, repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    with Store.open(url) as store:
        for repeat in range(repeats):
            for name, run in iter_queries(store, repeat):
                begin = time.perf_counter()
                run()
                times.setdefault(name, []).append(1e3 * (time.perf_counter() - begin))
    return times


@contextmanager
def writing(url: str) -> Iterator[list[float]]:
    """Update a summary again and again on another connection; yield the durations in milliseconds."""
    waits: list[float] = []
    stopped = threading.Event()
    engine = create_engine(resolve_address(url).url)
    statement = text(
        f"UPDATE {OVERVIEWS.name} SET updated_at = updated_at + 1 WHERE tenant = '' AND run_id = :id"
    )

    def update() -> None:
        number = 0
        while not stopped.wait(0.01):
            begin = time.perf_counter()
            with engine.begin() as connection:
                connection.execute(statement, {"id": f"run-{100_000 + number % 1000:08}"})
            waits.append(1e3 * (time.perf_counter() - begin))
            number += 1

    thread = threading.Thread(target=update)
    thread.start()
    try:
        yield waits
    finally:
        stopped.set()
        thread.join()
        engine.dispose()


def measure_deletions(url: str, runs: int) -> dict[str, tuple[float, float]]:
    """Return seconds and the longest wait of a writer in milliseconds by deletion."""
    oldest = time.time() - (1.7e9 + runs // 50 * 60)
    results = {}
    with Store.open(url) as store:
        deletions: dict[str, Callable[[], Any]] = {
            "delete a run": lambda: store.delete_run(f"run-{runs - 1:08}"),
            "prune a fiftieth of the runs": lambda: store.prune(older_than_s=oldest, tenant=""),
            "delete a tenant": lambda: store.delete_tenant(OTHER),
        }
        for name, delete in deletions.items():
            with writing(url) as waits:
                begin = time.perf_counter()
                delete()
                results[name] = (time.perf_counter() - begin, max(waits, default=0.0))
            print(
                f"{name:34} {results[name][0]:8.1f} s, longest write {results[name][1]:6.0f} ms", flush=True
            )
    return results


@contextmanager
def serving(folder: Path | None) -> Iterator[str]:
    bin = programs()
    if bin is None:
        raise SystemExit("PostgreSQL is not installed: apt-get install -y postgresql")
    path = Path(tempfile.mkdtemp(prefix="agentguard-scale-", dir=folder))
    path.chmod(0o755)
    server = Postgres(path, bin)
    server.start()
    try:
        yield server.url(server.create())
    finally:
        with suppress(Exception):
            server.stop()
        shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--summaries-only", action="store_true", help="Store no steps and no findings.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--folder", type=Path, help="Folder for the database; about 12 GiB.")
    arguments = parser.parse_args()
    with serving(arguments.folder) as url:
        fill(url, arguments.runs, (RUNS, DIAGNOSES, OVERVIEWS) if arguments.summaries_only else tuple(VALUES))
        times = measure_queries(url, arguments.repeats)
        quantiles = {
            name: sorted(values)[max(0, -(-len(values) * 95 // 100) - 1)] for name, values in times.items()
        }
        for name, value in sorted(quantiles.items(), key=lambda item: -item[1]):
            median = statistics.median(times[name])
            print(
                f"{name:34} median {median:7.1f} ms, p95 {value:7.1f} ms {'' if value <= BAR_MS else 'SLOW'}"
            )
        print(f"load {os.getloadavg()[0]:.1f}", flush=True)
        deletions = measure_deletions(url, arguments.runs)
    if arguments.json:
        print(json.dumps({"runs": arguments.runs, "p95_ms": quantiles, "deletions": deletions}))


if __name__ == "__main__":
    main()
