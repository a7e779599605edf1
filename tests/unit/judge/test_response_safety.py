"""Response safety: four tiers, thresholds, fixed actions, and two judges before any action with effects."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import ConfigError
from agentguard.judge.base import JudgeAnswer, Question
from agentguard.judge.embedded.judge import EmbeddedJudge
from agentguard.judge.ensemble.unanimous import DISAGREEMENT
from agentguard.judge.response_safety import (
    DISRUPTIVE_ACTIONS,
    TIERS_WORST_FIRST,
    ResponseSafety,
    SafetyAction,
    SafetyRules,
    SafetyTier,
    build_assessment,
    build_safety_question,
    describe_tier,
    load_safety_codes,
    select_user_visible_steps,
)
from agentguard.localize.base import Diagnosis
from agentguard.runtime.run_diagnosis import add_safety_findings
from agentguard.trajectory.model import Source, Step, Trajectory
from agentguard.verdict import Verdict
from tests.unit.judge.judges import DealingJudge, Said, TableJudge

SAFE, CONDITIONAL, ATTENTION, UNSAFE = SafetyTier


def run_of(*turns: tuple[Source, str]) -> Trajectory:
    steps = tuple(
        Step(index=i, source=source, agent=source.value, content=text)
        for i, (source, text) in enumerate(turns)
    )
    return Trajectory(id="r", format="test", task="Help me.", steps=steps)


RUN = run_of((Source.USER, "Help me."), (Source.AGENT, "Do it so."))


def rates(tier: SafetyTier) -> TableJudge:
    """Return a judge that is certain of a tier."""
    return TableJudge(lambda run, question: describe_tier(tier))


def answer(probabilities: Mapping[SafetyTier, float]) -> JudgeAnswer:
    held = {describe_tier(tier): probabilities.get(tier, 0.0) for tier in SafetyTier}
    return JudgeAnswer(question="response_safety", probabilities=held)


@pytest.mark.parametrize(
    ("tier", "action"),
    [
        (SAFE, SafetyAction.ALLOW),
        (UNSAFE, SafetyAction.BLOCK),
        (CONDITIONAL, SafetyAction.CONDITION),
        (ATTENTION, SafetyAction.ESCALATE),
    ],
)
def test_each_tier_has_its_action(tier: SafetyTier, action: SafetyAction) -> None:
    held = ResponseSafety(rates(tier), second_judge=rates(tier))(RUN)
    assert held is not None
    assert (held.tier, held.action, held.step, held.fault) == (tier, action, 1, "")
    found = held.to_finding()
    if action is SafetyAction.ALLOW:
        assert found is None
    else:
        assert found is not None
        assert found.codes == (f"response_safety:{tier.value}",)
        assert found.detector == f"response_safety.{action.value}"
        assert found.correction == load_safety_codes()[tier].correction


def test_question_has_the_four_tiers_over_one_message() -> None:
    asked = build_safety_question(RUN.steps[1])
    assert asked.options == tuple(f"{code.title}: {code.definition}" for code in load_safety_codes().values())
    assert all(len(one) <= 300 for one in asked.options), "or the judge would see the beginning alone"
    assert asked.context[-1] == "Do it so."


@pytest.mark.parametrize(
    ("probabilities", "tier"),
    [
        ({SAFE: 0.9, UNSAFE: 0.1}, SAFE),
        ({SAFE: 0.4, UNSAFE: 0.6}, UNSAFE),
        ({UNSAFE: 0.5, ATTENTION: 0.5}, UNSAFE),
        ({SAFE: 0.3, UNSAFE: 0.2, ATTENTION: 0.3, CONDITIONAL: 0.2}, ATTENTION),
        ({SAFE: 0.51, UNSAFE: 0.49}, SAFE),
    ],
)
def test_worst_tier_above_its_threshold_counts(
    probabilities: Mapping[SafetyTier, float], tier: SafetyTier
) -> None:
    assert SafetyRules().select_tier(probabilities) is tier


def test_custom_threshold_and_action_apply() -> None:
    rules = SafetyRules(thresholds={UNSAFE: 0.2}, actions={UNSAFE: SafetyAction.CONDITION})
    held = build_assessment(1, answer({SAFE: 0.75, UNSAFE: 0.25}), rules)
    assert (held.tier, held.action) == (UNSAFE, SafetyAction.CONDITION)


@given(st.dictionaries(st.sampled_from(list(SafetyTier)), st.floats(0, 1), min_size=1))
def test_any_judge_answer_gives_a_defined_action(said: dict[SafetyTier, float]) -> None:
    held = build_assessment(0, answer(said), SafetyRules())
    assert held.action in set(SafetyAction)
    assert held.tier in set(SafetyTier)


@pytest.mark.parametrize("value", [0, -0.1, 1.01, True])
def test_threshold_out_of_range_is_rejected(value: float) -> None:
    with pytest.raises(ConfigError, match="threshold of unsafe"):
        SafetyRules(thresholds={UNSAFE: value})


def test_safe_tier_accepts_no_rule() -> None:
    with pytest.raises(ConfigError, match="safe cannot have a rule"):
        SafetyRules(actions={SAFE: SafetyAction.BLOCK})


def test_single_judge_triggers_no_effect_by_default() -> None:
    with pytest.raises(ConfigError, match=r"judge\.second.*alone: true"):
        ResponseSafety(rates(SAFE))
    mild = SafetyRules(actions=dict.fromkeys(TIERS_WORST_FIRST, SafetyAction.CONDITION))
    assert ResponseSafety(rates(SAFE), rules=mild)(RUN) is not None
    alone = ResponseSafety(rates(UNSAFE), allow_single_judge=True)(RUN)
    assert alone is not None
    assert alone.action is SafetyAction.BLOCK


@pytest.mark.parametrize("other", [SAFE, CONDITIONAL, ATTENTION])
def test_disagreeing_judges_trigger_no_effect(other: SafetyTier) -> None:
    held = ResponseSafety(rates(UNSAFE), second_judge=rates(other))(RUN)
    assert held is not None
    assert held.tier is None
    assert held.fault == DISAGREEMENT
    assert held.action is SafetyAction.CONDITION
    assert held.action not in DISRUPTIVE_ACTIONS
    found = held.to_finding()
    assert found is not None
    assert found.probability == 0.5


def test_position_biased_judge_blocks_nothing() -> None:
    last = TableJudge(lambda run, question: question.options[-1])  # unsafe, or safe in the other order
    held = ResponseSafety(last, allow_single_judge=True)(RUN)
    assert held is not None
    assert held.fault == DISAGREEMENT
    assert held.action is SafetyAction.CONDITION


def test_disagreement_between_harmless_tiers_is_ignored() -> None:
    rules = SafetyRules(actions=dict.fromkeys(TIERS_WORST_FIRST, SafetyAction.ALLOW))
    held = ResponseSafety(rates(UNSAFE), second_judge=rates(SAFE), rules=rules)(RUN)
    assert held is not None
    assert held.action is SafetyAction.ALLOW


@pytest.mark.parametrize("unknown", list(SafetyAction))
def test_unavailable_judge_gives_unknown(unknown: SafetyAction) -> None:
    safety = ResponseSafety(
        DealingJudge(away=True), allow_single_judge=True, rules=SafetyRules(unknown=unknown)
    )
    held = safety(RUN)
    assert held is not None
    assert (held.tier, held.action) == (None, unknown)
    assert held.fault


def test_embedded_judge_leaves_the_tier_unknown() -> None:
    held = ResponseSafety(EmbeddedJudge(), allow_single_judge=True)(RUN)
    assert held is not None
    assert held.tier is None
    assert "quorum" in held.fault
    assert held.action is SafetyAction.ALLOW


def test_visible_replies_are_the_answers_to_users_and_the_last_one() -> None:
    run = run_of(
        (Source.USER, "Hello."),
        (Source.AGENT, "I shall look."),
        (Source.AGENT, "It is open."),
        (Source.USER, "Thanks."),
        (Source.AGENT, "Looking."),
        (Source.AGENT, "It is closed."),
    )
    assert [step.index for step in select_user_visible_steps(run)] == [2, 5]
    said: dict[str, SafetyTier] = {"step 2": UNSAFE, "step 5": SAFE}

    def says(held: Trajectory, asked: Question) -> Said:
        return describe_tier(next(tier for where, tier in said.items() if where in asked.text))

    judge = TableJudge(says)
    held = ResponseSafety(judge, second_judge=TableJudge(says)).assess_messages(run)
    assert [(one.step, one.tier) for one in held] == [(2, UNSAFE), (5, SAFE)]
    assert len(judge.asked) == 4, "two messages in two orders, in one call"


def test_run_without_reply_has_nothing_to_assess() -> None:
    silent = run_of((Source.USER, "Hello."))
    safety = ResponseSafety(rates(UNSAFE), allow_single_judge=True)
    assert safety(silent) is None
    assert safety.assess_messages(silent) == ()


def test_requests_are_rated_apart_from_replies_and_lead_to_no_action() -> None:
    def rate(run: Trajectory, question: Question) -> Said:
        return describe_tier(UNSAFE if "user asks for" in question.text else SAFE)

    safety = ResponseSafety(TableJudge(rate), allow_single_judge=True, rates_requests=True)
    located = Diagnosis(trajectory_id="r", method="m", verdict=Verdict.NO_FAILURE_FOUND, probability=0.1)
    diagnosis = add_safety_findings(located, RUN, safety)
    (finding,) = diagnosis.findings
    assert (finding.detector, finding.step, finding.data["action"]) == ("response_safety.request", 0, "pass")
    assert finding.codes == ("response_safety:unsafe",)
    assert diagnosis.verdict is Verdict.NO_FAILURE_FOUND
    assert ResponseSafety(TableJudge(rate), allow_single_judge=True).assess_requests(RUN) == ()
    live = safety(RUN)
    assert live is not None
    assert live.action is SafetyAction.ALLOW
