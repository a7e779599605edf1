"""Hypotheses of a live run have reasons that the agent and its user understand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentguard.detect.base import Finding
from agentguard.localize.base import Hypothesis
from agentguard.recover.acceptance.base import ACCEPTANCE_TRIGGER
from agentguard.runtime.live_diagnosis import explain_candidate

LOOP = Finding(
    detector="exact_loop",
    step=4,
    codes=("mast:step_repetition",),
    probability=0.9,
    message="clerk repeated the call of find 3 times.",
    correction="Choose another action.",
)
REMARK = Hypothesis(
    step=1, agent="clerk", module=None, codes=(), probability=0.2, evidence=(), correction="", reason="rank 2"
)


def test_candidate_without_evidence_has_the_reason_of_the_trigger() -> None:
    made = explain_candidate(LOOP, REMARK)
    assert (made.step, made.reason, made.correction) == (1, LOOP.message, LOOP.correction)


@pytest.mark.parametrize(
    ("trigger", "reason"),
    [
        (LOOP, "misread the table"),
        (replace(LOOP, detector=ACCEPTANCE_TRIGGER, message="no seat"), "No seat. Misread the table."),
    ],
)
def test_reason_with_a_code_stays_behind_that_of_the_acceptance_test(trigger: Finding, reason: str) -> None:
    found = replace(REMARK, codes=("mast:incorrect_verification",), reason="misread the table")
    assert explain_candidate(trigger, found).reason == reason
