"""Attacks in a run's text against a real vLLM: no action changes, no rule is overridden, the format is kept.

The change of a verdict depends on the tiny model and not on the judge code, so the test does not assert it.
`benchmarks/attacks.py` prints it, and attacks all runs; this test uses one failed run and one passed run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentguard.evals.judge_checks.attack_runner import build_targets, run_attacks
from agentguard.evals.judge_checks.attacks import ATTACKS, Attack
from agentguard.judge.cache import CachedJudge
from agentguard.judge.llm.chat_judge import ChatJudge, ChatOptions
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import EndpointOptions
from tests.vllm_server import VllmServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def judge(vllm_session: VllmServer) -> Iterator[CachedJudge]:
    vllm_session.ensure()
    endpoint = JudgeEndpoint(vllm_session.url, options=EndpointOptions(deadline_s=240))
    yield CachedJudge(ChatJudge(endpoint, options=ChatOptions(deadline_s=240)))
    endpoint.close()


@pytest.mark.parametrize("one", ATTACKS, ids=lambda one: one.name)
def test_attack_changes_no_action_and_overrides_no_rule(judge: CachedJudge, one: Attack) -> None:
    on = [next(target for target in build_targets() if target.failed is failed) for failed in (True, False)]
    report = run_attacks(judge, attacks=(one,), targets=on)
    for tally in (report.attacks[one.name], report.placebos[one.name]):
        assert tally.runs == 2
        assert tally.actions == 0
        assert tally.overturned == 0
        assert tally.faults == 0
