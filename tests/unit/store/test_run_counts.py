"""Numbers of runs by value and day."""

import itertools
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import select

from agentguard.store import Store
from agentguard.store.db.rows import DiagnosisRow, FindingRow, RunRow, StepRow
from agentguard.store.db.tables import OVERVIEWS, RUN_COUNTS
from agentguard.store.write.run_counts import DAY_S
from tests.postgres import postgres, postgres_url  # noqa: F401

RUN_IDS = st.sampled_from(["a", "b", "c", "d"])
TIMES = st.sampled_from([0.0, 5.0, DAY_S - 0.5, DAY_S, 20_000.5 * DAY_S, -3.0, 1e200])
VERDICTS = st.sampled_from(["failed", "no_failure_found", "undecided"])
NAMES = st.sampled_from(["", "x", "y"])
LABELS = st.lists(st.sampled_from(["one", "two words", "three"]), max_size=3)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        str(tmp_path / "store.db")
        if request.param == "sqlite"
        else str(request.getfixturevalue("postgres_url"))
    )


def read_counts(store: Store, tenants: tuple[str, ...]) -> dict[tuple[str, str, int, str], int]:
    with store.begin_read() as connection:
        rows = connection.execute(select(RUN_COUNTS).where(RUN_COUNTS.c.tenant.in_(tenants)))
        return {tuple(row)[:4]: row.runs for row in rows}


def count_summaries(store: Store, tenants: tuple[str, ...]) -> dict[tuple[str, str, int, str], int]:
    """Return the counts of the stored summaries, computed without the code under test."""
    counts: Counter[tuple[str, str, int, str]] = Counter()
    with store.begin_read() as connection:
        rows = connection.execute(select(OVERVIEWS).where(OVERVIEWS.c.tenant.in_(tenants))).all()
    for row in rows:
        if not row.known:
            continue
        day = int(row.began_at // DAY_S) if 0 <= row.began_at < 1e11 else -1
        keys = [("verdict", day, row.verdict), ("code", -1, row.code), ("agent", -1, row.agent)]
        keys += [("model", -1, one) for one in row.models.strip("\n").split("\n") if one]
        keys += [("tag", -1, one) for one in row.tags.strip("\n").split("\n") if one]
        if row.verdict == "failed":
            keys += [("failed_code", day, row.code), ("failed_agent", day, row.agent)]
        counts.update((row.tenant, *key) for key in keys)
    return dict(counts)


class Changes(RuleBasedStateMachine):
    """Writes and deletions in two tenants of one store; each example has its own tenants."""

    url = ""
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.tenants = tuple(f"{name}{next(self.numbers)}" for name in "st")
        self.store = Store.open(self.url)
        self.ids = itertools.count()

    def teardown(self) -> None:
        self.store.close()

    @rule(tenant=st.integers(0, 1), run=RUN_IDS, at=TIMES, tags=LABELS)
    def write_run(self, tenant: int, run: str, at: float, tags: list[str]) -> None:
        extra = {"extra": {"tags": tags}}
        self.store.write(RunRow(id=run, created_at=at, tenant=self.tenants[tenant], data=extra))

    @rule(tenant=st.integers(0, 1), run=RUN_IDS, index=st.integers(0, 2), model=NAMES, at=TIMES)
    def write_step(self, tenant: int, run: str, index: int, model: str, at: float) -> None:
        data = {"source": "agent", "model": model, "started_at": at}
        self.store.write(StepRow(run_id=run, index=index, tenant=self.tenants[tenant], data=data))

    @rule(tenant=st.integers(0, 1), run=RUN_IDS, verdict=VERDICTS, agent=NAMES, code=NAMES, at=TIMES)
    def write_diagnosis(self, tenant: int, run: str, verdict: str, agent: str, code: str, at: float) -> None:
        row = DiagnosisRow(
            id=str(next(self.ids)), run_id=run, tenant=self.tenants[tenant], method="m",
            verdict=verdict, agent=agent, code=code, created_at=at,
        )  # fmt: skip
        self.store.write(row, FindingRow(run_id=run, tenant=self.tenants[tenant], detector="d"))

    @rule(tenant=st.integers(0, 1), run=RUN_IDS)
    def delete_run(self, tenant: int, run: str) -> None:
        self.store.delete_run(run, tenant=self.tenants[tenant])

    @rule(tenant=st.integers(0, 1), age_s=st.sampled_from([0.0, 1e9]), keep_failed=st.booleans())
    def prune(self, tenant: int, age_s: float, keep_failed: bool) -> None:
        self.store.prune(older_than_s=age_s, keep_failed=keep_failed, tenant=self.tenants[tenant])

    @rule(tenant=st.integers(0, 1))
    def delete_tenant(self, tenant: int) -> None:
        self.store.delete_tenant(self.tenants[tenant])
        assert read_counts(self.store, (self.tenants[tenant],)) == {}

    @rule()
    def rebuild(self) -> None:
        self.store.rebuild_run_summaries()

    @invariant()
    def counts_equal_summaries(self) -> None:
        self.store.flush(20)
        assert self.store.get_health().refused == 0
        assert read_counts(self.store, self.tenants) == count_summaries(self.store, self.tenants)


def test_counts_equal_summaries_after_any_changes(url: str) -> None:
    run_state_machine_as_test(
        type("StoreChanges", (Changes,), {"url": url}),
        settings=settings(
            max_examples=12,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_counts_of_concurrent_writers_and_deletions_are_exact(url: str) -> None:
    def write(name: str) -> None:
        with Store.open(url) as store:
            for number in range(60):
                for tenant in ("t", "u"):
                    run_id = f"{name}-{number}"
                    store.write(
                        RunRow(id=run_id, created_at=DAY_S * (number % 3), tenant=tenant),
                        DiagnosisRow(
                            run_id=run_id, method="m", verdict="failed", code="c", agent=name, tenant=tenant
                        ),
                    )
                if number % 10 == 9:
                    store.flush(20)
                    store.delete_run(f"{name}-{number - 5}", tenant="t")
            store.flush(20)
            assert store.get_health().lost == 0

    threads = [threading.Thread(target=write, args=(name,)) for name in ("p", "q", "r")]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    with Store.open(url) as store:
        counts = read_counts(store, ("t", "u"))
        assert counts == count_summaries(store, ("t", "u"))
        assert counts["t", "failed_code", 0, "c"] + counts["t", "failed_code", 1, "c"] < 120
        assert counts["u", "code", -1, "c"] == 180


def test_migration_counts_existing_runs(url: str) -> None:
    with Store.open(url) as store:
        store.write(RunRow(id="r", created_at=time.time(), data={"extra": {"tags": ["nightly"]}}))
        store.flush(10)
        before = read_counts(store, ("",))
        with store._database.get_engine().begin() as connection:
            connection.execute(RUN_COUNTS.delete())
    Store.migrate(url)
    with Store.open(url) as store:
        assert read_counts(store, ("",)) == before != {}
