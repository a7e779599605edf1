"""Search in the stored steps of runs."""

import pytest

from agentguard.errors import StoreError
from agentguard.store import Store
from agentguard.store.db.rows import RunRow, StepRow
from agentguard.store.db.run_summary import RunSummaryFilter
from agentguard.store.read.pagination import Page
from agentguard.store.read.step_search import MAX_MATCHES_PER_RUN
from agentguard.store.trajectory_mapping import build_step_row
from agentguard.trajectory.model import Branch, Observation, Source, Step, ToolCall, Trajectory
from tests.postgres import postgres, postgres_url  # noqa: F401


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    url = tmp_path / "s.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with Store.open(url) as opened:
        yield opened


def agent_step(index: int, **values: object) -> Step:
    return Step(index=index, source=Source.AGENT, agent="a", **values)


def write(store: Store, run_id: str, *steps: Step, tenant: str = "", **values: object) -> None:
    store.write_run(Trajectory(id=run_id, format="f", task="t", steps=steps, **values), tenant=tenant)
    store.flush(10)


def find(store: Store, text: str, **options: object) -> dict[str, list[tuple[str, int, str, str]]]:
    found = store.search_steps(text, **options)
    return {
        one.run.run_id: [(m.branch_id, m.step, m.field, m.match) for m in one.matches] for one in found.runs
    }


def test_search_reads_texts_calls_results_and_branches(store):
    call = ToolCall(id="c", name="book_seat", arguments={"where": "Gäste-Aisle"})
    old = Branch(id="b1", fork_step=1, steps=(agent_step(1, content="the SECRET\n  plan"),))
    answer = Observation(content="no seat " + "x" * 9000 + " Größe")
    write(
        store,
        "r",
        agent_step(0, content="go", reasoning='a "quoted" thought'),
        agent_step(1, tool_calls=(call,), observations=(answer,)),
        branches=(old,),
    )
    assert find(store, "secret plan") == {"r": [("b1", 1, "content", "SECRET\n  plan")]}
    assert find(store, "gäste-aisle") == {"r": [("", 1, "tool_calls[0]", "Gäste-Aisle")]}
    assert find(store, "größe") == {"r": [("", 1, "observations[0]", "Größe")]}
    assert find(store, "BOOK_") == {"r": [("", 1, "tool", "book_")]}
    assert find(store, '"quoted"') == {"r": [("", 0, "reasoning", '"quoted"')]}
    assert find(store, "no_such.*") == {}


def test_search_result_has_excerpt_and_count_of_steps(store):
    write(store, "r", *(agent_step(i, content="a" * 100 + "needle" + "b" * 300) for i in range(5)))
    (run,) = store.search_steps("needle").runs
    assert (len(run.matches), run.step_count) == (MAX_MATCHES_PER_RUN, 5)
    assert run.matches[0].before == "…" + "a" * 60
    assert run.matches[0].after == "b" * 160 + "…"


def test_search_respects_tenant_and_filter(store):
    write(store, "mine", agent_step(0, content="needle"))
    write(store, "other", agent_step(0, content="needle"), tenant="t")
    assert list(find(store, "needle")) == ["mine"]
    assert list(find(store, "needle", tenant="t")) == ["other"]
    assert find(store, "needle", filter=RunSummaryFilter(text="other")) == {}


def test_search_after_timeout_continues_at_cursor(store):
    for i in range(30):
        store.write(
            RunRow(id=f"r{i:02}", created_at=1e9 + i),
            build_step_row(f"r{i:02}", agent_step(0, content=f"needle {i}")),
        )
    store.flush(10)
    first = store.search_steps("needle", timeout_s=0.0)
    assert first.searched_runs == 25
    assert first.next is not None
    second = store.search_steps("needle", page=Page(after=first.next), timeout_s=0.0)
    assert second.next is None
    ids = [one.run.run_id for one in (*first.runs, *second.runs)]
    assert ids == [f"r{i:02}" for i in reversed(range(30))]


def test_search_counts_unreadable_steps(store):
    store.write(RunRow(id="r"), StepRow(run_id="r", index=0, data={"content": ["needle"], "source": "agent"}))
    store.flush(10)
    found = store.search_steps("needle")
    assert (found.runs, found.unreadable_steps) == ((), 1)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_search_for_empty_text_is_refused(store, text):
    with pytest.raises(StoreError, match="empty"):
        store.search_steps(text)
