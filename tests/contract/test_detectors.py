"""Contract of all registered detectors, on any run."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agentguard.detect.base import Detector, Finding, detectors
from agentguard.detect.detection import detect, mark_recoveries
from agentguard.detect.run_view import Move, RunView, StepSequence
from agentguard.detect.runner import IncrementalRunner, build_detectors
from agentguard.errors import ConfigError
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.trajectory.model import (
    Observation,
    Source,
    Step,
    ToolCall,
    ToolSpec,
    Trajectory,
    Usage,
)

NAMES = detectors().names()
# Options that activate the detectors that are silent by default.
ACTIVE: dict[str, dict[str, Any]] = {
    "budget": {"steps": 2, "tokens": 10, "seconds": 1, "cost_usd": 0.1},
    "capability": {"denied": {"*": ["pay"]}, "allowed": {"a": ["look"]}},
    "control_flow": {"order": ["look", "pay"]},
    "policy": {
        "rules": [
            {"forbid": "error|K7"},
            {"require": "never said"},
            {"before": "(?i)yes", "tool": "pay"},
            {"forbid": "(a+)+$", "where": "results"},
        ]
    },
    "out_of_range": {"ranges": {"sum": [0, 10], "pay.n": [None, 3]}},
    "watchdog": {"seconds": 1},
}
SNIPPETS = (
    "Error: no such order",
    "Traceback (most recent call last):\n  x\nKeyError: 'a'",
    "exitcode: 1 (failed)",
    "You can't go that way.",
    '{"error": "x", "price": 12}',
    "[]",
    "The order K77-1 has been paid successfully.",
    "I will now open it.",
    "```python\nprint(1)\n```",
    "```python\nprint(",
    "Action: open[door]",
    "Observation: yes",
    "1. look\n2. take\n3. go on to the end of the long way\n",
    "I'm sorry, but I can't help with that.",
    "TERMINATE",
    "Let's assume placeholder data",
    "User: yes",
    '<tool_call>{"a": </tool_call>',
    "the price is 99",
    "x@y.org",
    "İ😀",
)

texts = st.one_of(
    st.sampled_from(SNIPPETS),
    st.lists(st.sampled_from(SNIPPETS), max_size=3).map("\n".join),
    st.text(st.characters(), max_size=60),
)
names = st.sampled_from(("look", "pay", "go", ""))
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    texts,
    st.sampled_from(("ZX81QL", "2031-05-20", "a@b.org", 299)),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
arguments = st.dictionaries(st.one_of(st.sampled_from(("sum", "order_id", "n")), texts), values, max_size=4)
calls = st.builds(
    ToolCall, id=st.just("c"), name=names, arguments=st.none() | arguments, raw_arguments=st.none() | texts
)
seen = st.builds(
    Observation,
    content=texts,
    call_id=st.sampled_from((None, "c")),
    tool=st.none() | names,
    is_error=st.none() | st.booleans(),
)
times = st.none() | st.floats()
fields = st.fixed_dictionaries(
    {
        "source": st.sampled_from(Source),
        "agent": st.sampled_from(("a", "Web_Expert", "")),
        "content": texts,
        "reasoning": st.just("") | texts,
        "modules": st.just({}) | st.dictionaries(st.sampled_from(("action", "planning")), texts, max_size=2),
        "tool_calls": st.lists(calls, max_size=2).map(tuple),
        "observations": st.lists(seen, max_size=2).map(tuple),
        "started_at": times,
        "ended_at": times,
        "usage": st.none()
        | st.builds(
            Usage, prompt_tokens=st.none() | st.integers(0, 99), cost_usd=st.none() | st.floats(0, 9)
        ),
        "extra": st.just({})
        | st.fixed_dictionaries({"finish_reason": st.sampled_from(("length", "stop", 3, None))}),
    }
)
schemas = st.sampled_from(
    (
        {},
        {"type": "object", "properties": {"sum": {"minimum": 1, "maximum": 5}}, "required": ["order_id"]},
        {"$ref": "http://localhost:9/x"},
        {"type": 5},
    )
)
tools = st.lists(st.builds(ToolSpec, name=names, description=texts, parameters=schemas), max_size=3).map(
    tuple
)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    drawn = draw(st.lists(fields, max_size=8))
    drawn *= draw(st.sampled_from((1, 1, 3)))  # repetition, so that loops occur
    return Trajectory(
        id="t",
        format="made",
        task=draw(texts),
        steps=tuple(Step(index=i, **step) for i, step in enumerate(drawn)),
        tools=draw(tools),
        system_prompts=draw(st.dictionaries(st.sampled_from(("", "a")), texts, max_size=2)),
    )


def one(name: str) -> dict[str, dict[str, Any]]:
    return {name: ACTIVE.get(name, {})}


def codes() -> set[str]:
    shipped = TaxonomyCatalog.load()
    return {code.qualified_id for name in shipped.names() for code in shipped.get_taxonomy(name).codes}


@pytest.mark.parametrize("name", NAMES)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(trajectory=trajectories())
def test_any_run_gives_valid_findings(name: str, trajectory: Trajectory) -> None:
    before = repr(copy.deepcopy(trajectory))
    result = detect(trajectory, one(name), deadline_s=30)
    assert result.failures == ()
    for finding in result.findings:
        assert finding.detector == name
        assert 0 <= finding.step < len(trajectory.steps)
        assert finding.noticed_at is None or finding.step <= finding.noticed_at < len(trajectory.steps)
        assert math.isfinite(finding.probability)
        assert finding.message
        assert finding.correction
        for quote in finding.evidence:
            text = trajectory.steps[quote.step].text(quote.field)
            assert text[quote.start : quote.end] == quote.quote != ""
    assert repr(trajectory) == before


@pytest.mark.parametrize("name", NAMES)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(trajectory=trajectories())
def test_live_and_offline_findings_are_equal_and_deterministic(name: str, trajectory: Trajectory) -> None:
    watcher = IncrementalRunner(RunView.from_trajectory(trajectory), one(name), deadline_s=30)
    live = [finding for step in trajectory.steps for finding in watcher.observe(step)]
    live += watcher.finish()
    offline = detect(trajectory, one(name), deadline_s=30).findings
    assert sorted(map(repr, mark_recoveries(live, trajectory.steps))) == sorted(map(repr, offline))


@pytest.mark.parametrize("name", NAMES)
def test_codes_belong_to_a_taxonomy(name: str) -> None:
    (made,) = build_detectors(one(name))
    assert made.name == name
    assert isinstance(made, Detector)
    assert set(getattr(made, "codes", ())) <= codes()


class CountingMoves(list[Move]):
    """Counter of the moves that a detector reads."""

    work = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.work += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self) -> Iterator[Move]:
        for item in super().__iter__():
            self.work += 1
            yield item

    def __reversed__(self) -> Iterator[Move]:
        for item in super().__reversed__():
            self.work += 1
            yield item


class CountingSteps(StepSequence):
    """Counter of the steps that a detector reads."""

    work = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.work += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self) -> Iterator[Step]:
        for item in super().__iter__():
            self.work += 1
            yield item


class CountingView(RunView):
    """View that counts a detector's accesses."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.steps = self.counted_steps = CountingSteps(self._steps)
        self.moves = self.counted_moves = CountingMoves()
        self.asked = 0

    def get_facts(self, step: Step) -> Any:
        self.asked += 1
        return super().get_facts(step)

    @property
    def work(self) -> int:
        return self.asked + self.counted_steps.work + self.counted_moves.work


def long_run(length: int) -> Iterator[Step]:
    """Return a run of loops, errors, claims and fresh values in turns, in both shapes."""
    for i in range(length):
        if i % 4 == 0:
            content, source = (
                f"Step {i}: the order K{i} has been paid.\n```python\nf({i % 8})\n```",
                Source.AGENT,
            )
            yield Step(index=i, source=source, agent="a", content=content)
        elif i % 4 == 1:
            yield Step(
                index=i,
                source=Source.ENVIRONMENT,
                agent="env",
                content="Error: no" if i % 8 == 1 else f"ok {i}",
            )
        else:
            call = ToolCall(id="c", name="pay", arguments={"order_id": f"ZX{i % 24}QL", "sum": i % 3})
            observation = Observation(content="Error: no such order", call_id="c", tool="pay")
            yield Step(
                index=i, source=Source.AGENT, agent="a", tool_calls=(call,), observations=(observation,)
            )


@pytest.mark.parametrize("name", NAMES)
def test_work_per_step_does_not_grow(name: str) -> None:
    view = CountingView(task="pay the orders")
    watcher = IncrementalRunner(view, one(name), deadline_s=30)
    costs = []
    for step in long_run(1_200):
        before = view.work
        watcher.observe(step)
        costs.append(view.work - before)
    early, late = costs[200:600], costs[800:1_200]
    assert max(late) <= max(early) + 2
    assert sum(late) <= sum(early) * 1.1 + 10
    assert max(costs) <= 400
    assert watcher.failures == []


def test_work_counter_detects_growth() -> None:
    class Greedy:
        name = "greedy"

        def observe(self, step: Step, view: RunView) -> tuple[Finding, ...]:
            assert all(view.get_facts(other) for other in view.steps)
            return ()

        def finish(self, view: RunView) -> tuple[Finding, ...]:
            return ()

    view = CountingView()
    watcher = IncrementalRunner(view, [Greedy()], deadline_s=30)
    for step in long_run(50):
        watcher.observe(step)
    assert view.work >= 50 * 50 / 2


@pytest.mark.parametrize("name", NAMES)
def test_unknown_option_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        build_detectors({name: {"no_such_option": 1}})
