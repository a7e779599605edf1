"""Judges that must agree before any action with effects."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentguard.errors import ConfigError
from agentguard.judge.base import RUN_FAILED, ChoiceQuestion, JudgeAnswer, Question
from agentguard.judge.cache import CachedJudge
from agentguard.judge.ensemble.question_variants import BothOrdersJudge
from agentguard.judge.ensemble.unanimous import DISAGREEMENT, UnanimousJudge, get_votes
from agentguard.judge.llm.multiple_choice import list_options
from agentguard.trajectory.model import Trajectory
from tests.unit.judge.judges import DealingJudge, TableJudge
from tests.unit.localize.runs import chat

PART = ChoiceQuestion(id="part", text="Which part?", options=("memory", "planning", "action"))


def sure_of(option: str) -> TableJudge:
    return TableJudge(lambda run, question: option)


def first_always() -> TableJudge:
    """Return a judge that always prefers the letter A."""
    return TableJudge(lambda run, question: list_options(question)[0])


class Raising:
    name = "raising"

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        raise RuntimeError("no")


def test_agreement_in_both_orders_is_an_answer() -> None:
    (answer,) = UnanimousJudge([sure_of("planning"), sure_of("planning")]).decide(chat(), (PART,))
    assert answer.error is None
    assert max(answer.probabilities, key=answer.probabilities.__getitem__) == "planning"
    assert answer.usage["votes"] == {"planning": 4}
    assert answer.usage["calls"] == 4


def test_disagreement_gives_votes_without_answer() -> None:
    (answer,) = UnanimousJudge([sure_of("planning"), sure_of("action")]).decide(chat(), (PART,))
    assert answer.error is not None
    assert answer.error.startswith(DISAGREEMENT)
    assert not answer.probabilities
    assert get_votes(answer) == {"planning": 2, "action": 2}
    assert answer.usage["fault"] == DISAGREEMENT


def test_position_biased_judge_disagrees_with_itself() -> None:
    (alone,) = UnanimousJudge([first_always()]).decide(chat(), (PART,))
    assert alone.error is not None
    assert get_votes(alone) == {"memory": 1, "action": 1}
    (even,) = BothOrdersJudge(first_always()).decide(chat(), (PART,))
    assert even.probabilities["memory"] == pytest.approx(even.probabilities["action"])


def test_failed_vote_prevents_an_answer() -> None:
    for other in (DealingJudge(away=True), Raising()):
        (answer,) = UnanimousJudge([sure_of("planning"), other]).decide(chat(), (PART,))
        assert answer.error is not None
        assert not answer.probabilities


def test_questions_are_decided_separately_and_in_order() -> None:
    says = {"part": "action", "run_failed": "yes"}
    one = TableJudge(lambda run, q: says[q.id])
    other = TableJudge(lambda run, q: "no" if q.id == "run_failed" else "action")
    failed, part = UnanimousJudge([one, other]).decide(chat(), (RUN_FAILED, PART))
    assert (failed.question, part.question) == ("run_failed", "part")
    assert failed.error is not None
    assert part.error is None
    assert len(one.asked) == 4, "both questions in both orders, in one call"


def test_disabled_swap_gives_one_vote_per_judge() -> None:
    (answer,) = UnanimousJudge([first_always(), first_always()], swap=False).decide(chat(), (PART,))
    assert get_votes(answer) == {"memory": 2}
    with pytest.raises(ConfigError, match="at least two"):
        UnanimousJudge([first_always()], swap=False)
    with pytest.raises(ConfigError, match="at least two"):
        UnanimousJudge([])


def test_agreement_can_be_cached() -> None:
    judge = CachedJudge(UnanimousJudge([sure_of("planning"), sure_of("planning")]))
    first, second = (judge.decide(chat(), (PART,))[0] for _ in range(2))
    assert second.usage.get("cached")
    assert first.probabilities == second.probabilities
    plain, swapped = (UnanimousJudge([sure_of("a")] * 2, swap=swap).version(chat()) for swap in (False, True))
    assert plain != swapped
