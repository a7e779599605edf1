"""Time of a page of the run list with many runs, compared with a peer that reads every run.

Run: .venv/bin/python benchmarks/viewer_list.py [--json] [--runs N] [--postgres] [--folder DIR] [--keep FILE]
Runs are made from a seed. Each query runs twenty times, for a page of 50 rows:
- store: `Store.overviews`, as the viewer calls it
- peer: read the stored data of every run, filter and sort in Python, keep 50
  (once, and only on SQLite, since it takes long)
- page: the complete response of the viewer's application for the same query, including HTML
Bar: at 100,000 runs the 95th percentile of a page is below half a second, and the store is at most a tenth of
the peer.
"""

import argparse
import json
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agentguard_server.viewer.app import build_app
from starlette.testclient import TestClient

from agentguard.store import Store
from agentguard.store.db.rows import DiagnosisRow, RecoveryRow, Row, RunRow, StepRow
from agentguard.store.db.run_summary import RunSort, RunSummaryFilter, VerdictFilter
from agentguard.store.read.pagination import Page

SEED = 7
REPEATS = 20
MODELS = ("small-1", "small-2", "large-1", "large-2")
AGENTS = ("planner", "worker", "critic", "browser", "coder")
CODES = tuple(f"kind.{group}.{leaf}" for group in "abcd" for leaf in range(6))
WORDS = (
    "book",
    "find",
    "compare",
    "write",
    "flight",
    "report",
    "invoice",
    "weather",
    "table",
    "price",
    "for",
    "to",
)
BEGAN = 1_760_000_000.0

QUESTIONS: dict[str, tuple[RunSummaryFilter, RunSort, str]] = {
    "newest": (RunSummaryFilter(), RunSort(), ""),
    "failed, newest": (
        RunSummaryFilter(verdicts=frozenset({VerdictFilter.FAILED})),
        RunSort(),
        "verdict=failed",
    ),
    "by cost": (RunSummaryFilter(), RunSort(by="cost"), "sort=cost"),
    "failed, one kind, by tokens": (
        RunSummaryFilter(verdicts=frozenset({VerdictFilter.FAILED}), code="kind.b"),
        RunSort(by="tokens"),
        "verdict=failed&code=kind.b&sort=tokens",
    ),
    "a tag and a model, longest": (
        RunSummaryFilter(tag="nightly", model="large-1"),
        RunSort(by="duration"),
        "tag=nightly&model=large-1&sort=duration",
    ),
    "a word, by probability": (
        RunSummaryFilter(text="invoice weather"),
        RunSort(by="probability"),
        "q=invoice+weather&sort=probability",
    ),
    "found nowhere": (RunSummaryFilter(text="no such words"), RunSort(), "q=no+such+words"),
}


def rows_of(number: int, dice: random.Random) -> list[Row]:
    """Return the rows of a run: the run, one step with its cost, a diagnosis, sometimes a recovery."""
    id, began = f"run-{number:07}", BEGAN + number * 17.0 + dice.random()
    model = dice.choice(MODELS)
    spent = {"prompt_tokens": dice.randrange(500, 90_000), "completion_tokens": dice.randrange(50, 4_000)}
    tags = [dice.choice(["nightly", "manual"]), f"release-{dice.randrange(30)}"]
    task = " ".join(dice.choices(WORDS, k=dice.randrange(6, 30)))
    step = {
        "model": model,
        "usage": {**spent, "cost_usd": round(sum(spent.values()) * 2e-6, 6)},
        "started_at": began,
        "ended_at": began + dice.expovariate(1 / 60),
    }
    rows: list[Row] = [
        RunRow(id=id, task=task, format="made", created_at=began, data={"extra": {"tags": tags}}, length=1),
        StepRow(run_id=id, index=dice.randrange(3, 60), agent="worker", data=step),
    ]
    verdict = dice.choices(["failed", "no_failure_found", "undecided", ""], [35, 45, 15, 5])[0]
    if verdict:
        failed = verdict == "failed"
        rows.append(
            DiagnosisRow(
                run_id=id, method="embedded", verdict=verdict, probability=dice.random(),
                created_at=began + 99, step=dice.randrange(40) if failed else None,
                agent=dice.choice(AGENTS) if failed else "",
                code=dice.choice(CODES) if failed else "", module="planning" if failed else "",
            )
        )  # fmt: skip
    if verdict == "failed" and dice.random() < 0.3:
        outcome = dice.choice(["recovered", "failed"])
        rows.append(RecoveryRow(run_id=id, strategy="truncate", outcome=outcome, created_at=began + 99))
    return rows


def fill(store: Store, runs: int) -> float:
    """Write the runs; return the rows per second until all are durable."""
    dice, written, begun = random.Random(SEED), 0, time.perf_counter()
    for number in range(runs):
        rows = rows_of(number, dice)
        store.write(*rows)
        written += len(rows)
        if number % 2_000 == 1_999:
            store.flush(300)
    store.flush(300)
    health = store.get_health()
    assert not health.lost + health.refused, health
    return written / (time.perf_counter() - begun)


def milliseconds(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "p50_ms": round(statistics.median(ordered) * 1e3, 2),
        "p95_ms": round(ordered[int(len(ordered) * 0.95)] * 1e3, 2),
    }


def timed(ask: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    ask()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        ask()
        times.append(time.perf_counter() - start)
    return times


def naive(store: Store, filter: RunSummaryFilter, sort: RunSort) -> list[str]:
    """Read every run and its latest diagnosis, as a viewer without overviews does."""
    held, after = [], None
    while True:
        part = store.list_runs(page=Page(limit=1000, after=after))
        for run in part.rows:
            diagnoses = store.list_diagnoses(run.id)
            held.append((run, diagnoses[-1] if diagnoses else None))
        after = part.next
        if after is None:
            break
    wanted = {str(one) for one in filter.verdicts}
    kept = [
        (run, said)
        for run, said in held
        if (not wanted or (said is not None and said.verdict in wanted))
        and (not filter.code or (said is not None and said.code.startswith(filter.code)))
        and (not filter.text or filter.text in run.task)
    ]
    kept.sort(key=lambda one: one[0].created_at, reverse=sort.descending)
    return [run.id for run, _ in kept[:50]]


def measure(url: str | Path, runs: int, *, peer: bool) -> dict[str, object]:
    with Store.open(url) as store:
        found: dict[str, object] = {"runs": runs, "python": platform.python_version()}
        if not store.count_run_summaries(max_count=1):
            found["rows_written_per_s"] = round(fill(store, runs))
        client = TestClient(build_app(store), base_url="http://127.0.0.1")
        for name, (filter, sort, query) in QUESTIONS.items():
            asked = timed(
                lambda filter=filter, sort=sort: store.list_run_summaries(filter, sort, Page(limit=50))
            )
            pages = timed(lambda query=query: client.get(f"/?{query}").raise_for_status())
            found[name] = {"store": milliseconds(asked), "page": milliseconds(pages)}
        found["a late page"] = milliseconds(timed(lambda: late(store)))
        found["facets"] = milliseconds(timed(store.get_facets, 5))
        found["count"] = milliseconds(timed(lambda: store.count_run_summaries(max_count=10_001), 5))
        if peer:
            filter, sort, _ = QUESTIONS["failed, newest"]
            start = time.perf_counter()
            naive(store, filter, sort)
            took = time.perf_counter() - start
            store_ms = found["failed, newest"]["store"]["p50_ms"]
            found["peer"] = {"ms": round(took * 1e3), "store_over_peer": round(store_ms / took / 1e3, 6)}
    return found


def late(store: Store) -> object:
    """Request a page near the end, by the key of the row before it."""
    from agentguard.store.read.summary_queries import _encode_cursor

    return store.list_run_summaries(
        page=Page(limit=50, after=_encode_cursor(RunSort(), BEGAN + 17.0 * 1000, "run-0001000"))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--postgres", metavar="URL", help="also measure this empty PostgreSQL database")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; a temporary one, if absent")
    parser.add_argument("--keep", type=Path, help="the SQLite file to fill, or to use if it is there")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        path = chosen.keep or Path(folder) / "store.db"
        found = {"sqlite": measure(path, chosen.runs, peer=True)}
    if chosen.postgres:
        found["postgresql"] = measure(chosen.postgres, chosen.runs, peer=False)
    if chosen.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(name)
        for key, value in figures.items():
            print(f"  {key:30} {value}")


if __name__ == "__main__":
    main()
