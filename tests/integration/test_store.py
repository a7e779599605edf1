"""Contract of a store, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import string
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Engine, event

from agentguard.errors import RowsLost, StoreError, StoreTimeout
from agentguard.store import Store
from agentguard.store.db.rows import (
    AcceptanceRow,
    ClearRunRow,
    DiagnosisRow,
    DropSnapshotsRow,
    EffectRow,
    FindingRow,
    JudgementRow,
    RecoveryRow,
    RunRow,
    SchemaRow,
    SessionRow,
    SnapshotRow,
    VerdictRow,
    compute_verdict_key,
)
from agentguard.store.db.run_summary import RunSort, RunSummaryFilter
from agentguard.store.read.pagination import Page, RunFilter
from agentguard.store.trajectory_mapping import build_branch_row, build_run_row, build_step_row
from agentguard.store.write import retention
from agentguard.trajectory.event_log.recorder import EventLogState
from agentguard.trajectory.model import (
    Annotation,
    Branch,
    Observation,
    Record,
    RootCause,
    Source,
    Step,
    ToolCall,
    Trajectory,
    Usage,
)

NASTY = "half \ud800 a pair, zero \x00, 'quotes\"; DROP TABLE agentguard_runs; -- \u2028 😀"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def store(url):
    with Store.open(url) as opened:
        yield opened


def step(index: int, content: str = "") -> Step:
    return Step(index=index, source=Source.AGENT, agent="planner", content=content or f"step {index}")


def whole(id: str = "run-1") -> Record:
    """Return a run with every optional part."""
    call = ToolCall(id="c1", name="book", arguments={"n": 10**30, "deep": {"list": [1, None, NASTY]}})
    seen = Observation(content=NASTY, call_id="c1", tool="book", is_error=True, extra={"code": 409})
    rich = Step(
        index=1,
        source=Source.AGENT,
        agent="actor\x00",
        content=NASTY,
        reasoning="because",
        modules={"planning": "first this"},
        tool_calls=(call, ToolCall(id="c2", name="", raw_arguments='{"cut')),
        observations=(seen,),
        started_at=1.5,
        ended_at=2.25,
        usage=Usage(prompt_tokens=3, cost_usd=0.001),
        model="m",
        source_index=7,
        extra={"k": [True, 1.5]},
    )
    left = Branch(
        id="b1", fork_step=1, steps=(step(1, "left"), step(2)), reason="loop", extra={"by": "guard"}
    )
    inner = Branch(id="a0", fork_step=2, steps=(step(2, "inner"),), parent="b1")
    run = Trajectory(
        id=id,
        format="event_log",
        task=NASTY * 20,
        steps=(step(0), rich, step(2, "x" * 100_000)),
        system_prompts={"": "be good"},
        branches=(left, inner, Branch(id="b2", fork_step=0, steps=())),
        extra={"seed": 3},
    )
    judged = Annotation(failed=True, root_cause=RootCause(step=1, agent="actor"), group="Q 1", answer="42")
    return Record(trajectory=run, annotation=judged)


def test_run_round_trips(store):
    record = whole()
    store.write_run(record).wait(10)
    assert store.get_record("run-1") == record
    assert store.get_trajectory("run-1") == record.trajectory
    assert store.get_trajectory("run-2") is None


def test_rewritten_run_replaces_the_first(store):
    store.write_run(whole()).wait(10)
    shorter = Trajectory(id="run-1", format="other", task="t", steps=(step(0),))
    store.write_run(shorter).wait(10)
    assert store.get_record("run-1") == Record(trajectory=shorter)
    assert store.get_stats().rows["steps"] == 1


def test_run_written_live_equals_recorded_run(store):
    """Steps, two rollbacks and new steps, written live, and repeated as after a lost answer."""
    meta = Trajectory(id="live", format="event_log", task="t", steps=())
    state = EventLogState(meta)
    rows = [build_run_row(meta)]
    script = [("step", 0), ("step", 1), ("step", 2), ("fork", "b1", 2), ("step", 2), ("step", 3)]
    script += [("fork", "b2", 1), ("step", 1)]
    for at, (what, *rest) in enumerate(script):
        if what == "step":
            made = step(rest[0], f"line {at}")
            state.append_step(made)
            rows.append(build_step_row("live", made, created_at=float(at)))
        else:
            left = state.fork_branch(*rest, reason="loop", extra={})
            rows.append(build_branch_row("live", left, created_at=float(at), takes=True))
    store.write(*rows).wait(10)
    assert store.get_trajectory("live") == state.to_record().trajectory
    assert [b.id for b in store.get_trajectory("live").branches] == ["b1", "b2"]
    assert store.get_trajectory("live").branches[0].parent == "b2"


def test_every_row_round_trips(store):
    run = {"run_id": "r", "data": {"text": NASTY, "big": 10**40, "deep": [[[{}]]]}}
    rows = [
        FindingRow(detector="loop", step=3, code="mast:loop", probability=0.5, **run),
        DiagnosisRow(method="m" * 1000, verdict="failed", probability=0.9, step=2, agent=NASTY, **run),
        RecoveryRow(strategy="rollback", step=1, schema_id="s", updated_at=2.0, **run),
        JudgementRow(subject="diagnosis", subject_id="d", right=False, by="Ada", **run),
    ]
    store.write(*rows).wait(10)
    assert store.list_findings("r") == (rows[0],)
    assert store.list_diagnoses("r") == (rows[1],)
    assert store.list_recoveries("r") == (rows[2],)
    assert store.list_judgements("r") == (rows[3],)


def test_snapshots_are_read_and_dropped_by_step(store):
    states = [bytes(range(256)) * step for step in range(4)]
    rows = [SnapshotRow(run_id="r", step=step, state=states[step], data={"n": step}) for step in (2, 0, 3, 1)]
    store.write(*rows, SnapshotRow(run_id="other", step=1, state=b"x"))
    store.write(replace(rows[2], state=b"again"), DropSnapshotsRow(run_id="r", steps=(1, 2, 9))).wait(10)
    assert store.list_snapshots("r") == (rows[1], replace(rows[2], state=b"again"))
    assert [one.state for one in store.list_snapshots("other")] == [b"x"]
    assert store.list_snapshots("r", tenant="t") == ()
    store.write(ClearRunRow(run_id="r")).wait(10)
    assert store.list_snapshots("r") == ()
    assert store.get_stats().rows["snapshots"] == 1


def test_invalid_or_too_large_state_is_rejected(store):
    for state in ("text", bytes(32 * 1024 * 1024 + 1)):
        with pytest.raises(RowsLost, match=r"state is (a str, not bytes|larger than 33,554,432 bytes)"):
            store.write(SnapshotRow(run_id="r", step=1, state=state)).wait(20)
    assert store.get_health().refused == 2


def test_size_of_snapshots_is_counted(store):
    before = store.get_stats().bytes_in_use
    store.write(SnapshotRow(run_id="r", step=1, state=bytes(100_000))).wait(10)
    assert store.get_stats().bytes_in_use >= before + 95_000


def test_non_finite_numbers_are_stored(store):
    store.write(FindingRow(run_id="r", detector="d", probability=math.nan, data={"p": math.inf})).wait(10)
    (found,) = store.list_findings("r")
    assert found.probability is None
    assert found.data == {"p": math.inf}


def test_rows_keep_their_order(store):
    rows = tuple(FindingRow(run_id="r", detector="d", step=i, created_at=5.0) for i in range(50))
    for row in rows:
        store.write(row)
    store.flush(10)
    assert store.list_findings("r") == rows


def test_row_with_known_id_is_stored_once(store):
    row = FindingRow(run_id="r", detector="d")
    store.write(row, row).wait(10)
    store.write(row).wait(10)
    assert store.list_findings("r") == (row,)


def test_recovery_outcome_is_added_later(store):
    planned = RecoveryRow(run_id="r", strategy="rollback")
    store.write(planned).wait(10)
    ended = replace(planned, outcome="recovered", updated_at=9.0)
    store.write(ended).wait(10)
    assert store.list_recoveries("r") == (ended,)


def test_schemata_are_replaced_only_by_newer_versions(store):
    second = SchemaRow(id="s1", version=2, support=4, data={"signature": ["a"]}, origin="natural")
    store.write(second, replace(second, version=1, support=9)).wait(10)
    assert store.list_schemata() == (second,)
    third = replace(second, version=3, status="retired")
    store.write(third, SchemaRow(id="s2", origin="injected")).wait(10)
    assert third in store.list_schemata()
    assert [one.id for one in store.list_schemata(status="active")] == ["s2"]
    assert [one.id for one in store.list_schemata(origin="natural")] == ["s1"]
    assert len(store.list_schemata()) == 2


def test_concurrent_schema_updates_are_atomic(store, url):
    store.write(SchemaRow(id="s", data={"n": 0})).wait(10)
    read = []

    def count_up(one):
        held, known = {}, {}

        def more(rows):
            read.append(len(rows))
            held.update({row.id: row for row in rows})
            n = held["s"].data["n"] + 1
            held["s"] = replace(held["s"], updated_at=float(n), data={"n": n})
            return [held["s"]]

        for _ in range(10):
            known = one.update_schemata(more, known_versions=known)

    with Store.open(url) as other, ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(count_up, one) for one in (store, other)]:
            done.result(60)
    assert store.list_schemata()[0].data["n"] == 20
    count_up(store)
    assert read[-9:] == [0] * 9, "what nobody else has changed is not read again"


def test_unstorable_schema_update_changes_nothing(store):
    store.write(SchemaRow(id="s", data={"n": 0})).wait(10)
    with pytest.raises(StoreError, match="cannot be stored"):
        store.update_schemata(lambda rows: [replace(rows[0], data={"n": 1}), SchemaRow(id="")])
    assert store.list_schemata()[0].data["n"] == 0


def test_verdicts_are_found_by_key(store):
    key = compute_verdict_key(NASTY, "question", "judge", "1")
    assert store.get_verdict(key) is None
    store.write(VerdictRow(key=key, judge="judge", data={"p": 0.25})).wait(10)
    store.write(VerdictRow(key=key, judge="judge", data={"p": 0.75})).wait(10)
    assert store.get_verdict(key).data == {"p": 0.75}
    assert store.get_verdict(compute_verdict_key(NASTY, "question", "judge", "2")) is None


def test_invalid_row_does_not_affect_other_rows(store):
    circle: dict = {}
    circle["me"] = circle
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    bad = [
        FindingRow(run_id="", detector="d"),
        FindingRow(run_id="r\x00", detector="d"),
        FindingRow(run_id="r" * 1000, detector="d"),
        FindingRow(run_id="r", detector="d", step=2**80),
        FindingRow(run_id="r", detector="d", data={"x": object()}),
        FindingRow(run_id="r", detector="d", data=circle),
        FindingRow(run_id="r", detector="d", data={"deep": deep}),
        FindingRow(run_id="r", detector="d", created_at=math.nan),
        FindingRow(run_id="r", detector=7),  # type: ignore[arg-type]
        FindingRow(run_id="r", detector="d", tenant="t\ud800"),
        EffectRow(run_id="r", tool="t", arguments="a"),
        RunRow(id="r", failed="no"),  # type: ignore[arg-type]
    ]
    good = [FindingRow(run_id="r", detector="d", step=i) for i in range(len(bad))]
    receipt = store.write(*(row for pair in zip(bad, good, strict=True) for row in pair))
    with pytest.raises(RowsLost, match="refused: FindingRow: run_id is empty"):
        receipt.wait(10)
    assert receipt.state == "refused"
    assert store.list_findings("r") == tuple(good)
    health = store.get_health()
    assert (health.written, health.refused, health.lost, health.ok) == (len(good), len(bad), 0, True)
    assert health.last_refusal == "RunRow: failed is a str, not true or false"


def test_row_rejected_by_database_is_omitted_alone(store):
    """Our own checks admit no such row; a column with less space than expected would cause it."""
    store.write(FindingRow(run_id="r", detector="before")).wait(10)
    with store._database.get_engine().begin() as connection:
        connection.exec_driver_sql("CREATE UNIQUE INDEX one_detector ON agentguard_findings (detector)")
    rows = [FindingRow(run_id="r", detector=name) for name in ("a", "before", "b")]
    receipt = store.write(*rows)
    with pytest.raises(RowsLost, match="the database rejected it"):
        receipt.wait(10)
    assert [one.detector for one in store.list_findings("r")] == ["before", "a", "b"]
    assert "before" not in receipt.reason


def test_write_never_raises(store):
    assert store.write(42).state == "refused"  # type: ignore[arg-type]
    assert store.write(None, "text").state == "refused"  # type: ignore[arg-type]
    store.write().wait(10)
    store.close()
    late = store.write(FindingRow(run_id="r", detector="d"))
    assert (late.state, late.reason) == ("lost", "the store is closed")
    assert store.get_health().lost == 1


def test_unit_of_work_is_written_together(store):
    before = store._writer._queue.added_count
    with store.unit_of_work():
        first = store.write(SchemaRow(id="a"))
        with store.unit_of_work():
            second = store.write(SchemaRow(id="b"), SchemaRow(id="c"))
        assert store._writer._queue.added_count == before, "nothing is queued before the block ends"
    assert first is second
    assert store._writer._queue.added_count == before + 1
    first.wait(10)
    assert len(store.list_schemata()) == 3
    with contextlib.suppress(KeyError), store.unit_of_work():
        store.write(SchemaRow(id="d"))
        raise KeyError
    assert store.write(SchemaRow(id="e")) is not first
    store.flush(10)
    assert len(store.list_schemata()) == 5


def test_unit_of_work_is_limited_to_its_thread(store):
    with store.unit_of_work():
        store.write(SchemaRow(id="mine"))
        other = threading.Thread(target=lambda: store.write(SchemaRow(id="theirs")).wait(10))
        other.start()
        other.join()
        assert [one.id for one in store.list_schemata()] == ["theirs"]
    store.flush(10)
    assert len(store.list_schemata()) == 2


def test_receipt_can_be_awaited(store):
    async def main() -> None:
        receipts = [store.write(FindingRow(run_id="r", detector="d", step=i)) for i in range(20)]
        await asyncio.gather(*receipts)
        await receipts[0]
        assert len(await asyncio.to_thread(store.list_findings, "r")) == 20
        with pytest.raises(RowsLost):
            await store.write(FindingRow(run_id="", detector="d"))

    asyncio.run(main())


def test_cancelled_wait_loses_no_rows(store):
    async def main() -> None:
        for i in range(10):
            task = asyncio.ensure_future(store.write(FindingRow(run_id="r", detector="d", step=i)))
            await asyncio.sleep(0)
            task.cancel()

    asyncio.run(main())
    store.flush(10)
    assert len(store.list_findings("r")) == 10


def test_unawaited_rows_are_batched(store, monkeypatch):
    """Rows may wait for long, but wait, flush and close write them at once."""
    monkeypatch.setattr(store._writer, "_max_commit_delay_s", 600.0)
    row = FindingRow(run_id="r", detector="d")
    held = store.write(row)
    with pytest.raises(StoreTimeout):
        store.flush(0.2, immediate=False)
    assert (held.state, store.list_findings("r")) == ("pending", ())
    held.wait(20)
    assert store.list_findings("r") == (row,)

    async def awaited() -> None:
        async with asyncio.timeout(20):
            await store.write(row)

    asyncio.run(awaited())
    store.write(row)
    store.flush(20)
    late = store.write(row)
    store.close(20)
    assert late.state == "written"
    assert store._writer._queue.condition.waiter_count == 0


def test_many_threads_write_and_claim(store):
    new = []

    def work(number: int) -> None:
        for i in range(20):
            store.write(FindingRow(run_id=f"r{number}", detector="d", step=i))
            claim = store.claim(EffectRow(run_id="r", tool="book", arguments=str(i)))
            if claim.state == "new":
                new.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    store.flush(20)
    assert sorted(new) == list(range(20))
    assert all(len(store.list_findings(f"r{i}")) == 20 for i in range(6))


def test_two_stores_share_one_database(store, url):
    with Store.open(url) as other:
        rows = [FindingRow(run_id="r", detector="d", step=i) for i in range(200)]
        receipts = [(store if i % 2 else other).write(row) for i, row in enumerate(rows)]
        for receipt in receipts:
            receipt.wait(20)
        assert {one.step for one in other.list_findings("r")} == set(range(200))


EFFECT = EffectRow(run_id="r", line="main", tool="book", arguments="ab12", logical_step="3", data={"seat": 7})


def test_effect_is_claimed_once(store, url):
    first = store.claim(EFFECT)
    assert first.state == "new"
    with Store.open(url) as other:
        again = other.claim(replace(EFFECT, data={}))
    assert (again.state, again.effect) == ("attempted", EFFECT)
    assert store.settle(EFFECT, "done", result={"booking": "X1"})
    assert not store.settle(EFFECT, "done", result={"booking": "X2"})
    done = store.claim(EFFECT)
    assert (done.state, done.effect.data) == ("done", {"booking": "X1"})
    assert store.settle(EFFECT, "compensated")
    assert not store.settle(EFFECT, "compensated")
    assert not store.settle(EFFECT, "done")
    assert store.claim(EFFECT).state == "compensated"
    assert [one.state for one in store.list_effects("r")] == ["compensated"]
    assert store.list_effects("r")[0].settled_at is not None


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "q"},
        {"line": "b"},
        {"tool": "pay"},
        {"arguments": "x"},
        {"logical_step": "4"},
        {"tenant": "t"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_different_effect_is_claimed_separately(store, change):
    assert store.claim(EFFECT).state == "new"
    assert store.claim(replace(EFFECT, **change)).state == "new"


def test_unclaimed_effect_is_not_settled(store):
    assert not store.settle(EFFECT, "done", result={})
    with pytest.raises(StoreError, match="ambiguous, done, reconciled, compensated"):
        store.settle(EFFECT, "attempted")  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="run_id is empty"):
        store.claim(replace(EFFECT, run_id=""))


def test_tenants_are_separated(store):
    """Run every query for one tenant against the other tenant's rows."""
    for tenant in ("a", "b"):
        record = Record(trajectory=Trajectory(id="r", format="f", task=tenant, steps=(step(0),)))
        store.write_run(record, tenant=tenant)
    own = {"tenant": "a"}
    store.write(
        FindingRow(run_id="r", detector="d", **own),
        DiagnosisRow(run_id="r", method="m", verdict="failed", **own),
        SchemaRow(id="s", **own),
        VerdictRow(key="k", **own),
        RecoveryRow(run_id="r", strategy="s", **own),
        JudgementRow(run_id="r", subject="s", subject_id="x", right=True, **own),
    ).wait(10)
    store.claim(replace(EFFECT, tenant="a"))

    def answers(tenant: str) -> list[object]:
        asked = {"tenant": tenant}
        lists = [
            ask("r", **asked)
            for ask in (
                store.list_findings,
                store.list_diagnoses,
                store.list_recoveries,
                store.list_effects,
                store.list_judgements,
            )
        ]
        pages = [store.list_schemata(**asked)]
        return [
            *lists,
            *pages,
            *filter(None, [store.get_verdict("k", **asked)]),
        ]

    assert len(answers("a")) == 7
    assert all(answers("a"))
    assert not any(answers("b"))
    assert not any(answers(""))
    assert store.get_trajectory("r", tenant="a").task == "a"
    assert store.get_trajectory("r", tenant="b").task == "b"
    assert store.get_trajectory("r") is None
    assert [one.tenant for one in store.list_runs(tenant="b").rows] == ["b"]
    store.delete_run("r", tenant="b")
    assert len(answers("a")) == 7
    store.delete_tenant("a")
    assert sum(store.get_stats().rows.values()) == 0


HOSTILE = [
    "' OR 1=1 --",
    '"; DROP TABLE agentguard_runs; --',
    "%",
    "_",
    "\\",
    "\x00",
    "\ud800",
    "../../etc/passwd",
]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_queries_find_nothing_and_change_nothing(store, text):
    record = Record(trajectory=Trajectory(id="r", format="f", task="t", steps=(step(0),)))
    store.write_run(record, tenant="t").wait(10)
    asks = [
        lambda: store.get_trajectory(text, tenant="t"),
        lambda: store.get_trajectory("r", tenant=text),
        lambda: store.get_verdict(text),
        lambda: store.list_findings(text),
        lambda: store.list_schemata(status=text, origin=text),
        lambda: store.list_runs(RunFilter(format=text, group=text), tenant="t").rows,
        lambda: store.list_runs(page=Page(after=text), tenant="t").rows,
    ]
    for ask in asks:
        try:
            assert not ask()
        except StoreError as error:
            assert text not in str(error) or len(text) == 1
    assert store.get_trajectory("r", tenant="t") == record.trajectory


def test_runs_are_listed_in_pages(store):
    for i in range(25):
        store.write(RunRow(id=f"r{i:02}", created_at=float(i // 10), failed=i % 3 == 0 or None, format="f"))
    store.write(RunRow(id="other", created_at=99.0, format="g", group="q"))
    store.flush(10)
    seen, after = [], None
    while True:
        page = store.list_runs(RunFilter(format="f"), Page(limit=7, after=after))
        seen += [one.id for one in page.rows]
        after = page.next
        if after is None:
            break
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == 25
    assert len(store.list_runs(RunFilter(failed=True)).rows) == 9
    assert store.list_runs(RunFilter(failed=False)).rows == ()
    assert len(store.list_runs(RunFilter(since=1.0, until=2.0)).rows) == 10
    assert [one.id for one in store.list_runs(RunFilter(group="q")).rows] == ["other"]


@pytest.mark.parametrize("limit", [0, -1, 1001, True, 1.5])
def test_page_size_is_bounded(limit):
    with pytest.raises(StoreError, match="from 1 to 1000"):
        Page(limit=limit)


def filled(store: Store) -> float:
    """Return four runs with all related rows, one per hour; the first failed, the second was diagnosed."""
    now = time.time()
    for i in range(4):
        at = {"created_at": now - (4 - i) * 3600}
        run = Trajectory(id=f"r{i}", format="f", task="t", steps=(step(0, "x" * 5000),))
        judged = Annotation(failed=True) if i == 0 else Annotation()
        of = {"run_id": f"r{i}", **at}
        store.write(build_run_row(run, judged, **at), build_step_row(run.id, run.steps[0], **at))
        store.write(build_branch_row(run.id, Branch(id="b", fork_step=0, steps=()), **at))
        store.write(
            FindingRow(detector="d", **of),
            DiagnosisRow(method="m", verdict="failed" if i == 1 else "no_failure_found", **of),
            VerdictRow(key=f"k{i}", **of),
            RecoveryRow(strategy="s", **of),
            JudgementRow(subject="s", subject_id="x", right=True, **of),
            SnapshotRow(step=1, state=b"s" * 100, **of),
            AcceptanceRow(accepted=True, **of),
            SessionRow(key=f"key{i}", **of),
        )
        store.claim(EffectRow(tool="t", arguments="a", **of))
    store.write(SchemaRow(id="s"), JudgementRow(subject="schema", subject_id="s", right=True, created_at=1.0))
    store.flush(10)
    return now


PER_RUN = {
    "runs", "steps", "branches", "findings", "diagnoses", "verdicts", "recoveries", "effects", "judgements",
    "snapshots", "acceptances", "sessions",
}  # fmt: skip


def test_deleted_run_loses_all_its_rows(store):
    filled(store)
    before = store.get_stats().rows
    gone = store.delete_run("r2")
    assert gone.rows == dict.fromkeys(PER_RUN, 1)
    after = store.get_stats().rows
    assert {name: before[name] - after[name] for name in before} == {
        **gone.rows,
        "schemata": 0,
        "issues": 0,
        "saved_views": 0,
        "hints": 0,
        "overviews": 1,
    }
    assert store.get_trajectory("r2") is None
    assert sum(store.delete_run("r2").rows.values()) == 0


def test_prune_deletes_old_runs(store):
    filled(store)
    gone = store.prune(older_than_s=2.5 * 3600)
    assert gone.rows == dict.fromkeys(PER_RUN, 2)
    assert [one.id for one in store.list_runs().rows] == ["r3", "r2"]
    assert len(store.list_schemata()) == 1
    assert store.get_stats().rows["judgements"] == 3  # feedback on a schema has no run


def test_prune_can_keep_failures(store):
    filled(store)
    store.prune(older_than_s=0, keep_failed=True)
    assert [one.id for one in store.list_runs().rows] == ["r1", "r0"]
    assert len(store.get_trajectory("r0").steps) == 1


def test_prune_can_be_limited_to_one_tenant(store):
    filled(store)
    store.write(RunRow(id="theirs", tenant="t", created_at=1.0)).wait(10)
    assert store.prune(older_than_s=60, tenant="t").rows["runs"] == 1
    assert len(store.list_runs().rows) == 4


def test_prune_deletes_rows_without_run(store):
    filled(store)
    store.write(FindingRow(run_id="ghost", detector="d", created_at=1.0)).wait(10)
    gone = store.prune(older_than_s=24 * 3600)
    assert {name: count for name, count in gone.rows.items() if count} == {"findings": 1}


def test_prune_shrinks_to_a_size(store):
    random.seed(1)
    for i in range(40):
        text = "".join(random.choices("abcdefghijklmnop0123456789", k=60_000))
        run = Trajectory(id=f"r{i:02}", format="f", task="t", steps=(step(0, text),))
        store.write(
            build_run_row(run, created_at=float(i)), build_step_row(run.id, run.steps[0], created_at=float(i))
        )
    store.flush(10)
    used = store.get_stats().bytes_in_use
    gone = store.prune(max_bytes=int(used * 0.6))
    assert gone.bytes_before == used
    assert used * 0.4 < gone.bytes_after <= used * 0.6
    left = [one.id for one in store.list_runs().rows]
    assert left == [f"r{i:02}" for i in range(39, 39 - len(left), -1)]  # the newest remain
    assert 15 < len(left) < 30


def test_bytes_in_use_of_a_large_table_are_estimated(store, monkeypatch):
    texts = (
        f"{number:06}" + "".join(random.Random(number).choices(string.hexdigits, k=1_000))
        for number in range(3_000)
    )
    store.write(*(FindingRow(run_id="r", detector="d", data={"text": one}) for one in texts))
    store.flush(30)
    exact = store.get_stats().bytes_in_use
    monkeypatch.setattr(retention, "_MAX_MEASURED_BYTES", 1024 * 1024)
    estimated = store.get_stats().bytes_in_use
    assert estimated == store.get_stats().bytes_in_use
    assert exact * 0.8 < estimated < exact * 1.25


def test_delete_tenant_removes_its_runs_in_several_transactions(store, monkeypatch):
    monkeypatch.setattr(retention, "_RUNS_PER_TRANSACTION", 2)
    for number in range(5):
        run = Trajectory(id=f"r{number}", format="f", task="t", steps=(step(0),))
        store.write_run(run, tenant="a")
    store.write_run(run, tenant="b")
    store.flush(10)
    gone = store.delete_tenant("a")
    assert (gone.rows["runs"], gone.rows["steps"]) == (5, 5)
    assert sum(store.get_stats(tenant="a").rows.values()) == 0
    assert store.get_stats(tenant="b").rows["steps"] == 1


def test_rows_without_a_run_are_deleted_in_several_transactions(store, monkeypatch):
    monkeypatch.setattr(retention, "_ROWS_PER_TRANSACTION", 2)
    for number in range(5):
        store.write(VerdictRow(key=f"k{number}", judge="judge", tenant="a", created_at=1.0))
    store.write(VerdictRow(key="new", judge="judge", tenant="a"))
    store.flush(10)
    deleted: list[int] = []

    def count(connection, cursor, statement, *_):
        if statement.startswith("DELETE FROM agentguard_verdicts"):
            deleted.append(cursor.rowcount)

    event.listen(Engine, "after_cursor_execute", count)
    try:
        gone = store.prune(older_than_s=3600, tenant="a")
    finally:
        event.remove(Engine, "after_cursor_execute", count)
    assert gone.rows["verdicts"] == sum(deleted) == 5
    assert max(deleted) == 2
    assert store.get_stats(tenant="a").rows["verdicts"] == 1


def test_text_of_a_run_is_found_again_and_again_in_any_case(store):
    for id, task in (("r1", "Book a ROOM for 100% of the guests"), ("r2", "Cancel a room_7"), ("x9", "Pay")):
        store.write_run(Trajectory(id=id, format="f", task=task, steps=(step(0),)))
    store.flush(10)
    found = {"room": {"r1", "r2"}, "M_7": {"r2"}, "100%": {"r1"}, "R": {"r1", "r2"}, "no such": set()}
    for _ in range(4):  # PostgreSQL changes the plan of a statement after ten executions
        for words, ids in found.items():
            filter = RunSummaryFilter(text=words)
            page = store.list_run_summaries(filter, RunSort(), Page(limit=10))
            assert {row.run_id for row in page.rows} == ids
            assert store.count_run_summaries(filter, max_count=10) == len(ids)


def test_prune_limits_are_validated(store):
    for wrong in ({"older_than_s": -1}, {"older_than_s": math.nan}, {"max_bytes": -1}, {"tenant": "\x00"}):
        with pytest.raises(StoreError):
            store.prune(**wrong)
