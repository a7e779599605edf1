"""The page of a run, its fragments and its exports, without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import pytest
from agentguard_server.viewer.app import build_app
from agentguard_server.viewer.settings import ViewerSettings
from starlette.testclient import TestClient

from agentguard.detect.base import Evidence, Finding
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.localize.embedded import TRAINING_NOTE
from agentguard.localize.serialization import build_diagnosis_rows
from agentguard.store import Store
from agentguard.trajectory.model import Branch, Observation, Source, Step, ToolCall, ToolSpec, Trajectory
from agentguard.verdict import Verdict
from tests import viewer_runs
from tests.unit.server.viewer.run.page_parser import ELEMENTS, Page, as_shown, squashed

EVIL = (
    "</textarea></div></script><script>window.pwned=1</script><img src=x onerror=pwned()>"
    "\" onmouseover='pwned()' x=\"{{ 7*7 }}{% raw %}<!--&lt;svg/onload=pwned()>\u202e\u2066\x00\x1b[31m\ud83d"
)
LINK = "javascript:pwned() https://evil.example/?q=1 data:text/html,<script>pwned()</script>"


def evil(name: str) -> str:
    return f"{name} {EVIL} {LINK}"


def evil_marks() -> dict[str, object]:
    return {
        "told": [evil("told"), 7],
        "repaired": [{"field": evil("f"), "original": evil("was"), "repaired": evil("is")}, "odd"],
        "elected": {"candidates": 3, "votes": 2, "reason": evil("vote")},
    }


def evil_run(run_id: str = "a/b?c#d e%2Fé") -> tuple[Trajectory, Diagnosis]:
    """Return a run whose every text tries to escape its element, and a diagnosis that quotes it."""
    step = Step(
        index=0,
        source=Source.AGENT,
        agent=evil("agent"),
        content=evil("content"),
        reasoning=evil("reasoning"),
        modules={evil("module"): evil("part")},
        tool_calls=(
            ToolCall(
                id=evil("id"),
                name=evil("tool"),
                arguments={"key" + EVIL[:40]: evil("value").replace("\ud83d", "")},
            ),
            ToolCall(id="2", name="t", raw_arguments=evil("raw")),
        ),
        observations=(
            Observation(content=evil("result"), call_id=evil("id"), is_error=True),
            Observation(content=evil("loose"), tool=evil("by")),
        ),
        model=evil("model"),
        extra={"agentguard": evil_marks(), "damaged_row": evil("damage")},
    )
    left = Branch(id=evil("branch"), fork_step=0, steps=(replace(step, index=0),), reason=evil("reason"))
    run = Trajectory(
        id=run_id,
        format=evil("format"),
        task=evil("task"),
        steps=(step, replace(step, index=1, source=Source.ENVIRONMENT)),
        tools=(ToolSpec(name=evil("spec"), description=evil("description"), parameters={"x": "<script>"}),),
        system_prompts={evil("who"): evil("prompt")},
        branches=(left,),
        extra={"note": "<script>pwned()</script>"},
    )
    text = step.text("content")
    quotes = (
        Evidence(step=0, field="content", quote=text[8:60], start=8, end=60),
        Evidence(step=0, field="content", quote=text[20:90], start=20, end=90),
        Evidence(step=0, field=evil("field"), quote=evil("gone"), start=0, end=4),
    )
    finding = Finding(
        detector="d<script>", step=0, codes=("x:<script>",), probability=0.9, message=evil("message"),
        evidence=quotes, correction=evil("correction"),
    )  # fmt: skip
    cause = Hypothesis(
        step=0, agent="<b>", module="<i>", codes=("y:<script>",), probability=0.8, evidence=quotes,
        correction=evil("do"), reason=evil("why"),
    )  # fmt: skip
    diagnosis = Diagnosis(
        trajectory_id=run_id, method="m<script>", verdict=Verdict.FAILED, probability=0.9,
        hypotheses=(cause,), findings=(finding,), notes=(evil("note"),),
        usage={"calls<b>": 2.0, "seconds": 1.5}, judge="judge<b> (/models/small)",
    )  # fmt: skip
    return run, diagnosis


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with Store.open(tmp_path_factory.mktemp("viewer") / "store.db") as store:
        viewer_runs.fill(store, long=(250,))
        run, diagnosis = evil_run()
        store.write_run(replace(run, id="evil"))
        store.write_run(replace(run, id="a/b?c#d e%2Fé"))
        whole = evil_clean(diagnosis)
        store.write(*build_diagnosis_rows(replace(whole, trajectory_id="evil")))
        store.flush(20)
        with TestClient(build_app(store, ViewerSettings()), base_url="http://127.0.0.1") as opened:
            yield opened


def evil_clean(diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis as JSON can contain it: without lone surrogates."""

    def text(value: str) -> str:
        return value.replace("\ud83d", "\ufffd")

    def evidence(all: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        return tuple(replace(one, quote=text(one.quote), field=text(one.field)) for one in all)

    causes = tuple(
        replace(
            one, evidence=evidence(one.evidence), correction=text(one.correction), reason=text(one.reason)
        )
        for one in diagnosis.hypotheses
    )
    found = tuple(
        replace(
            one, evidence=evidence(one.evidence), message=text(one.message), correction=text(one.correction)
        )
        for one in diagnosis.findings
    )
    notes = tuple(text(note) for note in diagnosis.notes)
    return replace(diagnosis, hypotheses=causes, findings=found, notes=notes)


def page(client: TestClient, path: str) -> Page:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text[:300]
    return Page(answer.text)


# -- the page


def test_page_names_the_version_of_the_judge(client: TestClient) -> None:
    assert "<dd>judge&lt;b&gt; (/models/small)</dd>" in client.get("/runs/evil?show=about").text


def test_page_begins_with_failure_summary(client: TestClient) -> None:
    text = client.get("/runs/unrecovered-total").text
    read = Page(text)
    assert read.text.index("Failed") < read.text.index("Conversation")
    assert "Invented memory" in read.text
    assert "Do not assume the price." in read.text
    assert {"step-0", "step-17", "q1", "q2", "q3", "hypotheses", "spread"} <= set(read.ids)
    assert len(set(read.ids)) == len(read.ids)


def test_headings_are_ordered_and_title_is_unique(client: TestClient) -> None:
    for path in (
        "",
        "?show=outline",
        "?show=graph",
        "?show=branches",
        "?show=effects",
        "?show=findings",
        "?show=about",
        "?q=booked",
    ):
        tags = [tag for tag, _ in page(client, f"/runs/lisbon-hotel{path}").elements]
        levels = [int(tag[1]) for tag in tags if tag in ("h1", "h2", "h3")]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after - before <= 1 for before, after in pairwise(levels))


def test_recovered_run_has_every_section(client: TestClient) -> None:
    branches = page(client, "/runs/lisbon-hotel?show=branches").text
    assert "Branch 3 abandoned at step 4: compensate" in " ".join(branches.split())
    assert "Continuation" in branches
    effects = page(client, "/runs/lisbon-hotel?show=effects").text
    assert all(word in effects for word in ("executed", "undone", "reused", "skipped", "unknown outcome"))
    left = page(client, "/runs/lisbon-hotel?line=branch-3&step=4").text
    assert "137.5 euros a night" in left
    assert "abandoned" in left


def test_all_links_resolve(client: TestClient) -> None:
    read = page(client, "/runs/lisbon-hotel")
    for link in read.links():
        path, _, anchor = link.partition("#")
        if path == "":
            assert anchor in read.ids
        elif path.startswith("/runs/"):
            there = client.get(path)
            assert there.status_code == 200
            assert not anchor or f'id="{anchor}"' in there.text


def test_long_run_is_paginated_without_script(client: TestClient) -> None:
    first = page(client, "/runs/long-250")
    assert "step-99" in first.ids
    assert "step-100" not in first.ids
    assert "/runs/long-250?step=100" in first.links()
    far = page(client, "/runs/long-250?step=249")
    assert {"step-200", "step-249"} <= set(far.ids)


def test_steps_are_served_as_fragment(client: TestClient) -> None:
    read = page(client, "/runs/long-250/steps?from=100&to=110")
    assert [one for one in read.ids if one.startswith("step-") and not one.endswith("-who")] == [
        f"step-{n}" for n in range(100, 110)
    ]
    assert page(client, "/runs/long-250/steps?from=9999").elements == []
    assert page(client, "/runs/long-250/steps?from=x&to=-3&line=nobody").ids


def test_axis_is_part_of_url(client: TestClient) -> None:
    assert "by time" in page(client, "/runs/lisbon-hotel?axis=steps").text
    assert "by step number" in page(client, "/runs/lisbon-hotel").text


def test_missing_run_and_step_are_not_found(client: TestClient) -> None:
    assert client.get("/runs/nobody").status_code == 404
    assert client.get("/runs/lisbon-hotel/raw.json?step=99").status_code == 404
    assert client.get("/runs/lisbon-hotel?step=99999999999&show=odd&axis=odd&page=x").status_code == 200


def test_id_may_contain_any_printable_character(client: TestClient) -> None:
    path = f"/runs/{quote('a/b?c#d e%2Fé', safe='')}"
    assert client.get(path).status_code == 200
    assert client.get(f"{path}/steps?from=0&to=1").status_code == 200
    assert client.get(f"{path}/raw.json").json()["run"]["id"] == "a/b?c#d e%2Fé"
    assert f"{path}/export.html" in page(client, path).links()


def test_raw_json_is_complete(client: TestClient) -> None:
    whole = client.get("/runs/lisbon-hotel/raw.json").json()
    assert (len(whole["steps"]), len(whole["branches"]), len(whole["recoveries"])) == (9, 3, 3)
    assert {one["state"] for one in whole["effects"]} == {"done", "compensated", "ambiguous"}
    one = client.get("/runs/lisbon-hotel/raw.json?step=4&line=branch-3").json()
    assert one["tool_calls"][0]["arguments"]["amount"] == 137.5


def test_downloads_are_named_after_run(client: TestClient) -> None:
    for kind, suffix in (("html", ".html"), ("json", ".json"), ("atif", ".atif.json")):
        answer = client.get(f"/runs/{quote('a/b?c#d e%2Fé', safe='')}/export.{kind}")
        assert answer.status_code == 200, answer.text[:200]
        assert answer.headers["content-disposition"] == f'attachment; filename="a_b_c_d_e_2F{suffix}"'
    assert client.get("/runs/lisbon-hotel/export.atif").json()["schema_version"].startswith("ATIF")


def test_feedback_form_names_diagnosis(client: TestClient) -> None:
    fields = {
        str(given.get("name")): given.get("value")
        for tag, given in page(client, "/runs/unrecovered-total").elements
        if tag in ("input", "select", "textarea", "button") and given.get("name")
    }
    assert {"subject", "subject_id", "right", "step", "code", "note"} <= set(fields)
    assert fields["subject"] == "diagnosis"
    assert fields["subject_id"]


@pytest.mark.parametrize("notes", [(), (TRAINING_NOTE,)])
def test_verdict_on_a_training_run_is_marked(notes: tuple[str, ...], tmp_path: Path) -> None:
    run, diagnosis = viewer_runs.lost()
    with Store.open(tmp_path / "s.db") as store:
        store.write_run(run)
        store.write(*build_diagnosis_rows(replace(diagnosis, notes=notes)))
        store.flush(10)
        text = TestClient(build_app(store), base_url="http://127.0.0.1:7430").get(f"/runs/{run.id}").text
    assert ("in the training data</span>" in text) == bool(notes)


def test_read_only_store_hides_feedback_form(tmp_path: object) -> None:
    with Store.open(f"{tmp_path}/s.db") as store:
        run, diagnosis = viewer_runs.lost()
        store.write_run(run)
        store.write(*build_diagnosis_rows(diagnosis))
        store.flush(10)
        with TestClient(
            build_app(store, ViewerSettings(allows_feedback=False)), base_url="http://127.0.0.1"
        ) as opened:
            read = page(opened, f"/runs/{run.id}")
    assert "Labels need a store" in read.text
    assert not any(given.get("method") == "post" for _, given in read.elements)


# -- a run's content must not change the page

PATHS = (
    "",
    "?show=outline",
    "?show=graph",
    "?show=branches",
    "?show=effects",
    "?show=findings",
    "?show=about",
    "?q=pwned",
    "/export.html",
)


@pytest.mark.parametrize("path", PATHS)
def test_run_content_adds_no_element_attribute_or_link(client: TestClient, path: str) -> None:
    assert_harmless(page(client, f"/runs/evil{path}"), exported=path == "/export.html")


def assert_harmless(read: Page, *, exported: bool = False) -> None:
    for tag, given in read.elements:
        assert tag in ELEMENTS
        assert not any(name.startswith("on") for name in given)
        assert exported or "style" not in given
        assert "src" not in given or str(given["src"]).startswith("/static/")
        for name in ("href", "action"):
            target = str(given.get(name) or "/")
            if (tag, target) == ("link", "data:,"):  # our own icon, an empty data URL
                continue
            assert target.startswith(("/", "#")), target
            assert not target.startswith("//")
    scripts = [given for tag, given in read.elements if tag == "script"]
    assert len(scripts) == (0 if exported else 1)
    assert not any(ord(c) < 32 and c not in "\t\n\r" for c in read.text)
    assert not any(c in read.text for c in "\u202e\u2066\x00")


def test_hostile_step_is_fully_readable(client: TestClient) -> None:
    text = squashed(page(client, "/runs/evil").text)
    for name in ("content", "reasoning", "part", "raw", "result", "loose", "told", "damage"):
        assert as_shown(evil(name)) in text, name


def test_single_text_is_served_unchanged(client: TestClient) -> None:
    answer = client.get("/runs/evil/text?step=0&field=content")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<script>window.pwned=1</script>" in answer.text


# -- the exported file


def test_exported_file_is_self_contained_and_complete(client: TestClient) -> None:
    text = client.get("/runs/lisbon-hotel/export.html").text
    read = Page(text)
    assert not [tag for tag, _ in read.elements if tag in ("script", "link", "img", "form")]
    policy = next(given for tag, given in read.elements if given.get("http-equiv"))
    assert "default-src 'none'" in str(policy["content"])
    assert len(set(read.ids)) == len(read.ids)
    assert {"step-8", "b3-step-4", "b1-step-3", "branch-3", "q1"} <= set(read.ids)
    assert all(link.startswith("#") for link in read.links())
    assert all(link[1:] in read.ids for link in read.links())
    assert "275 euros in total" in read.text


def test_exported_file_omits_nothing() -> None:
    from agentguard_server.viewer.data.run_data import RunData
    from agentguard_server.viewer.export import render_html

    long = "a long line of text without any end " * 5_000
    step = Step(index=0, source=Source.AGENT, agent="a", content=long)
    read = Page(render_html(RunData.from_run(Trajectory(id="r", format="f", task="t", steps=(step,)))))
    assert squashed(long) in squashed(read.unfolded)
