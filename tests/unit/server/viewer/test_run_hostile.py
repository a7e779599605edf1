"""Pages of arbitrary runs: each parses, has only our elements, and shows all text of the run."""

from __future__ import annotations

from agentguard_server.viewer.app import build_app
from agentguard_server.viewer.data.run_data import RunData
from agentguard_server.viewer.export import render_html
from agentguard_server.viewer.renderer import Renderer
from hypothesis import HealthCheck, given, settings, strategies as st
from starlette.testclient import TestClient

from agentguard.detect.base import Evidence, Finding
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.store import Store
from agentguard.trajectory.model import Branch, Observation, Source, Step, ToolCall, Trajectory, Usage
from agentguard.verdict import Verdict
from tests.unit.server.viewer.run.page_parser import ELEMENTS, Page, as_shown, squashed

RENDERER = Renderer()
MARKUP = [
    "<script>alert(1)</script>",
    "</textarea>",
    "'\" onload=x",
    "&amp;&#60;",
    "{{7*7}}",
    "{% x %}",
    "]]>",
]
HIDDEN = ["<!--", "\x00", "\u202e", "\ud800", "\r"]
SHAPES = ["```\ncode\n```", '{"a": [1, "b\\n"]}', "javascript:x", "1,250.50", "Error: x"]
BITS = st.sampled_from(MARKUP + HIDDEN + SHAPES)
TEXT = st.lists(BITS | st.text(st.characters(codec=None), max_size=20), max_size=4).map("".join)
NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32)
JSONISH = st.dictionaries(TEXT, TEXT | st.integers() | st.none() | st.lists(TEXT, max_size=2), max_size=3)

CALLS = st.builds(
    ToolCall, id=TEXT, name=TEXT, arguments=st.none() | JSONISH, raw_arguments=st.none() | TEXT
)  # fmt: skip
SEEN = st.builds(
    Observation,
    content=TEXT,
    call_id=st.none() | TEXT,
    tool=st.none() | TEXT,
    is_error=st.none() | st.booleans(),
)
STEPS = st.builds(
    Step,
    index=st.just(0),
    source=st.sampled_from(Source),
    agent=TEXT,
    content=TEXT,
    reasoning=TEXT,
    modules=st.dictionaries(TEXT, TEXT, max_size=2),
    tool_calls=st.lists(CALLS, max_size=2).map(tuple),
    observations=st.lists(SEEN, max_size=3).map(tuple),
    started_at=NUMBERS,
    ended_at=NUMBERS,
    usage=st.none() | st.builds(Usage, prompt_tokens=st.none() | st.integers(0, 10**9), cost_usd=NUMBERS),
    model=st.none() | TEXT,
    extra=JSONISH,
)
LINES = st.lists(STEPS, max_size=4).map(tuple)
BRANCHES = st.builds(
    Branch, id=TEXT, fork_step=st.integers(-2, 6), steps=LINES, parent=st.none() | TEXT, reason=TEXT
)
RUNS = st.builds(
    Trajectory,
    id=TEXT,
    format=TEXT,
    task=TEXT,
    steps=LINES,
    branches=st.lists(BRANCHES, max_size=2).map(tuple),
    system_prompts=st.dictionaries(TEXT, TEXT, max_size=2),
    extra=JSONISH,
)
QUOTES = st.lists(
    st.builds(
        Evidence,
        step=st.integers(-1, 5),
        field=st.sampled_from(["content", "reasoning", "tool_calls[0]", "observations[0]"]) | TEXT,
        quote=TEXT,
        start=st.integers(-2, 60),
        end=st.integers(-2, 60),
    ),
    max_size=3,
).map(tuple)
CAUSES = st.builds(
    Hypothesis,
    step=st.integers(-1, 5),
    agent=TEXT,
    module=st.none() | TEXT,
    codes=st.lists(TEXT, max_size=2).map(tuple),
    probability=st.floats(0, 1),
    evidence=QUOTES,
    correction=TEXT,
    reason=TEXT,
)
FINDINGS = st.builds(
    Finding,
    detector=TEXT,
    step=st.integers(-1, 5),
    codes=st.lists(TEXT, max_size=2).map(tuple),
    probability=st.floats(0, 1),
    message=TEXT,
    evidence=QUOTES,
)
DIAGNOSES = st.none() | st.builds(
    Diagnosis,
    trajectory_id=TEXT,
    method=TEXT,
    verdict=st.sampled_from(Verdict),
    probability=st.floats(0, 1),
    hypotheses=st.lists(CAUSES, max_size=2).map(tuple),
    findings=st.lists(FINDINGS, max_size=2).map(tuple),
    timing=st.dictionaries(TEXT, st.floats(0, 100), max_size=2),
    notes=st.lists(TEXT, max_size=2).map(tuple),
)


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(RUNS, DIAGNOSES)
def test_any_run_renders_only_own_elements_and_all_text(run: Trajectory, diagnosis: Diagnosis | None) -> None:
    html = render_html(RunData.from_run(run, diagnosis), RENDERER)
    html.encode()
    read = Page(html)
    for tag, attributes in read.elements:
        assert tag in ELEMENTS
        assert not any(name.startswith("on") or name in ("src", "style") for name in attributes)
        assert str(attributes.get("href", "#")).startswith("#")
    assert not [tag for tag, _ in read.elements if tag in ("script", "form", "link")]
    text = squashed(read.unfolded)
    for step in run.steps:
        for field, said in step.texts():
            wanted = as_shown(said)
            # The arguments of a call are shown in its parentheses, without the braces around them.
            if field.startswith("tool_calls") and wanted[:1] == "{" and wanted not in text:
                wanted = wanted[1:-1]
            assert wanted in text, field


def test_megabyte_line_and_deep_json_render_small_page(tmp_path: object) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    steps = (
        Step(index=0, source=Source.AGENT, agent="a", content="x" * 1_000_000),
        Step(index=1, source=Source.ENVIRONMENT, agent="e", content=deep),
        Step(
            index=2,
            source=Source.AGENT,
            agent="a",
            tool_calls=(ToolCall(id="1", name="t", raw_arguments='{"a":' * 50_000),),
            observations=(Observation(content="é" * 300_000, call_id="1"),),
        ),
    )
    with Store.open(f"{tmp_path}/s.db") as store:
        store.write_run(Trajectory(id="big", format="f", task="y" * 100_000, steps=steps))
        store.flush(20)
        with TestClient(build_app(store), base_url="http://127.0.0.1") as client:
            answer = client.get("/runs/big")
            assert answer.status_code == 200
            assert len(answer.content) < 500_000
            assert "characters are not on this page" in answer.text
            whole = client.get("/runs/big/text?step=0&field=content")
            assert whole.text == "x" * 1_000_000
            assert client.get("/runs/big/export.html").status_code == 200
