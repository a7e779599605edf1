"""A judge over several servers: real sockets, the real pool; one fails, and the others answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from pydantic import ValidationError

from agentguard.config.judge import EndpointSettings
from agentguard.config.policy import Policy
from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.judge.base import RUN_FAILED, ChoiceQuestion, JudgeAnswer, build_root_cause_question
from agentguard.judge.classifier.pooling_judge import PoolingJudge
from agentguard.judge.classifier.spec import ClassifierSpec
from agentguard.judge.factory import build_judge
from agentguard.judge.llm.chat_judge import ChatJudge, ChatOptions
from agentguard.judge.llm.pool_transport import (
    build_pool_options,
    build_replicated_endpoint,
    to_backend_request,
)
from agentguard.judge.llm.types import EndpointOptions, ErrorKind
from agentguard.trajectory.model import Trajectory
from tests.unit.judge.chat_server import LONG_S, Script, closed_port, serving
from tests.unit.judge.pooling_server import pooling
from tests.unit.judge.runs import group_chat

PATIENT = EndpointOptions(deadline_s=60.0)
Two = tuple[list[str], list[Script]]


@pytest.fixture
def two() -> Iterator[Two]:
    with ExitStack() as stack:
        pairs = [stack.enter_context(serving(Script())) for _ in range(2)]
        yield [url for url, _ in pairs], [script for _, script in pairs]


def judge_over(*urls: str, deadline_s: float = 60.0, **pool: object) -> ChatJudge:
    endpoint = build_replicated_endpoint(urls, options=EndpointOptions(deadline_s=deadline_s), pool=pool)
    return ChatJudge(endpoint, options=ChatOptions(deadline_s=2 * deadline_s, nonce_secret=b"s"))


def decide(judge: ChatJudge, run: Trajectory, times: int = 1) -> list[tuple[JudgeAnswer, ...]]:
    questions = (
        RUN_FAILED,
        ChoiceQuestion(id="c", text="Which?", options=("one", "two")),
        build_root_cause_question(run),
    )
    try:
        return [judge.decide(run, questions) for _ in range(times)]
    finally:
        judge.close()


def right(answers: tuple[JudgeAnswer, ...]) -> None:
    assert [one.error for one in answers] == [None] * 3


def test_questions_of_a_run_use_one_replica_and_runs_are_distributed(two: Two) -> None:
    urls, scripts = two
    judge = judge_over(*urls)
    try:
        for length in range(5, 17):
            before = [len(script.seen) for script in scripts]
            right(
                judge.decide(
                    group_chat(length, flaw=3).trajectory,
                    (RUN_FAILED, ChoiceQuestion(id="c", text="?", options=("a", "b")), RUN_FAILED),
                )
            )
            assert sum(len(s.seen) > b for s, b in zip(scripts, before, strict=True)) == 1
        assert all(script.seen for script in scripts)
    finally:
        judge.close()


def test_unreachable_replica_is_skipped(two: Two) -> None:
    urls, _ = two
    for order in (
        (f"http://127.0.0.1:{closed_port()}/v1", urls[0]),
        (urls[0], f"http://127.0.0.1:{closed_port()}/v1"),
    ):
        for answers in decide(judge_over(*order), group_chat(5, flaw=3).trajectory, times=2):
            right(answers)


@pytest.mark.parametrize("fault", ["busy", "server", "reset", "truncated"])
def test_failing_replica_is_replaced(two: Two, fault: str) -> None:
    urls, scripts = two
    scripts[0].always = fault
    judge = judge_over(*urls)
    for answers in decide(judge, group_chat(5, flaw=3).trajectory, times=2):
        right(answers)
    assert scripts[1].seen


def test_hanging_replica_leaves_time_for_the_other(two: Two) -> None:
    urls, scripts = two
    scripts[0].always = "hang"
    judge = judge_over(*urls, deadline_s=8.0)  # four seconds remain for the other
    started = time.monotonic()
    (answers,) = decide(judge, group_chat(5, flaw=3).trajectory)
    right(answers)
    assert time.monotonic() - started < LONG_S / 2, "the one that hangs would take LONG_S"


def test_all_replicas_down_is_a_fault_within_the_deadline() -> None:
    urls = [f"http://127.0.0.1:{closed_port()}/v1" for _ in range(2)]
    started = time.monotonic()
    (answers,) = decide(judge_over(*urls), group_chat(5, flaw=3).trajectory)
    assert {one.usage["fault"] for one in answers} <= {ErrorKind.UNREACHABLE, ErrorKind.TIMEOUT}
    assert time.monotonic() - started < 2 * PATIENT.deadline_s


def test_refusal_is_forwarded_unchanged(two: Two) -> None:
    urls, scripts = two
    for script in scripts:
        script.models = ("another",)
    endpoint = build_replicated_endpoint(urls, model="judge", options=PATIENT)
    (answers,) = decide(ChatJudge(endpoint), group_chat(5, flaw=3).trajectory)
    assert answers[0].usage["fault"] == ErrorKind.NO_MODEL


def test_pooling_judge_supports_several_replicas() -> None:
    with pooling() as (url, script):
        dead = f"http://127.0.0.1:{closed_port()}/v1"
        judge = PoolingJudge(
            build_replicated_endpoint([dead, url], options=PATIENT),
            (ClassifierSpec(question="run_failed", options=("no", "yes")),),
        )
        try:
            (answer,) = judge.decide(group_chat(5, flaw=3).trajectory, (RUN_FAILED,))
        finally:
            judge.close()
    assert answer.error is None
    assert "/classify" in script.paths  # includes health checks


def test_each_replica_receives_its_own_key(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    urls, _ = two
    monkeypatch.delenv("A_KEY", raising=False)
    with pytest.raises(ConfigError, match="A_KEY"):
        build_replicated_endpoint([{"url": urls[0], "api_key_env": "A_KEY"}])
    monkeypatch.setenv("A_KEY", "hush")
    made = build_pool_options(
        [urls[0], {"url": urls[1], "name": "b"}], key_env="A_KEY", deadline_s=10, overrides={}
    )
    assert [(one.name, one.api_key_env) for one in made.replicas] == [("judge-1", "A_KEY"), ("b", "A_KEY")]
    assert not made.replicas[0].url.endswith("/v1")


@pytest.mark.parametrize(
    "wrong", [[], ["http://127.0.0.1:1"], [{"name": "a"}], [{"url": "http://h/v1", "x": 1}]]
)
def test_invalid_replicas_are_rejected(wrong: list[object]) -> None:
    with pytest.raises(ConfigError, match="judge"):
        build_replicated_endpoint(wrong)  # type: ignore[arg-type]


def test_run_is_identified_by_its_fence() -> None:
    def body(nonce: str, question: str) -> bytes:
        shown = f"--- recording {nonce} ---\\ntask:\\n| x\\nQuestion: {question}"
        return f'{{"model": "m", "messages": [{{"role": "user", "content": "{shown}"}}]}}'.encode()

    one, same, other = (
        to_backend_request("POST", "/v1/chat/completions", body(*x))
        for x in (("a", "1"), ("a", "2"), ("b", "1"))
    )
    assert one.prefix_digest == same.prefix_digest != other.prefix_digest
    assert one.model == "m"
    assert to_backend_request("GET", "/v1/models", b"").prefix_digest == b""
    assert to_backend_request("POST", "/tokenize", b"no json").model == ""


def test_policy_accepts_replicas_instead_of_one_address(two: Two) -> None:
    urls, scripts = two
    scripts[0].always = "server"
    policy = Policy.model_validate(
        {"judge": {"kind": "chat", "replicas": urls, "pool": {"load_balancing": "session_affinity"}}}
    )
    assert policy.judge is not None
    judge = build_judge(policy.judge)
    run = group_chat(5, flaw=3).trajectory
    (answer,) = judge.decide(run, (RUN_FAILED,))
    assert answer.error is None
    told = Guard(localizer="all_at_once", options={"replicas": urls}).diagnose(run)
    assert not told.failures


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"base_url": "http://127.0.0.1:1/v1", "replicas": ["http://127.0.0.1:2/v1"]},
        {"base_url": "http://127.0.0.1:1/v1", "pool": {"load_balancing": "session_affinity"}},
    ],
)
def test_judge_with_no_address_or_two_is_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="replicas"):
        EndpointSettings.model_validate(wrong)
    with pytest.raises(ConfigError, match="policy"):
        build_judge(EndpointSettings(replicas=("http://127.0.0.1:2/v1",), pool={"policy": "no such"}))
