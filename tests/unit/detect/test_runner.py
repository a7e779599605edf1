from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentguard.detect.base import BaseDetector, Detector, Evidence, Finding, detectors
from agentguard.detect.detection import detect, mark_recoveries
from agentguard.detect.run_view import RunView
from agentguard.detect.runner import MAX_FAILURES, IncrementalRunner, build_detectors
from agentguard.errors import ConfigError, UnknownPlugin
from agentguard.trajectory.model import Step
from tests.unit.detect.builders import call, code, env, run, said, tool, user

RUN = run(*[said(f"step {i}") for i in range(6)])
MIXED = run(
    user("Pay order K77, please"),
    call("pay", {"order_id": "ZZ9912"}, "Error: no such order"),
    said("Your order has been paid."),
    code("f()"),
    env("exitcode: 1 (execution failed)"),
    code("f()"),
    env("exitcode: 1 (execution failed)"),
    said("I will now open it."),
)


class Scripted:
    """Detector with a scripted reaction to each step."""

    def __init__(self, script: Any, name: str = "scripted") -> None:
        self.name, self.script, self.calls = name, script, 0

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        self.calls += 1
        return self.script(step)  # type: ignore[no-any-return]

    def finish(self, view: RunView) -> Iterable[Finding]:
        return ()


def good(step: Step, **more: Any) -> Finding:
    return Finding(
        detector="scripted", step=step.index, codes=("mast:x",), probability=0.5, message="m", **more
    )


def raises(step: Step) -> Iterable[Finding]:
    raise KeyError("a secret from the run")


def half(step: Step) -> Iterator[Finding]:
    yield good(step)
    raise RuntimeError("half way")


def endless(step: Step) -> Iterator[Finding]:
    while True:
        yield good(step)


def quote(step: Step, text: str, start: int, at: int | None = None) -> Evidence:
    where = step.index if at is None else at
    return Evidence(step=where, field="content", quote=text, start=start, end=start + len(text))


JUNK = {
    "raises": raises,
    "half way": half,
    "endless": endless,
    "none": lambda step: None,
    "a number": lambda step: 7,
    "a text": lambda step: "found",
    "no finding": lambda step: [{"step": 1}],
    "no such step": lambda step: [replace(good(step), step=99)],
    "negative step": lambda step: [replace(good(step), step=-1)],
    "probability": lambda step: [replace(good(step), probability=1.5)],
    "nan": lambda step: [replace(good(step), probability=float("nan"))],
    "code": lambda step: [replace(good(step), codes=("loop",))],
    "wrong quote": lambda step: [good(step, evidence=(quote(step, "nowhere", 0),))],
    "wrong offset": lambda step: [good(step, evidence=(quote(step, "step", 1),))],
    "quote of the future": lambda step: [good(step, evidence=(quote(step, "step", 0, 99),))],
}


@pytest.mark.parametrize("script", JUNK.values(), ids=JUNK.keys())
def test_failing_detector_is_reported_and_disabled(script: Any) -> None:
    broken, fine = Scripted(script, "broken"), Scripted(lambda step: [good(step)])
    result = detect(RUN, [broken, fine])
    assert [failure.detector for failure in result.failures] == ["broken"] * MAX_FAILURES
    assert broken.calls == MAX_FAILURES
    assert fine.calls == len(RUN.steps)
    assert len(result.findings) == len(RUN.steps)


def test_failure_does_not_quote_the_run() -> None:
    (failure, *_) = detect(RUN, [Scripted(raises)]).failures
    assert failure.error == "KeyError"
    assert failure.step == 0


def test_slow_detector_is_reported_with_its_time() -> None:
    def slow(step: Step) -> Iterable[Finding]:
        time.sleep(0.02)
        return [good(step)]

    result = detect(RUN, [Scripted(slow)], deadline_s=0.01)
    assert len(result.failures) == MAX_FAILURES
    assert all(failure.seconds >= 0.02 and "deadline" in failure.error for failure in result.failures)
    assert len(result.findings) == MAX_FAILURES  # findings before the failure are kept


def test_detector_that_raises_at_the_end_is_reported() -> None:
    class Late(Scripted):
        def finish(self, view: RunView) -> Iterable[Finding]:
            raise ValueError("late")

    (failure,) = detect(RUN, [Late(lambda step: ())]).failures
    assert (failure.step, failure.error) == (None, "ValueError")


def test_detector_that_is_slow_at_the_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.perf_counter

    class Late(Scripted):
        def finish(self, view: RunView) -> Iterable[Finding]:
            monkeypatch.setattr("time.perf_counter", lambda: now() + 70)
            return ()

    (failure,) = detect(RUN, [Late(lambda step: ())], deadline_s=60).failures
    assert failure.step is None
    assert failure.seconds >= 70


def test_keyboard_interrupt_propagates() -> None:
    def interrupt(step: Step) -> Iterable[Finding]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        detect(RUN, [Scripted(interrupt)])


def test_findings_are_sorted_and_unique() -> None:
    def three(step: Step) -> list[Finding]:
        weak = replace(good(step), probability=0.1, message="weak")
        return [weak, good(step), good(step), replace(good(step), step=0)]

    found = detect(RUN, [Scripted(three)]).findings
    assert [f.step for f in found] == sorted(f.step for f in found)
    assert len(found) == 2 * len(RUN.steps)
    assert found[0].probability > found[1].probability


def test_live_and_offline_findings_are_equal() -> None:
    watcher = IncrementalRunner(RunView.from_trajectory(MIXED))
    live = [finding for step in MIXED.steps for finding in watcher.observe(step)]
    live += watcher.finish()
    offline = detect(MIXED)
    assert len(offline.findings) >= 6
    assert sorted(map(repr, live)) == sorted(map(repr, offline.findings))
    assert watcher.failures == []


def test_live_findings_do_not_depend_on_later_steps() -> None:
    for length in range(1, len(MIXED.steps) + 1):
        part = replace(MIXED, steps=MIXED.steps[:length])
        watcher = IncrementalRunner(RunView.from_trajectory(part))
        live = [repr(finding) for step in part.steps for finding in watcher.observe(step)]
        whole = IncrementalRunner(RunView.from_trajectory(MIXED))
        until = [repr(f) for step in MIXED.steps[:length] for f in whole.observe(step)]
        assert live == until


def test_steps_must_be_in_order() -> None:
    watcher = IncrementalRunner(specs={})
    with pytest.raises(ValueError, match="step 3"):
        watcher.observe(RUN.steps[3])


def test_empty_run_has_no_findings() -> None:
    result = detect(run())
    assert result.findings == ()
    assert result.failures == ()
    assert result.seconds >= 0


@pytest.mark.parametrize("options", [{}, None, True])
def test_defaults_have_three_notations(options: Any) -> None:
    (made,) = build_detectors({"exact_loop": options})
    assert made.name == "exact_loop"
    assert isinstance(made, Detector)


def test_false_disables_and_none_selects_all_that_can_find_anything() -> None:
    assert build_detectors({"exact_loop": False}) == []
    need_options = {"budget", "capability", "control_flow", "policy"}
    assert {d.name for d in build_detectors()} == set(detectors().names()) - need_options


def test_detector_with_default_options_is_built_at_the_first_step_that_it_observes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[str] = []
    build = BaseDetector.__init__

    def record(self: BaseDetector, **options: Any) -> None:
        built.append(self.name)
        build(self, **options)

    monkeypatch.setattr(BaseDetector, "__init__", record)
    runner = IncrementalRunner(specs={"near_loop": {}, "tool_error": {}, "exact_loop": {"repeat": 3}})
    assert built == ["exact_loop"], "its options must be checked at once"
    runner.observe(run(user("Go.")).steps[0])
    assert built == ["exact_loop", "tool_error"]
    runner.finish()
    assert sorted(built) == ["exact_loop", "near_loop", "tool_error"]


@pytest.mark.parametrize("options", [3, "on", [1]])
def test_options_must_be_a_mapping(options: Any) -> None:
    with pytest.raises(ConfigError, match="exact_loop"):
        build_detectors({"exact_loop": options})


def test_unknown_name_error_lists_detectors() -> None:
    with pytest.raises(UnknownPlugin, match="near_loop"):
        build_detectors({"loops": {}})


def test_raising_factory_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = detectors()
    monkeypatch.setitem(registry._plugins, "foreign", Scripted)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="foreign"):
        build_detectors({"foreign": {"colour": "red"}})


@pytest.mark.parametrize("deadline", [0, -1, float("nan")])
def test_deadline_must_be_positive(deadline: float) -> None:
    with pytest.raises(ConfigError):
        IncrementalRunner(specs={}, deadline_s=deadline)


SAID = (
    user("Pay order K77, please, and verify that it is paid."),
    said("I have paid the order successfully."),
    said('```json\n{"action": \n```'),
    said("I can't help with that."),
    said("Let me look at the weather in Paris."),
    said("Let's assume dummy data for the weather in Paris, and then plan the walk."),
    said("I am sorry, I WON'T assist with that. I could not find it and give up."),
    said("The step limit was reached: ran out of steps."),
    said("Observation: it rains.\nUser: and tomorrow?"),
    said("I am the planner.", agent="writer"),
    said("Unclosed:\n```python\n" + "print(1)\n" * 9),
    said("Cut", extra={"finish_reason": "length"}),
    said("Slow", started_at=0.0, ended_at=6_000.0),
    said("\u0130t HAS BEEN CANCELLED."),
    said("<action>{</action>"),
    said("1. look at the weather\n2. plan the walk\n3. write it all down for everybody\n"),
    said(""),
    code("f()"),
    call("pay", {"order_id": "ZZ9912"}, "Error: no such order"),
    call("look", {}, "nothing found"),
    env("exitcode: 1 (execution failed)"),
)


@given(
    st.lists(st.sampled_from(SAID), max_size=9),
    st.booleans(),
    st.sampled_from(["", "Verify the total."]),
    st.sampled_from([None, "max_steps"]),
)
def test_skipping_irrelevant_detectors_changes_no_findings(
    steps: list[Any], offered: bool, prompt: str, status: str | None
) -> None:
    made = replace(
        run(*steps, prompts={"planner": prompt} if prompt else {}),
        tools=(tool("look"),) if offered else (),
        exit_status=status,
    )
    watcher = IncrementalRunner(RunView.from_trajectory(made), build_detectors())
    found = [one for step in made.steps for one in watcher.observe(step)] + [*watcher.finish()]
    marked = mark_recoveries(found, made.steps)
    assert sorted(map(repr, detect(made).findings)) == sorted(map(repr, marked))


def test_configured_detector_is_always_created() -> None:
    rules = [{"name": "greet", "forbid": "hello"}]
    found = detect(run(said("hello there")), {"policy": {"rules": rules}, "exact_loop": {}}).findings
    assert [one.detector for one in found] == ["policy"]
    assert (
        build_detectors({"exact_loop": True}, run=run())
        == build_detectors({"policy": {}}, run=run(*[said("so")] * 9))
        == []
    )
