from __future__ import annotations

import pytest

from agentguard.detect.base import Evidence, Finding
from agentguard.errors import ConfigError
from agentguard.localize.baselines.first_finding import FirstFindingLocalizer
from agentguard.verdict import Verdict
from tests.unit.localize.runs import chat


def _finding(step: int, probability: float) -> Finding:
    quote = Evidence(step=step, field="content", quote="I", start=0, end=1)
    return Finding(
        detector="tool_error",
        step=step,
        codes=("agent_error:system.tool_execution_error",),
        probability=probability,
        message="it failed",
        evidence=(quote,),
        correction="try again",
    )


FOUND = [_finding(3, 0.9), _finding(1, 0.6), _finding(1, 0.55), _finding(0, 0.2), _finding(9, 1.0)]


def test_earliest_certain_finding_comes_before_uncertain_ones() -> None:
    given = FirstFindingLocalizer().locate(chat(), FOUND)
    assert [(h.step, h.probability) for h in given.hypotheses] == [(1, 0.6), (3, 0.9), (0, 0.2)]
    assert given.probability == 0.9
    assert given.hypotheses[0].agent == "Counting_Expert"
    assert given.hypotheses[0].correction == "try again"
    assert given.hypotheses[0].evidence[0].step == 1


def test_most_probable_option_ranks_by_probability() -> None:
    given = FirstFindingLocalizer(order="probable").locate(chat(), FOUND)
    assert [h.step for h in given.hypotheses] == [3, 1, 0]


def test_verdict_depends_on_the_threshold() -> None:
    method = FirstFindingLocalizer(threshold=0.5)
    assert method.locate(chat(), []).verdict is Verdict.NO_FAILURE_FOUND
    assert method.locate(chat(), [_finding(1, 0.4)]).verdict is Verdict.UNDECIDED
    assert method.locate(chat(), [_finding(1, 0.5)]).verdict is Verdict.FAILED


@pytest.mark.parametrize("options", [{"order": "last"}, {"threshold": 1.5}, {"k": 3}])
def test_invalid_options_are_rejected(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        FirstFindingLocalizer(**options)  # type: ignore[arg-type]
