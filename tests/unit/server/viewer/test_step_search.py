"""Page of the search in the contents of all runs."""

import re
from html import unescape

import pytest
from agentguard_server.viewer.app import build_app
from agentguard_server.viewer.escaping import to_excerpt
from starlette.testclient import TestClient

from agentguard.store import Store
from agentguard.store.db.rows import DiagnosisRow
from agentguard.trajectory.model import Branch, Source, Step, Trajectory


def agent_step(index: int, content: str) -> Step:
    return Step(index=index, source=Source.AGENT, agent="worker", content=content)


@pytest.fixture
def client(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        for number in range(30):
            steps = (agent_step(0, "begin"), agent_step(1, f"the <b>needle</b> of hay {number}"))
            branches = (Branch(id="old", fork_step=1, steps=(agent_step(1, f"lost {number}"),)),)
            run = Trajectory(id=f"r{number:02}", format="f", task="find", steps=steps, branches=branches)
            store.write_run(run)
        store.write(DiagnosisRow(run_id="r07", method="m", verdict="failed", step=1, agent="worker"))
        store.flush(10)
        yield TestClient(build_app(store), base_url="http://127.0.0.1:7430")


def found_ids(page: str) -> list[str]:
    return re.findall(r'<h2 id="found-\d+"><a href="/runs/(r\d+)\?q=', page)


def test_search_page_links_steps_with_escaped_excerpt(client):
    page = client.get("/search?q=NEEDLE</b> of hay 7").text
    assert found_ids(page) == ["r07"]
    assert "the &lt;b&gt;<mark>needle&lt;/b&gt; of hay 7</mark>" in page
    (link,) = re.findall(r'<li><a href="([^"]+)"', page)
    step_page = client.get(unescape(link))
    assert link.endswith("#step-1")
    assert 'id="step-1"' in step_page.text


def test_search_page_links_step_of_abandoned_branch(client):
    page = client.get("/search?q=lost 12").text
    (link,) = re.findall(r'<li><a href="([^"]+)"', page)
    assert "line=old" in link
    assert "abandoned branch" in page
    assert "lost 12" in client.get(unescape(link)).text


def test_search_page_keeps_filters_of_list(client):
    page = client.get("/search?q=needle&verdict=failed").text
    assert found_ids(page) == ["r07"]
    assert '<input type="hidden" name="verdict" value="failed">' in page


def test_search_page_continues_with_older_runs(client):
    first = client.get("/search?q=needle").text
    (more,) = re.findall(r'rel="next" href="([^"]+)"', first)
    second = client.get(unescape(more)).text
    assert 'rel="next"' not in second
    assert sorted(found_ids(first) + found_ids(second)) == [f"r{number:02}" for number in range(30)]


def test_search_page_without_match_says_so(client):
    page = client.get("/search?q=absent").text
    assert "0 runs with this text." in " ".join(page.split())


def test_search_page_without_text_shows_form_only(client):
    page = client.get("/search").text
    assert 'role="search"' in page
    assert 'role="status"' not in page


def test_list_without_match_offers_search_of_contents(client):
    assert 'href="/search?q=needle"' in client.get("/?q=needle").text


def test_hit_keeps_the_white_space_around_it() -> None:
    assert (to_excerpt("code:\n"), to_excerpt(" for  tool"), to_excerpt("'")) == ("code: ", " for tool", "'")
