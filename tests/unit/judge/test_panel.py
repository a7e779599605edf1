"""Several judges, or one judge with several prompts: votes, agreement, quorum."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentguard.errors import ConfigError
from agentguard.judge.base import (
    RUN_FAILED,
    ChoiceQuestion,
    JudgeAnswer,
    Question,
    ScoreQuestion,
    build_root_cause_question,
)
from agentguard.judge.cache import CachedJudge
from agentguard.judge.ensemble.panel import PanelJudge
from agentguard.judge.ensemble.question_variants import OptionSwapJudge, ParaphraseJudge
from agentguard.trajectory.model import Trajectory
from tests.unit.judge.judges import DealingJudge, TableJudge
from tests.unit.localize.runs import chat

PART = ChoiceQuestion(id="part", text="Which part?", options=("memory", "planning", "action"))


def sure_of(option: str) -> TableJudge:
    return TableJudge(lambda run, question: option)


class Raising:
    name = "raising"

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        raise RuntimeError("no")


def test_majority_wins_and_disagreement_is_uncertainty() -> None:
    panel = PanelJudge([sure_of("memory"), sure_of("memory"), sure_of("action")])
    (answer,) = panel.decide(chat(), (PART,))
    assert max(answer.probabilities, key=answer.probabilities.__getitem__) == "memory"
    assert answer.usage["votes"] == {"memory": 2, "action": 1}
    assert answer.usage["agreement"] == pytest.approx(2 / 3)
    (agreed,) = PanelJudge([sure_of("memory")] * 3).decide(chat(), (PART,))
    assert agreed.probabilities["memory"] > answer.probabilities["memory"]
    assert sum(answer.probabilities.values()) == pytest.approx(1)


def test_costs_are_summed_and_judges_run_concurrently() -> None:
    (answer,) = PanelJudge([DealingJudge()] * 3).decide(chat(), (RUN_FAILED,))
    assert answer.usage["calls"] == 3
    assert answer.usage["prompt_tokens"] == 300
    assert answer.usage["seconds"] == pytest.approx(0.01)


def test_failed_judge_is_outvoted_and_missing_quorum_is_an_error() -> None:
    away = DealingJudge(away=True)
    (answer,) = PanelJudge([sure_of("memory"), sure_of("memory"), away]).decide(chat(), (PART,))
    assert answer.error is None
    (answer,) = PanelJudge([sure_of("memory"), away, Raising()]).decide(chat(), (PART,))
    assert answer.usage["fault"] == "quorum"
    assert answer.error is not None
    assert "1 of 3" in answer.error
    assert "RuntimeError" in answer.error
    assert not answer.probabilities


@pytest.mark.parametrize(("count", "quorum"), [(0, None), (1, None), (3, 4), (3, 0)])
def test_panel_without_majority_is_rejected(count: int, quorum: int | None) -> None:
    with pytest.raises(ConfigError):
        PanelJudge([DealingJudge()] * count, quorum=quorum)


def test_position_bias_cancels_out() -> None:
    first = TableJudge(lambda run, question: getattr(question, "options", ("yes",))[0])
    panel = PanelJudge([first, OptionSwapJudge(first)])
    for question in (RUN_FAILED, ChoiceQuestion(id="c", text="Which?", options=("left", "right"))):
        (answer,) = panel.decide(chat(), (question,))
        low, high = sorted(answer.probabilities.values())
        assert low == pytest.approx(high)
        assert answer.usage["agreement"] == 0.5


def test_swapped_judge_keeps_keys_and_their_order() -> None:
    judge = TableJudge(lambda run, question: None if question.id == "bad" else "2")
    score = ScoreQuestion(id="score", text="How far?", low=1, high=3)
    bad = ChoiceQuestion(id="bad", text="?", options=("a", "b"))
    said, none = OptionSwapJudge(judge).decide(chat(), (score, bad))
    assert list(said.probabilities) == ["1", "2", "3"]
    assert none.error is not None
    assert [getattr(question, "options", None) for _, question in judge.asked] == [
        ("3", "2", "1"),
        ("b", "a"),
    ]


def test_reworded_judge_asks_differently_and_has_another_version() -> None:
    judge = TableJudge(lambda run, question: "yes")
    polite = ParaphraseJudge(judge, lambda text: f"Please tell: {text}", version="polite")
    polite.decide(chat(), (RUN_FAILED,))
    assert judge.asked[0][1].text.startswith("Please tell: Did the run")
    assert polite.version(chat()) == "table; worded polite"


def test_panel_can_be_cached() -> None:
    judge = TableJudge(lambda run, question: "1")
    cached = CachedJudge(PanelJudge([judge, OptionSwapJudge(judge)]))
    once = cached.decide(chat(), (build_root_cause_question(chat()),))
    again = cached.decide(chat(), (build_root_cause_question(chat()),))
    assert once[0].probabilities == again[0].probabilities
    assert len(judge.asked) == 2
