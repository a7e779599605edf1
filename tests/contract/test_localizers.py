"""Contract of every localizer, built in or installed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError
from agentguard.localize.base import Diagnosis, Localizer, Trainable, get_localizer_registry
from agentguard.trajectory.model import Observation, Record, Source, Step, ToolCall, Trajectory
from agentguard.verdict import Verdict
from tests.unit.judge.judges import DealingJudge
from tests.unit.localize.runs import calls, chat, record, run, steered

NAMES = get_localizer_registry().names()
ASK = frozenset(
    ("all_at_once", "binary_search", "constraints", "fused", "step_by_step", "structured", "two_stage")
)
"""Localizers that need a judge, which must be named."""
TRAIN = [
    *(record(chat(id=f"c{i}", executes=i % 2 == 0), 1 if i % 2 else 0, group=f"boats {i}") for i in range(6)),
    *(record(steered(id=f"s{i}"), 3 + 2 * (i % 2), group=f"harbours {i}") for i in range(6)),
    *(record(calls(False, None, id=f"p{i}"), failed=False, group=f"berths {i}") for i in range(4)),
]

words = st.text(max_size=40)
steps = st.builds(
    Step,
    index=st.just(0),
    source=st.sampled_from(Source),
    agent=words,
    content=words,
    reasoning=words,
    tool_calls=st.lists(
        st.builds(
            ToolCall, id=words, name=words, arguments=st.none() | st.dictionaries(words, st.integers())
        ),
        max_size=2,
    ).map(tuple),
    observations=st.lists(
        st.builds(Observation, content=words, is_error=st.sampled_from([None, True, False])), max_size=2
    ).map(tuple),
)
runs = st.builds(
    lambda task, made: Trajectory(
        id="h", format="test", task=task, steps=tuple(replace(s, index=i) for i, s in enumerate(made))
    ),
    words,
    st.lists(steps, max_size=8),
)
findings = st.lists(
    st.builds(
        Finding,
        detector=st.just("loop"),
        step=st.integers(0, 9),
        codes=st.just(("mast:step_repetition",)),
        probability=st.floats(0, 1),
        message=words,
    ),
    max_size=4,
)


def made_of(name: str) -> Any:
    """Return the localizer with its defaults."""
    return get_localizer_registry().get(name)(**({"judge": DealingJudge()} if name in ASK else {}))


@cache
def ready(name: str) -> Localizer:
    """Return the localizer as shipped; if it needs training, train it on our own small runs."""
    made = made_of(name)
    return made if hasattr(made, "locate") else made.fit(TRAIN)


def check(diagnosis: Diagnosis, trajectory: Trajectory) -> None:
    assert diagnosis.trajectory_id == trajectory.id
    assert diagnosis.verdict in Verdict
    assert 0 <= diagnosis.probability <= 1
    named = [h.step for h in diagnosis.hypotheses]
    assert len(named) == len(set(named))
    for hypothesis in diagnosis.hypotheses:
        assert 0 <= hypothesis.step < len(trajectory.steps)
        assert 0 <= hypothesis.probability <= 1
        for quote in hypothesis.evidence:
            assert trajectory.steps[quote.step].text(quote.field)[quote.start : quote.end] == quote.quote
    if diagnosis.verdict is Verdict.NO_FAILURE_FOUND:
        assert not diagnosis.hypotheses
    if diagnosis.verdict is Verdict.FAILED:
        assert diagnosis.hypotheses


def same(one: Diagnosis, other: Diagnosis) -> bool:
    return replace(one, timing={}) == replace(other, timing={})


@pytest.mark.parametrize("name", NAMES)
def test_name_equals_registered_name(name: str) -> None:
    assert made_of(name).name == name
    assert ready(name).name == name
    assert ready(name).locate(chat(), ()).method == name


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trajectory=runs, found=findings)
def test_any_run_gives_valid_diagnosis(name: str, trajectory: Trajectory, found: list[Finding]) -> None:
    check(ready(name).locate(trajectory, found), trajectory)


@pytest.mark.parametrize("name", NAMES)
def test_empty_run_is_accepted(name: str) -> None:
    given_ = ready(name).locate(run(), ())
    check(given_, run())
    assert not given_.hypotheses


@pytest.mark.parametrize("name", NAMES)
def test_equal_runs_give_equal_diagnoses(name: str) -> None:
    for trajectory in (chat(), steered(), calls(True, None, False)):
        assert same(ready(name).locate(trajectory, ()), ready(name).locate(trajectory, ()))


@pytest.mark.parametrize("name", NAMES)
def test_unknown_option_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError):
        get_localizer_registry().get(name)(no_such_option=1)
    with pytest.raises(ConfigError, match="no_such_option" if name in ASK else None):
        get_localizer_registry().get(name)(judge=DealingJudge(), no_such_option=1)


@pytest.mark.parametrize("name", sorted(ASK))
def test_missing_judge_error_explains_how_to_name_one(name: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        get_localizer_registry().get(name)()


@pytest.mark.parametrize("name", sorted(ASK))
def test_unavailable_judge_gives_error_value(name: str) -> None:
    method = get_localizer_registry().get(name)(judge=DealingJudge(away=True))
    told = method.locate(chat(), ())
    check(told, chat())
    assert told.failures
    assert told.notes


def trainable(name: str) -> Trainable:
    method = made_of(name)
    if not hasattr(method, "fit"):
        pytest.skip(f"{name} does not learn")
    return method


@pytest.mark.parametrize("name", NAMES)
def test_training_is_deterministic_and_keeps_the_untrained_localizer(name: str) -> None:
    method = trainable(name)
    first = method.fit(TRAIN)
    before = first.locate(chat(), ())
    again = method.fit(TRAIN)
    assert same(before, again.locate(chat(), ()))
    method.fit(TRAIN[3:])
    assert same(before, first.locate(chat(), ()))


@pytest.mark.parametrize("name", NAMES)
def test_reasons_and_answers_are_not_training_input(name: str) -> None:
    def told(held: Record) -> Record:
        cause = held.annotation.root_cause
        cause = cause and replace(cause, reason="Counting_Expert assumed the number of boats")
        note = replace(held.annotation, root_cause=cause, answer="4", extra={"reason": "Browser searched"})
        return replace(held, annotation=note)

    method = trainable(name)
    plain, with_reasons = method.fit(TRAIN), method.fit([told(r) for r in TRAIN])
    for trajectory in (chat(), steered()):
        assert same(plain.locate(trajectory, ()), with_reasons.locate(trajectory, ()))
