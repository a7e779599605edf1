"""Search in the stored steps of runs."""

import re
import threading

import pytest
from hypothesis import given, settings, strategies as st
from sqlalchemy import Text, cast, select, text as text_clause, update

from agentguard.errors import StoreError
from agentguard.store import Store
from agentguard.store.db.rows import FindingRow, RunRow, StepRow
from agentguard.store.db.run_summary import RunSummaryFilter
from agentguard.store.db.search_words import begins_with_word, build_index_query, extract_words, is_word_begin
from agentguard.store.db.tables import OVERVIEWS, SEARCH_DOCUMENTS
from agentguard.store.read import step_search
from agentguard.store.read.pagination import Page
from agentguard.store.read.step_search import MAX_MATCHES_PER_RUN
from agentguard.store.trajectory_mapping import build_step_row
from agentguard.store.write import search_index
from agentguard.store.write.search_index import FTS_TABLE, update_search_index
from agentguard.trajectory.model import Branch, Observation, Source, Step, ToolCall, Trajectory
from tests.postgres import postgres, postgres_url  # noqa: F401


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    return tmp_path / "s.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def store(url):
    with Store.open(url) as opened:
        yield opened


@pytest.fixture(params=["indexed", "not indexed"])
def updates_index(request):
    return request.param == "indexed"


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


def test_search_reads_texts_calls_results_and_branches(store, updates_index):
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
    if updates_index:
        assert store.update_search_index() == 1
    assert find(store, "secret plan") == {"r": [("b1", 1, "content", "SECRET\n  plan")]}
    assert find(store, "gäste-aisle") == {"r": [("", 1, "tool_calls[0]", "Gäste-Aisle")]}
    assert find(store, "größe") == {"r": [("", 1, "observations[0]", "Größe")]}
    assert find(store, "BOOK_") == {"r": [("", 1, "tool", "book_")]}
    assert find(store, '"quoted"') == {"r": [("", 0, "reasoning", '"quoted"')]}
    assert find(store, "no_such.*") == {}


def test_search_result_has_excerpt_and_count_of_steps(store):
    write(store, "r", *(agent_step(i, content="a" * 99 + " needle" + "b" * 300) for i in range(5)))
    (run,) = store.search_steps("needle").runs
    assert (len(run.matches), run.step_count) == (MAX_MATCHES_PER_RUN, 5)
    assert run.matches[0].before == "…" + "a" * 59 + " "
    assert run.matches[0].after == "b" * 160 + "…"


def test_search_respects_tenant_and_filter(store, updates_index):
    write(store, "mine", agent_step(0, content="needle"))
    write(store, "other", agent_step(0, content="needle"), tenant="t")
    if updates_index:
        assert store.update_search_index() == 2
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


def test_search_counts_unreadable_steps(store, updates_index):
    store.write(RunRow(id="r"), StepRow(run_id="r", index=0, data={"content": ["needle"], "source": "agent"}))
    store.flush(10)
    if updates_index:
        assert store.update_search_index() == 1
    found = store.search_steps("needle")
    assert (found.runs, found.unreadable_steps) == ((), 1)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_search_for_empty_text_is_refused(store, text):
    with pytest.raises(StoreError, match="empty"):
        store.search_steps(text)


@pytest.mark.parametrize(
    ("text", "finds"),
    [
        ("invalid arguments", True),
        ("INVALID  argu", True),
        ("valid arguments", False),
        ("ABC-12", True),
        ("abc-123", True),
        ("BC-123", False),
        ("-123", True),
        ("Timeout", True),
        ("timeouterror: inv", True),
        ("imeout", False),
        ("max_tok", True),
        ("tokens", True),
        ("_tokens", True),
        ("日本", True),
        ("本語", True),
        ("größ", True),
        ("ö", False),
        ("=>", True),
        ("arguments invalid", False),
    ],
)
def test_match_begins_at_the_beginning_of_a_word(store, updates_index, text, finds):
    write(
        store,
        "r",
        agent_step(
            0, content="ReadTimeoutError: invalid arguments for ABC-123 => max_tokens, 日本語, GRÖSSE größe"
        ),
    )
    write(store, "other", agent_step(0, content="nothing of that"))
    if updates_index:
        store.update_search_index()
    assert list(find(store, text)) == (["r"] if finds else [])


TEXTS = st.text(st.sampled_from("aAbBzıiİßſK1_- .日本éE\u0345ιxX\n"), max_size=12)


@given(TEXTS, TEXTS)
@settings(max_examples=400)
def test_index_has_the_words_of_each_match(text, sought):
    query = build_index_query(sought)
    if query is None or not sought.strip():
        return
    pattern = re.compile(r"\s+".join(map(re.escape, sought.split())), re.IGNORECASE)
    matches = [
        found.start()
        for place in range(len(text))
        if (found := pattern.match(text, place))
        and (not begins_with_word(sought.strip()) or is_word_begin(text, place))
    ]
    if matches:
        words = extract_words(text)
        assert set(query.words) <= words
        assert any(word.startswith(query.prefix) for word in words)


def test_index_follows_changes_and_deletions(store):
    write(store, "r", agent_step(0, content="first needle"))
    write(store, "s", agent_step(0, content="first thread"))
    assert store.update_search_index() == 2
    assert store.search_steps("needle").searched_runs == 1
    write(store, "r", agent_step(0, content="second pin"))
    found = store.search_steps("pin")
    assert (found.unindexed_runs, [one.run.run_id for one in found.runs]) == (1, ["r"])
    assert find(store, "needle") == {}
    assert store.update_search_index() == 1
    assert (store.search_steps("pin").unindexed_runs, list(find(store, "second"))) == (0, ["r"])
    store.write(build_step_row("r", agent_step(1, content="a further clasp")))
    store.flush(10)
    assert list(find(store, "further clasp")) == ["r"]
    store.write(FindingRow(run_id="s", detector="d"))
    store.flush(10)
    assert store.search_steps("first").unindexed_runs == 1
    store.update_search_index()
    store.delete_run("r")
    assert find(store, "pin") == {}
    assert (list(find(store, "first")), read_words(store)) == (["s"], ["first thread"])
    store.delete_tenant("")
    assert read_words(store) == []


def read_words(store: Store) -> list[str]:
    """Return the documents of the index, after a check of the index of SQLite."""
    with store.begin_read() as connection:
        rows = connection.execute(select(cast(SEARCH_DOCUMENTS.c.words, Text))).scalars().all()
        if connection.dialect.name == "sqlite":
            check = f"INSERT INTO {FTS_TABLE} ({FTS_TABLE}, rank) VALUES ('integrity-check', 1)"
            connection.execute(text_clause(check))
    return [row.replace("'", "") for row in rows]


@pytest.mark.parametrize("updates", [0, 20, 60])
def test_common_text_is_found_page_by_page(store, monkeypatch, updates):
    monkeypatch.setattr(step_search, "_MAX_LISTED_RUNS", 10)
    for i in range(60):
        store.write(
            RunRow(id=f"r{i:02}", created_at=1e9 + i),
            build_step_row(f"r{i:02}", agent_step(0, content="common words" if i % 2 else "common, words")),
        )
    store.flush(10)
    if updates == 60:
        assert store.update_search_index() == 60
    elif updates:
        assert update_search_index(store._database.get_engine(), timeout_s=1e-9) == 0
    ids, after = [], None
    while True:
        result = store.search_steps("common words", page=Page(limit=7, after=after))
        ids += [one.run.run_id for one in result.runs]
        after = result.next
        if after is None:
            break
    assert ids == [f"r{i:02}" for i in reversed(range(60)) if i % 2]


def test_index_of_concurrent_writers_has_all_runs(url):
    """Runs change and are deleted while the index is updated; afterwards it equals a search without it."""

    def write_runs(name: str) -> None:
        with Store.open(url) as store:
            for i in range(40):
                store.write(
                    RunRow(id=f"{name}{i % 15}"),
                    build_step_row(f"{name}{i % 15}", agent_step(i // 15, content=f"needle{i} {name}")),
                )
                if i % 13 == 12:
                    store.flush(20)
                    store.delete_run(f"{name}{i % 15}")
            store.flush(20)

    threads = [threading.Thread(target=write_runs, args=(name,)) for name in "pq"]
    with Store.open(url) as store:
        store.update_search_index()
        for one in threads:
            one.start()
        while any(one.is_alive() for one in threads):
            store.update_search_index()
        for one in threads:
            one.join()
        store.update_search_index()
        assert store.search_steps("needle").unindexed_runs == 0
        indexed = {text: find(store, text) for text in ("needle1", "needle39", "p", "needle2 q")}
        with store._database.get_engine().begin() as connection:
            connection.execute(update(OVERVIEWS).values(indexed=False))
        assert {text: find(store, text) for text in indexed} == indexed


def test_store_without_fts5_is_searched_without_index(tmp_path, monkeypatch):
    monkeypatch.setattr(search_index, "has_full_text_search", lambda _: False)
    monkeypatch.setattr(step_search, "has_full_text_search", lambda _: False)
    with Store.open(tmp_path / "s.db") as store:
        write(store, "r", agent_step(0, content="needle"))
        with pytest.raises(StoreError, match="lacks FTS5, which the search index needs"):
            store.update_search_index()
        assert list(find(store, "needle")) == ["r"]


def test_run_with_too_many_words_is_always_read(store, monkeypatch):
    monkeypatch.setattr(search_index, "_MAX_DOCUMENT_CHARS", 20)
    write(store, "r", agent_step(0, content="many more words than the index takes, and a needle"))
    store.update_search_index()
    assert list(find(store, "needle")) == ["r"]


def test_update_leaves_recent_runs(store):
    write(store, "r", agent_step(0, content="needle"))
    assert store.update_search_index(min_age_s=60.0) == 0
    assert store.update_search_index(tenant="other") == 0
    assert store.update_search_index(tenant="") == 1
