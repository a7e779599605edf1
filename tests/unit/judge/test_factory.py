"""A policy that names a pooling judge: its fields, the resulting judge, and rejected values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentguard.config.policy import Policy
from agentguard.errors import ConfigError, ModelFileError
from agentguard.guard import Guard
from agentguard.judge.base import RUN_FAILED, ChoiceQuestion, close_judge
from agentguard.judge.cache import CachedJudge
from agentguard.judge.classifier.linear_head import LinearHead
from agentguard.judge.classifier.pooling_judge import PoolingJudge
from agentguard.judge.classifier.spec import ClassifierSpec, build_text_pairs, parse_steps
from agentguard.judge.factory import build_judge
from agentguard.judge.response_safety import SafetyAction, SafetyTier, build_safety_question
from agentguard.runtime.policy_factory import build_policy_judge, build_response_safety
from agentguard.trajectory.model import Source, Step, Trajectory
from tests.unit.judge.pooling_server import Pooling, pooling
from tests.unit.localize.runs import chat

TIERS = [str(tier) for tier in SafetyTier]
SAFETY = {"question": "response_safety", "options": TIERS, "by": "shown"}


def policy(url: str, *classifiers: dict[str, Any], **more: Any) -> Policy:
    given = {"kind": "pooling", "base_url": url, "classifiers": list(classifiers), "deadline_s": 60}
    return Policy.parse({"judge": given | more.pop("judge", {}), **more})


def telling(says: Callable[[str], float]) -> Pooling:
    return Pooling(scores=says)


WRITTEN = """
judge:
  kind: pooling
  base_url: http://127.0.0.1:1/v1
  classifiers:
    - {question: run_failed, options: [no, yes]}
    - {question: "root_cause*", options: [no, yes], by: step, chosen: yes}
"""


def test_bare_yaml_boolean_is_a_word(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(WRITTEN)
    judge = Policy.load(path).judge
    assert judge is not None
    assert [one.options for one in judge.classifiers] == [("no", "yes")] * 2
    assert judge.classifiers[1].chosen == "yes"
    assert not judge.uses_both_orders
    made = build_judge(judge)
    assert isinstance(made, CachedJudge)
    assert isinstance(made.judge, PoolingJudge)
    assert made.judge.classifiers[0] == ClassifierSpec(question="run_failed", options=("no", "yes"))
    assert made.judge.options.deadline_s == judge.deadline_s


def test_fused_uses_pooling_judge_for_both_questions() -> None:
    def says(text: str) -> float:
        return 0.97 if "recording" in text or text.split("[step ", 1)[-1].startswith("3") else 0.02

    both = (
        {"question": "run_failed", "options": ["no", "yes"]},
        {"question": "root_cause*", "options": ["no", "yes"], "by": "step"},
    )
    with pooling(telling(says)) as (url, script):
        with Guard.from_policy(policy(url, *both)) as guard:
            told = guard.diagnose(chat())
        with Guard.from_policy(policy(url, both[0])) as guard:
            half = guard.diagnose(chat())
        with Guard.from_policy(policy(url, *both, localizer={"name": "all_at_once"})) as guard:
            alone = guard.diagnose(chat())
    assert (told.method, told.failures) == ("fused", ())
    assert not any("the judge" in note for note in told.notes)
    assert told.usage["calls"] == 2, "a classifier sees no order of options, and is asked once"
    assert alone.hypotheses[0].step == 3
    assert set(script.paths) == {"/v1/models", "/classify"}
    assert any("did not name a step" in note for note in half.notes)


def said(text: str) -> Trajectory:
    steps = (
        Step(index=0, source=Source.USER, agent="user", content="How do I get in?"),
        Step(index=1, source=Source.AGENT, agent="clerk", content=text),
    )
    return Trajectory(id="r", format="test", task="How do I get in?", steps=steps)


def test_response_safety_classifies_only_the_message() -> None:
    def rated(text: str) -> list[float]:
        return [0.02, 0.02, 0.02, 0.94] if "crowbar" in text else [0.94, 0.02, 0.02, 0.02]

    with pooling(Pooling(classes=rated)) as (url, script):
        given = policy(url, SAFETY, safety={}, judge={"second": _also(url)})
        judge = build_policy_judge(given)
        safety = build_response_safety(given, judge)
        assert safety is not None
        bad, good = safety(said("Take a crowbar.")), safety(said("Ring the bell."))
        close_judge(safety.judge)
    assert bad is not None
    assert good is not None
    assert (bad.tier, bad.action) == (SafetyTier.UNSAFE, SafetyAction.BLOCK)
    assert (good.tier, good.action) == (SafetyTier.SAFE, SafetyAction.ALLOW)
    assert all("How do I get in?" in text and "recording" not in text for text in script.texts())


def _also(url: str) -> dict[str, Any]:
    return {"kind": "pooling", "base_url": url, "classifiers": [SAFETY]}


def test_tiers_are_named_by_ids_and_head_is_loaded(tmp_path: Path) -> None:
    rows = tuple((4.0 * (n == 3), -2.0 * (n == 3), 0.0) for n in range(4))
    LinearHead(options=tuple(TIERS), weights=rows, bias=(0.0,) * 4).save(tmp_path / "head.json")
    by = {"question": "response_safety", "task": "embed", "head": str(tmp_path / "head.json"), "by": "shown"}
    with pooling() as (url, _):
        given = policy(url, by, safety={}, judge={"second": _also(url)})
        assert given.judge is not None
        judge = build_judge(given.judge)
        run = said("flaw flaw flaw flaw")
        (answer,) = judge.decide(run, (build_safety_question(run.steps[1]),))
        close_judge(judge)
    assert answer.error is None
    named = max(answer.probabilities, key=lambda option: answer.probabilities[option])
    assert named.lower().startswith("unsafe")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "pooling"}, "needs classifiers"),
        ({"classifiers": [{"question": "q", "options": ["a", "b"]}]}, "kind: pooling"),
        ({"kind": "pooling", "classifiers": [{"question": "q", "task": "rank"}]}, "task"),
        ({"kind": "pooling", "classifiers": [{"question": "q", "option": ["a"]}]}, "option"),
        ({"kind": "pooling", "classifiers": [{"question": ""}]}, "question"),
        ({"kind": "other"}, "kind"),
        ({"second": {"kind": "pooling", "base_url": "http://127.0.0.1:1/v1"}}, "needs classifiers"),
    ],
)
def test_contradictory_options_are_rejected_with_the_field(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Policy.parse({"judge": {"base_url": "http://127.0.0.1:1/v1", **given}})


def test_invalid_classifier_is_rejected_at_construction(tmp_path: Path) -> None:
    two = {"question": "response_safety", "options": ["safe", "unsafe"]}
    for wrong, kind in (
        (two, ConfigError),
        ({"question": "q", "options": ["a"]}, ConfigError),
        ({"question": "*", "options": ["a", "b"]}, ConfigError),
        ({"question": "q", "task": "embed"}, ConfigError),
        ({"question": "q", "task": "embed", "head": str(tmp_path / "none.json")}, ModelFileError),
    ):
        with pytest.raises(kind):
            Guard.from_policy(policy("http://127.0.0.1:1/v1", wrong))


def test_safety_requires_a_safety_classifier() -> None:
    trained = {"question": "run_failed", "options": ["no", "yes"]}
    with pytest.raises(ConfigError, match="needs a classifier for response_safety"):
        policy("http://127.0.0.1:1/v1", trained, safety={"alone": True})
    second = {"kind": "pooling", "base_url": "http://127.0.0.1:1/v1", "classifiers": [trained]}
    with pytest.raises(ConfigError, match="needs a classifier for response_safety"):
        Policy.parse({"judge": {"base_url": "http://127.0.0.1:1/v1", "second": second}, "safety": {}})
    assert policy("http://127.0.0.1:1/v1", SAFETY, trained, safety={"alone": True}).safety is not None


@given(st.integers(0, 10**6), st.integers(0, 50))
def test_option_with_range_covers_its_steps(first: int, more: int) -> None:
    assert parse_steps(str(first)) == parse_steps(f"step {first}") == (first,)
    assert parse_steps(f"steps {first} to {first + more}") == tuple(range(first, first + more + 1))


@given(st.text(max_size=12))
def test_option_without_step_covers_nothing(text: str) -> None:
    named = parse_steps(text)
    assert all(isinstance(step, int) for step in named)
    assert not named or any(letter.isdecimal() for letter in text)
    assert parse_steps(f"steps 0 to {10**8}") == ()


def test_turn_of_several_steps_uses_its_likeliest_step() -> None:
    run = chat()
    asked = ChoiceQuestion(id="root_cause_turn", text="Which?", options=("step 1", "steps 2 to 3"))
    by = ClassifierSpec(question="root_cause*", options=("no", "yes"), by="step")
    assert by.matches(asked, run)
    assert not by.matches(ChoiceQuestion(id="root_cause", text="?", options=("first", "second")), run)
    assert not by.matches(ChoiceQuestion(id="root_cause", text="?", options=()), run)
    assert not by.matches(ChoiceQuestion(id="root_cause", text="?", options=("step 9999",)), run)
    assert not by.matches(RUN_FAILED, run)
    assert len(build_text_pairs(run, asked, by, max_characters=1_000)) == 3
    mark = run.steps[3].content
    with pooling(telling(lambda text: 0.8 if mark in text else 0.2)) as (url, _):
        judge = build_policy_judge(
            policy(url, {"question": "root_cause*", "options": ["no", "yes"], "by": "step"})
        )
        assert judge is not None
        (answer,) = judge.decide(run, (asked,))
        close_judge(judge)
    assert answer.probabilities == pytest.approx({"step 1": 0.2, "steps 2 to 3": 0.8})


def test_classifier_by_shown_text_requires_shown_text() -> None:
    by = ClassifierSpec(question="q", options=("a", "b"), by="shown")
    assert not by.matches(ChoiceQuestion(id="q", text="?", options=("a", "b")), chat())
    shown = ChoiceQuestion(id="q", text="?", options=("a", "b"), context=("<end_of_turn>x",))
    assert by.matches(shown, chat())
    ((_, text),) = build_text_pairs(chat(), shown, by, max_characters=400)
    assert "<end_of_turn>" not in text
