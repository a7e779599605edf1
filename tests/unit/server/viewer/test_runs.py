"""The list of runs: parameters of its address, its content, and escaping of every text of a run."""

import re
from html import unescape

import pytest
from agentguard_server.viewer.app import build_app
from agentguard_server.viewer.data.run_query import parse_run_query
from agentguard_server.viewer.settings import ViewerSettings
from hypothesis import given, settings, strategies as st
from starlette.testclient import TestClient

from agentguard.store import Store
from agentguard.store.db.rows import DiagnosisRow, JudgementRow, RecoveryRow, RunRow, StepRow
from agentguard.store.db.run_summary import RunSort, RunSummaryFilter, VerdictFilter

HERE = "http://127.0.0.1:7430"
EVIL = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'{{7*7}}\u202e"


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "s.db") as opened:
        yield opened


@pytest.fixture
def client(store):
    return TestClient(build_app(store), base_url=HERE)


def fill(store, number: int = 12) -> None:
    for i in range(number):
        id, tags = f"r{i:02}", [f"t{i % 2}"]
        used = {"prompt_tokens": 100 * i, "cost_usd": i / 10}
        store.write(
            RunRow(id=id, task=f"task {i}", created_at=1e9 + i, data={"extra": {"tags": tags}}),
            StepRow(run_id=id, index=7, data={"model": "m", "usage": used}),
        )
        if i % 3 == 0:
            said = {"verdict": "failed", "probability": 0.9, "agent": "w", "code": "x/1"}
            store.write(DiagnosisRow(run_id=id, method="m", step=i % 8, **said))
    store.flush(10)


def shown(page: str) -> list[str]:
    return [unescape(one) for one in re.findall(r'<tr role="row" data-id="([^"]*)"', page)]


def test_list_links_order_by_probability_of_failure(store, client):
    for id, probability in (("low", 0.2), ("high", 0.9), ("middle", 0.5)):
        store.write(RunRow(id=id, task="t"))
        store.write(DiagnosisRow(run_id=id, method="m", verdict="undecided", probability=probability))
    store.write(RunRow(id="undiagnosed", task="t"))
    store.flush(10)
    (link,) = re.findall(r'href="([^"]+)"[^>]*>Likeliest failures first', client.get("/").text)
    assert shown(client.get(unescape(link)).text) == ["high", "middle", "low", "undiagnosed"]


def test_list_of_files_shows_the_likeliest_failures_first(store):
    for id, probability in (("high", 0.9), ("low", 0.2)):
        store.write(RunRow(id=id, task="t"))
        store.write(DiagnosisRow(run_id=id, method="m", verdict="undecided", probability=probability))
    store.flush(10)
    client = TestClient(build_app(store, ViewerSettings(default_sort="probability")), base_url=HERE)
    assert shown(client.get("/").text) == ["high", "low"]
    assert shown(client.get("/?sort=probability&dir=asc").text) == ["low", "high"]


def test_list_hides_the_start_of_runs_without_times(store, client):
    store.write(RunRow(id="a", task="t"), StepRow(run_id="a", index=0))
    store.flush(10)
    assert "no-time" in client.get("/").text
    store.write(RunRow(id="b", task="t"), StepRow(run_id="b", index=0, data={"started_at": 1e9}))
    store.flush(10)
    page = client.get("/").text
    assert "no-time" not in page
    assert re.findall(r'<time datetime="([^"]+)"', page) == ["2001-09-09T01:46:40Z"]


def test_failures_show_reason_and_quote_of_the_newest_run(store, client):
    hypothesis = {"step": 1, "reason": "It repeats a call.", "evidence": [{"quote": "the same <answer>"}]}
    said = {"verdict": "failed", "probability": 0.9, "code": "mast:step_repetition", "step": 1}
    store.write(RunRow(id="a", task="t"), StepRow(run_id="a", index=1))
    store.write(DiagnosisRow(run_id="a", method="m", data={"hypotheses": [hypothesis]}, **said))
    store.flush(10)
    page = client.get("/failures").text
    assert "It repeats a call: <q>the same &lt;answer&gt;</q>" in page


def test_filter_order_and_page_are_in_address(store, client):
    fill(store)
    page = client.get("/?verdict=failed&sort=cost&dir=asc").text
    assert shown(page) == ["r00", "r03", "r06", "r09"]
    assert "4 runs match<" in page
    assert 'href="/runs/r03#step-3"' in page
    first = client.get("/?limit=5")
    assert shown(first.text) == ["r11", "r10", "r09", "r08", "r07"]
    (more,) = re.findall(r'rel="next" href="([^"]+)"', first.text)
    assert shown(client.get(unescape(more)).text) == ["r06", "r05", "r04", "r03", "r02"]


def test_heading_toggles_sort_order(store, client):
    fill(store)
    page = client.get("/?tag=t1").text
    (link,) = re.findall(r'class="c-tokens num"><a href="([^"]+)"', page)
    once = client.get(unescape(link)).text
    assert shown(once) == ["r11", "r09", "r07", "r05", "r03", "r01"]
    assert 'aria-sort="descending"' in once
    (back,) = re.findall(r'aria-sort="descending"><a href="([^"]+)"', once)
    assert shown(client.get(unescape(back)).text) == ["r01", "r03", "r05", "r07", "r09", "r11"]


def test_active_filter_can_be_removed(store, client):
    fill(store)
    page = client.get("/?tag=t1&verdict=failed&q=task&sort=cost").text
    links = [unescape(one) for one in re.findall(r'<a class="chip" href="([^"]+)"', page)]
    assert len(links) == 3
    assert "/?q=task&verdict=failed&sort=cost" in links
    assert '<option value="t1" selected>' in page
    assert re.search(r'value="failed" checked', page)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("step=x", "&#39;x&#39; is not a step"),
        ("min_cost=lots", "not an amount in dollars"),
        ("since=soon", "not a time such as"),
        ("sort=colour", "not a sort column"),
        ("limit=0", "not a number of runs"),
        ("limit=99999", "not a number of runs"),
        ("after=zzz", "this is the first page"),
        ("failed=maybe", "not yes or no"),
        ("max_tokens=" + "9" * 300, "not a number of tokens"),
        ("min_cost=nan", "not an amount in dollars"),
        ("step=٣", "not a step"),
        ("foo=1", "&#39;foo&#39; is not a filter: it is ignored"),
    ],
)
def test_invalid_parameters_are_ignored_and_reported(store, client, query, said):
    fill(store, 3)
    answer = client.get(f"/?{query}")
    assert answer.status_code == 200
    assert said in answer.text
    assert len(shown(answer.text)) == 3
    assert client.get(f"/api/runs?{query}").json()["ignored"]


def test_run_content_is_escaped(store, client):
    store.write(
        RunRow(id=EVIL.replace("\u202e", ""), task=EVIL, created_at=5.0, data={"extra": {"tags": [EVIL]}}),
        StepRow(run_id=EVIL.replace("\u202e", ""), index=0, data={"model": EVIL}),
        DiagnosisRow(
            run_id=EVIL.replace("\u202e", ""), method=EVIL, verdict="failed", step=0, agent=EVIL, code=EVIL
        ),
    )
    store.flush(10)
    for address in (
        "/",
        f"/?{'&'.join(f'{name}={EVIL}' for name in ('q', 'tag', 'model', 'agent', 'code'))}",
    ):
        page = client.get(address).text
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "49" not in re.sub(r"\d{3,}", "", page)
        assert "\u202e" not in page
    (link,) = re.findall(r'class="open" href="([^"]+)"', client.get("/").text)
    assert re.fullmatch(r"/runs/[\w%.~-]+", link)


def test_recovery_and_feedback_are_shown(store, client):
    fill(store, 4)
    store.write(
        RecoveryRow(run_id="r00", strategy="truncate", outcome="recovered"),
        RecoveryRow(run_id="r03", strategy="truncate", outcome="failed"),
        JudgementRow(run_id="r00", subject="diagnosis", subject_id="d", right=False, by="ann"),
    ).wait(10)
    page = client.get("/").text
    assert page.count("↺ recovered") == 1
    assert page.count("↺ not recovered") == 1
    assert "judged wrong" in page
    assert shown(client.get("/?recovered=yes").text) == ["r00"]
    assert shown(client.get("/?recovered=none&recovered=no").text) == ["r03", "r02", "r01"]
    assert shown(client.get("/?judged=yes").text) == ["r00"]


def test_empty_store_shows_instructions(client, store):
    page = client.get("/").text
    assert "No runs yet" in page
    assert "agentguard diagnose RUNS --store" in page
    fill(store, 1)
    page = client.get("/?q=nothing+like+this").text
    assert "No run matches" in page
    assert '<a href="/?">show all runs</a>' in page


def test_json_api_returns_same_data(store, client):
    fill(store)
    found = client.get("/api/runs?verdict=failed&limit=3").json()
    assert [one["run_id"] for one in found["runs"]] == ["r09", "r06", "r03"]
    assert (found["count"], found["ignored"]) == (4, [])
    assert found["runs"][0]["tags"] == ["t1"]
    assert found["runs"][0]["models"] == ["m"]
    rest = client.get("/api/runs" + found["next"]).json()
    assert [one["run_id"] for one in rest["runs"]] == ["r00"]
    assert rest["next"] is None


def test_other_tenants_are_hidden(store):
    from agentguard_server.viewer.settings import ViewerSettings

    fill(store, 2)
    store.write(RunRow(id="theirs", tenant="t", task="secret")).wait(10)
    client = TestClient(build_app(store, ViewerSettings(tenant="t")), base_url=HERE)
    assert shown(client.get("/").text) == ["theirs"]


def test_page_is_small(store, client):
    fill(store, 50)
    page = client.get("/")
    style, script = client.get("/static/runs.css"), client.get("/static/runs.js")
    assert len(page.content) + len(style.content) + len(script.content) < 300_000
    assert "http://" not in page.text.replace(HERE, "")
    assert "https://" not in page.text
    assert " style=" not in page.text
    assert not re.search(r"\son\w+=", page.text)


NAMES = ["q", "verdict", "step", "min_cost", "since", "sort", "dir", "limit", "recovered", "tag", "failed"]
VALUES = ["failed", "yes", "7", "1.5", "2026-01-02", "cost", "asc"]
pairs = st.lists(
    st.tuples(st.sampled_from([*NAMES, "x"]), st.one_of(st.text(max_size=12), st.sampled_from(VALUES))),
    max_size=8,
)


@given(pairs)
@settings(max_examples=300)
def test_address_round_trips(given):
    first = parse_run_query(given)
    again = parse_run_query([*first.parameters])
    assert (again.filter, again.sort, again.limit) == (first.filter, first.sort, first.limit)
    assert again.problems == ()


def test_unknown_choice_in_an_address_is_reported():
    found = parse_run_query([("verdict", "passed"), ("verdict", "failed")])
    assert found.filter.verdicts == frozenset({VerdictFilter.FAILED})
    assert found.problems == (
        "'passed' is not one of failed, undecided, no_failure_found, not_diagnosed: it is ignored",
    )


def test_unknown_parameter_in_an_address_is_reported():
    found = parse_run_query([("foo", "1"), ("verdict", "failed"), ("after", "x"), ("limit", "25")])
    assert found.problems == ("'foo' is not a filter: it is ignored",)
    assert found.to_query_string() == "?verdict=failed&limit=25"


def test_address_is_parsed():
    found = parse_run_query(
        [
            ("verdict", "failed"),
            ("verdict", "not_diagnosed"),
            ("since", "2026-01-02T03:04:05+01:00"),
            ("q", " a "),
        ]
    )
    assert found.filter == RunSummaryFilter(
        verdicts=frozenset({VerdictFilter.FAILED, VerdictFilter.NOT_DIAGNOSED}), since=1767319445.0, text="a"
    )
    assert found.sort == RunSort()
    assert parse_run_query([("min_cost", "$1,000.50")]).filter.min_cost == 1000.5
