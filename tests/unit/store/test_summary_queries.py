"""Lists of runs: updated with the rows, filtered, sorted and read in pages."""

import itertools
from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agentguard.errors import StoreError
from agentguard.store import Store
from agentguard.store.db.rows import (
    BranchRow,
    ClearRunRow,
    DiagnosisRow,
    FindingRow,
    JudgementRow,
    RecoveryRow,
    RunRow,
    StepRow,
)
from agentguard.store.db.run_summary import (
    SORT_COLUMNS,
    RunSort,
    RunSummaryFilter,
    RunSummaryRow,
    VerdictFilter,
    join_labels,
    split_labels,
)
from agentguard.store.read.pagination import Page
from agentguard.trajectory.model import Branch, Source, Step, ToolCall, Trajectory, Usage
from tests.postgres import postgres, postgres_url  # noqa: F401


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    url = tmp_path / "s.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with Store.open(url) as opened:
        yield opened


def step(index: int, *, line: str = "", run: str = "r", **data: object) -> StepRow:
    return StepRow(run_id=run, line=line, index=index, data=data)


def used(tokens: int, cost: float | None = None) -> dict[str, object]:
    return {"prompt_tokens": tokens - 1, "completion_tokens": 1, "cost_usd": cost}


def shown(row: RunSummaryRow | None) -> dict[str, object]:
    """Return a summary without its time."""
    assert row is not None
    return {one.name: getattr(row, one.name) for one in fields(row) if one.name != "updated_at"}


def test_summary_describes_whole_run(store):
    steps = tuple(
        Step(
            index=i, source=Source.AGENT, agent="a 0", model=f"m{i}", started_at=100.0 + i,
            ended_at=101.0 + i,
            tool_calls=(ToolCall(id="c", name="book"),),
            usage=Usage(prompt_tokens=10, completion_tokens=5, cost_usd=0.25),
        )
        for i in range(2)
    )  # fmt: skip
    left = Branch(
        id="b",
        fork_step=1,
        steps=(
            replace(steps[1], model="other", agent="b", tool_calls=(ToolCall(id="c", name="x\n\u2028y"),)),
        ),
    )
    run = Trajectory(
        id="r", format="f", task="x" * 400, steps=steps, branches=(left,), extra={"tags": ["new", "a b"]}
    )
    for _ in range(2):  # a repeated write replaces the row
        store.write_run(run).wait(10)
        row = store.get_run_summary("r")
        assert row is not None
        assert (row.task, row.format, row.steps, row.tokens, row.cost_usd) == ("x" * 256, "f", 2, 45, 0.75)
        assert (row.began_at, row.started_at, row.ended_at, row.duration_s) == (100.0, 100.0, 102.0, 2.0)
        assert (split_labels(row.models), split_labels(row.tags)) == (("m0", "m1", "other"), ("new", "a b"))
        assert (split_labels(row.agents), split_labels(row.tools)) == (("a 0", "b"), ("book", "x y"))
        assert (row.verdict, row.recovered, row.judged, row.failed) == ("", "", "", None)


def test_summary_is_updated_with_later_rows(store):
    store.write_run(Trajectory(id="r", format="f", task="t", steps=()))
    first = DiagnosisRow(
        run_id="r", method="m", verdict="failed", probability=0.9, step=3, agent="w", module="planning",
        code="aet/x", created_at=5.0, data={"timing": {"total_s": 0.5}},
    )  # fmt: skip
    earlier = DiagnosisRow(run_id="r", method="old", verdict="undecided", created_at=4.0)
    finding = FindingRow(id="f", run_id="r", detector="loop")
    store.write(first, earlier, finding, finding, FindingRow(run_id="r", detector="d")).wait(10)
    row = store.get_run_summary("r")
    assert row is not None
    assert (row.verdict, row.probability, row.step, row.agent) == ("failed", 0.9, 3, "w")
    assert (row.module, row.code, row.method, row.guard_s) == ("planning", "aet/x", "m", 0.5)
    assert row.findings == 2


def test_summary_contains_recovery_outcome(store):
    store.write_run(Trajectory(id="r", format="f", task="t", steps=()))
    seen = []
    for id, outcome, at in (
        ("a", "planned", 1.0), ("a", "failed", 1.0), ("b", "planned", 2.0), ("b", "recovered", 2.0)
    ):  # fmt: skip
        store.write(RecoveryRow(id=id, run_id="r", strategy="s", outcome=outcome, created_at=at)).wait(10)
        row = store.get_run_summary("r")
        seen.append((row.recoveries, row.recovered))
    assert seen == [(1, "pending"), (1, "no"), (2, "no"), (2, "yes")]


def test_summary_contains_feedback(store):
    store.write_run(Trajectory(id="r", format="f", task="t", steps=()))
    seen = []
    said = {"run_id": "r", "subject": "diagnosis", "subject_id": "d"}
    for place, row in enumerate(
        [
            JudgementRow(**said, right=True, by="ann"),
            JudgementRow(**said, right=False, by="bob"),
            JudgementRow(**said, right=False, by="ann"),
            JudgementRow(**said, right=False, by="ann", data={"withdrawn": True}),
            JudgementRow(**said, right=False, by="bob", data={"withdrawn": True}),
        ]
    ):
        store.write(replace(row, created_at=float(place))).wait(10)
        seen.append(store.get_run_summary("r").judged)
    assert seen == ["right", "mixed", "wrong", "wrong", ""]


def test_summary_bounds_agents_and_tools(store):
    steps = [
        StepRow(run_id="r", index=i, agent=f"agent {i}", data={"tool_calls": [{"name": f"{i:0100}"}]})
        for i in range(80)
    ]
    store.write(RunRow(id="r", task="t"), *steps).wait(10)
    row = store.get_run_summary("r")
    assert split_labels(row.agents) == tuple(f"agent {i}" for i in range(64))
    assert split_labels(row.tools) == ("0" * 64,)
    assert len(ids(store, RunSummaryFilter(tool="0" * 100))) == 1
    store.write(ClearRunRow(run_id="r")).wait(10)
    assert (store.get_run_summary("r").agents, store.get_run_summary("r").tools) == ("", "")


def test_live_run_rollback_updates_summary(store):
    store.write(RunRow(id="r", task="t"), step(0, usage=used(10)), step(1, usage=used(10))).wait(10)
    store.write(step(2, usage=used(10))).wait(10)
    fork = BranchRow(run_id="r", id="b", fork_step=1, takes=True)
    store.write(fork, step(1, usage=used(5))).wait(10)
    assert (store.get_run_summary("r").steps, store.get_run_summary("r").tokens) == (
        2,
        35,
    )  # abandoned steps cost money, too
    store.write(step(1, usage=used(7))).wait(10)  # replaces the previous one
    assert (store.get_run_summary("r").steps, store.get_run_summary("r").tokens) == (2, 37)
    store.write(fork, step(1, usage=used(7))).wait(10)  # as after a commit whose answer was lost
    assert (store.get_run_summary("r").steps, store.get_run_summary("r").tokens) == (2, 37)


def test_rollback_to_unwritten_step_keeps_existing_steps(store):
    fork = BranchRow(run_id="r", id="b", fork_step=1, takes=True)
    store.write(step(1), RunRow(id="r", task="t"), fork).wait(10)
    assert store.get_run_summary("r").steps == 0


@st.composite
def histories(draw):
    """Return rows of two runs in a possible order, cut into batches."""
    clock = itertools.count(1)
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        run = draw(st.sampled_from(["r", "s"]))
        at = float(next(clock))
        usage = draw(st.sampled_from([None, {}, used(3), used(9, 0.5), {"prompt_tokens": "many"}]))
        calls = draw(st.sampled_from([[{"name": "t"}, {"name": "u"}], [{"name": ["t"]}, "u"], "t", None]))
        model = draw(st.sampled_from(["m", "n", None]))
        data = {"usage": usage, "model": model, "started_at": 7.0, "tool_calls": calls}
        line = draw(st.sampled_from(["", "", "z"]))
        rows.append(
            draw(
                st.sampled_from(
                    [
                        RunRow(id=run, task=f"t{at}", created_at=at, data={"extra": {"tags": ["x"]}}),
                        step(draw(st.integers(0, 3)), line=line, run=run, **data),
                        BranchRow(run_id=run, id=f"b{at}", fork_step=draw(st.integers(0, 3)), takes=True),
                        ClearRunRow(run_id=run),
                        FindingRow(run_id=run, detector="d", created_at=at),
                        DiagnosisRow(run_id=run, method="m", verdict="failed", step=1, created_at=at),
                        RecoveryRow(id=f"{run}v", run_id=run, strategy="s", outcome="failed", created_at=at),
                        JudgementRow(
                            run_id=run, subject="finding", subject_id="f", right=True, created_at=at
                        ),
                    ]
                )
            )
        )
    cuts = sorted(draw(st.sets(st.integers(0, len(rows)), max_size=4)))
    return [rows[a:b] for a, b in itertools.pairwise([0, *cuts, len(rows)]) if rows[a:b]]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories())
def test_incremental_summary_equals_rebuilt_summary(tmp_path_factory, history):
    with Store.open(tmp_path_factory.mktemp("s") / "s.db") as store:
        for rows in history:
            store.write(*(replace(one, tenant="t") for one in rows)).wait(10)
        runs = [one.id for one in store.list_runs(tenant="t").rows]
        before = {run: shown(store.get_run_summary(run, tenant="t")) for run in runs}
        store.rebuild_run_summaries()
        after = {run: shown(store.get_run_summary(run, tenant="t")) for run in runs}
        for run in runs:
            # A replaced step may leave its model, tools and time behind: all other values are equal.
            for name in ("models", "tools"):
                assert set(split_labels(before[run].pop(name))) >= set(split_labels(after[run].pop(name)))
            for name in ("began_at", "started_at", "ended_at", "duration_s", "cost_usd", "tokens"):
                a, b = before[run].pop(name), after[run].pop(name)
                assert (
                    a == b or (b is None and name in ("started_at", "ended_at", "duration_s")) or not (a or b)
                )
            assert before[run] == after[run]


def test_rows_without_run_are_not_listed(store):
    store.write(FindingRow(run_id="ghost", detector="d")).wait(10)
    assert store.get_run_summary("ghost") is None
    assert store.list_run_summaries().rows == ()
    assert store.count_run_summaries() == 0


def test_summary_rows_cannot_be_written(store):
    receipt = store.write(RunSummaryRow(run_id="r", known=True))
    with pytest.raises(Exception, match="not a row of the store"):
        receipt.wait(10)


def filled(store, number: int = 23) -> list[str]:
    for i in range(number):
        tags = ["even" if i % 2 == 0 else "odd", "all"]
        store.write(
            RunRow(
                id=f"r{i:02}", task=f"Task {i} 100%_\\ done", created_at=float(i),
                failed=(None, True, False)[i % 3], data={"extra": {"tags": tags}},
            ),
            StepRow(
                run_id=f"r{i:02}", index=0, agent=f"worker {i % 3}",
                data={
                    "model": f"m_{i % 4}", "tool_calls": [{"name": "read"}, {"name": f"tool_{i % 5}"}],
                    "usage": used(i % 5 + 1, i / 10) if i % 6 else None,
                },
            ),
        )  # fmt: skip
        if i % 3:
            verdict = ("failed", "no_failure_found")[i % 2]
            store.write(
                DiagnosisRow(
                    run_id=f"r{i:02}", method="m", verdict=verdict, probability=i / 30, step=i % 4,
                    agent=f"a{i % 2}", code=f"x/{i % 7}.1",
                )
            )  # fmt: skip
    store.flush(20)
    return [f"r{i:02}" for i in range(number)]


def ids(store, filter=None, sort=None, **more) -> list[str]:
    return [row.run_id for row in store.list_run_summaries(filter, sort, **more).rows]


@pytest.mark.parametrize(
    ("filter", "holds"),
    [
        (RunSummaryFilter(verdicts=frozenset({VerdictFilter.FAILED})), lambda i: i % 3 and i % 2 == 0),
        (
            RunSummaryFilter(verdicts=frozenset(["not_diagnosed", "failed"])),
            lambda i: not i % 3 or i % 2 == 0,
        ),
        (RunSummaryFilter(code="x/2"), lambda i: i % 3 and i % 7 == 2),
        (RunSummaryFilter(code="x_2"), lambda i: False),
        (RunSummaryFilter(step=2), lambda i: i % 3 and i % 4 == 2),
        (RunSummaryFilter(step=10**30), lambda i: False),
        (RunSummaryFilter(agent="a1"), lambda i: i % 3 and i % 2),
        (RunSummaryFilter(model="m_1"), lambda i: i % 4 == 1),
        (RunSummaryFilter(model="m%"), lambda i: False),
        (RunSummaryFilter(tool="read"), lambda i: True),
        (RunSummaryFilter(tool="tool_3", step_agent="worker 1"), lambda i: i % 5 == 3 and i % 3 == 1),
        (RunSummaryFilter(tool="tool"), lambda i: False),
        (RunSummaryFilter(step_agent="worker"), lambda i: False),
        (RunSummaryFilter(tag="odd"), lambda i: i % 2),
        (RunSummaryFilter(tag="od"), lambda i: False),
        (RunSummaryFilter(min_cost=0.5, max_cost=1.0), lambda i: i % 6 and 5 <= i <= 10),
        (RunSummaryFilter(min_tokens=4), lambda i: i % 6 and i % 5 >= 3),
        (RunSummaryFilter(max_tokens=10**40), lambda i: i % 6),
        (RunSummaryFilter(since=5.0, until=9.0), lambda i: 5 <= i < 9),
        (RunSummaryFilter(text="task 1"), lambda i: i == 1 or (i >= 10 and i < 20)),
        (RunSummaryFilter(text="100%_\\"), lambda i: True),
        (RunSummaryFilter(text="100_"), lambda i: False),
        (RunSummaryFilter(text="r07"), lambda i: i == 7),
        (RunSummaryFilter(failed=True), lambda i: i % 3 == 1),
        (RunSummaryFilter(failed=False, tag="odd"), lambda i: i % 3 == 2 and i % 2),
        (RunSummaryFilter(judged=True), lambda i: False),
        (RunSummaryFilter(recovered=frozenset({""})), lambda i: True),
    ],
)  # fmt: skip
def test_filters_select_runs(store, filter, holds):
    every = filled(store)
    expected = [id for i, id in enumerate(every) if holds(i)][::-1]
    assert ids(store, filter) == expected
    assert store.count_run_summaries(filter) == len(expected)


@pytest.mark.parametrize("descending", [True, False])
def test_every_sort_order_is_paginated(store, descending):
    every = filled(store)
    rows = {row.run_id: row for row in store.list_run_summaries().rows}
    for by, column in SORT_COLUMNS.items():
        sort = RunSort(by=by, descending=descending)
        seen, after = [], None
        while True:
            part = store.list_run_summaries(None, sort, Page(limit=4, after=after))
            seen += [row.run_id for row in part.rows]
            after = part.next
            if after is None:
                break
        known = [id for id in every if getattr(rows[id], column) is not None]
        known.sort(key=lambda id: (getattr(rows[id], column), id), reverse=descending)
        unknown = sorted((id for id in every if getattr(rows[id], column) is None), reverse=descending)
        assert seen == known + unknown, by


def test_cursor_of_another_sort_order_is_rejected(store):
    filled(store, 5)
    place = store.list_run_summaries(None, RunSort(by="cost"), Page(limit=2)).next
    for wrong in (place, "x", "äö", "W10", "bnVsbA"):
        with pytest.raises(StoreError, match="cursor of the page"):
            store.list_run_summaries(None, RunSort(by="tokens"), Page(after=wrong))
    with pytest.raises(StoreError, match="cannot be sorted by 'colour'"):
        RunSort(by="colour")


def test_count_is_bounded(store):
    filled(store, 9)
    assert store.count_run_summaries(max_count=4) == 4


def test_facets_are_counted(store):
    filled(store)
    found = store.get_facets()
    assert found.verdicts == {"": 8, "failed": 8, "no_failure_found": 7}
    assert found.tags == {"all": 23, "even": 12, "odd": 11}
    assert sum(found.models.values()) == 23
    assert set(found.agents) == {"a0", "a1"}
    assert sum(found.codes.values()) == 15


def test_tenants_are_separated(store):
    filled(store, 3)
    store.write(RunRow(id="theirs", tenant="t", task="secret"))
    store.flush(10)
    assert ids(store, tenant="t") == ["theirs"]
    assert ids(store, RunSummaryFilter(text="secret")) == []
    assert store.get_run_summary("theirs") is None
    assert [one.run_id for one in store.list_changes(0.0, tenant="t")] == ["theirs"]


def test_changes_since_a_time_are_listed(store):
    filled(store, 3)
    latest = store.list_changes(0.0)
    assert {one.run_id for one in latest} == {"r00", "r01", "r02"}
    since = max(one.updated_at for one in latest)
    assert store.list_changes(since) == ()
    store.write(FindingRow(run_id="r01", detector="d")).wait(10)
    assert [one.run_id for one in store.list_changes(since)] == ["r01"]


def test_deleted_run_is_not_listed(store):
    filled(store, 3)
    store.delete_run("r01")
    assert ids(store) == ["r02", "r00"]


def test_labels_match_as_a_whole():
    assert split_labels(join_labels(["b", " a\nc ", "b", "", "x" * 100])) == ("b", "a c", "x" * 64)
    assert join_labels([]) == ""
    assert len(join_labels(map(str, range(1000)))) <= 256


def test_guarded_run_is_found_by_its_tags(tmp_path):
    from agentguard.guard import Guard

    with Store.open(tmp_path / "s.db") as store:
        guard = Guard(store=store, detectors={}, localizer="last_error")
        for id, tags in (("a", ["nightly", "v2"]), ("b", [])):
            with guard.run("go", id=id, tags=tags) as run:
                run.model(lambda _: {"role": "assistant", "content": "done"})
        store.flush(10)
        assert ids(store, RunSummaryFilter(tag="v2")) == ["a"]
        assert store.get_run_summary("a").steps == len(store.get_trajectory("a").steps)


@pytest.mark.parametrize(
    "data",
    [
        {"started_at": 1e308, "ended_at": -1e308, "usage": {"prompt_tokens": 2**70, "cost_usd": 1e308}},
        {"started_at": float("nan"), "usage": {"prompt_tokens": -5, "cost_usd": float("inf")}},
        {"started_at": True, "model": 7, "usage": [1], "ended_at": 10**400},
        {"model": "\ud800\x00" * 300, "usage": {"prompt_tokens": 1.5, "cost_usd": "free"}},
    ],
)
def test_steps_with_arbitrary_content_are_written_and_listed(store, data):
    most = 2**63 - 1
    tags = {"extra": {"tags": ["\ud800\x00a", 7, "b" * 9000]}}
    receipt = store.write(
        RunRow(id="r", task="\ud800\x00" * 400, data=tags), step(most, **data), step(0, **data)
    )
    receipt.wait(10)
    (row,) = store.list_run_summaries().rows
    assert row.steps > 0
    assert row.duration_s is None or 0 <= row.duration_s < 1e11
    assert row.tokens is None
    store.write(step(0), FindingRow(run_id="r", detector="d")).wait(10)
    assert store.get_run_summary("r").findings == 1


def test_summary_error_loses_no_row(store, monkeypatch, caplog):
    monkeypatch.setattr("agentguard.store.write.summary_updater.add_step", lambda *_: 1 / 0)
    store.write(RunRow(id="r", task="t"), step(0)).wait(10)
    assert store.get_run_summary("r") is None
    assert "rebuild_run_summaries" in caplog.text
    monkeypatch.undo()
    assert len(store.get_run_rows("r")[1]) == 1
    store.write(step(1)).wait(10)
    assert store.get_run_summary("r") is None  # the run's own row is missing


def test_inconsistent_summaries_are_rebuilt(store):
    filled(store, 5)
    before = [shown(row) for row in store.list_run_summaries().rows]
    with store._database.get_engine().begin() as connection:
        connection.exec_driver_sql("DELETE FROM agentguard_overviews WHERE run_id = 'r01'")
        connection.exec_driver_sql("UPDATE agentguard_overviews SET tokens = 7, verdict = 'wrong'")
    assert store.rebuild_run_summaries() == 5
    assert [shown(row) for row in store.list_run_summaries().rows] == before
