"""Honest probabilities: servers that ignore vLLM's fields, a minimum of label mass, and reasoning models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from agentguard.config.policy import Policy
from agentguard.guard import Guard
from agentguard.judge.base import RUN_FAILED
from agentguard.judge.factory import build_judge
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.response_parser import parse_completion, parse_reasoned_label
from agentguard.judge.llm.types import CallError, ErrorKind, JudgeReply
from tests.unit.judge.chat_server import Script, serving
from tests.unit.localize.runs import chat

MESSAGES = ({"role": "user", "content": "Choose.\nA: one\nB: two\nC: three"},)
LABELS = ("A", "B", "C")
SHARES = {"A": 0.02, "B": 0.06, "C": 0.02}


@pytest.fixture
def endpoints() -> Iterator[list[JudgeEndpoint]]:
    held: list[JudgeEndpoint] = []
    yield held
    for endpoint in held:
        endpoint.close()


def select(endpoints: list[JudgeEndpoint], url: str) -> Any:
    endpoints.append(JudgeEndpoint(url))
    return endpoints[-1].loop.run(endpoints[-1].select_label(MESSAGES, LABELS))


def test_server_that_ignores_label_ids_is_asked_for_the_most_probable_tokens(
    endpoints: list[JudgeEndpoint],
) -> None:
    script = Script(prefer=lambda prompt, label: SHARES[label], ignores_label_ids=True)
    with serving(script) as (url, _):
        picked = select(endpoints, url)
        assert picked.probabilities == pytest.approx({"A": 0.2, "B": 0.6, "C": 0.2})
        assert picked.label_mass == pytest.approx(0.1)
        assert [bool(body.get("logprob_token_ids")) for body in script.seen] == [True, False]
        again = endpoints[-1].loop.run(endpoints[-1].select_label(MESSAGES, LABELS))
        assert again.probabilities == picked.probabilities
        assert len(script.seen) == 3, "the client remembers what the server cannot do"


def test_label_with_zero_probability_is_not_a_missing_one(endpoints: list[JudgeEndpoint]) -> None:
    script = Script(prefer=lambda prompt, label: 0.9 if label == "A" else 0.0, lists_zero=True)
    with serving(script) as (url, _):
        picked = select(endpoints, url)
        assert picked.probabilities == {"A": 1.0, "B": 0.0, "C": 0.0}
        assert len(script.seen) == 1


def test_answer_below_the_minimum_label_mass_is_no_answer() -> None:
    with serving(Script(prefer=lambda prompt, label: 0.001)) as (url, _):
        judge = build_judge(Policy.parse({"judge": {"base_url": url}}).judge)  # type: ignore[arg-type]
        (answer,) = judge.decide(chat(), (RUN_FAILED,))
        judge.close()
    assert answer.usage["fault"] == ErrorKind.LOW_LABEL_MASS
    assert answer.error is not None
    assert answer.error.startswith(
        "label_mass: the options have 0.20% of the model's probability, and min_label_mass is 1.00%"
    )
    assert f"({url}); switch the model's thinking off" in answer.error
    assert answer.usage["label_mass"] == pytest.approx(0.002)
    assert not answer.probabilities


def test_label_mass_is_stored_in_the_diagnosis_and_the_cache() -> None:
    script = Script(prefer=lambda prompt, label: 0.1)
    with serving(script) as (url, _), Guard.from_policy(Policy.parse({"judge": {"base_url": url}})) as guard:
        first, again = guard.diagnose(chat()), guard.diagnose(chat())
    assert first.usage["label_mass"] == pytest.approx(0.2)
    assert again.usage["label_mass"] == pytest.approx(0.2)
    assert again.usage["calls"] == 0


def test_reasoning_judge_gives_its_tokens_and_reads_the_last_letter() -> None:
    script = Script(reasoning="<think>A or B? A seems wrong.</think>\nB", prefer=lambda prompt, label: 0.4)
    settings = {"base_url": "", "reasoning_tokens": 64, "chat_template_kwargs": {"effort": "low"}}
    with serving(script) as (url, _):
        given = Policy.parse({"judge": {**settings, "base_url": url}}).judge
        assert given is not None
        judge = build_judge(given)
        (answer,) = judge.decide(chat(), (RUN_FAILED,))
        version = judge.version(chat())
        judge.close()
    assert answer.error is None
    (body,) = script.seen
    assert body["max_tokens"] == 64
    assert body["chat_template_kwargs"] == {"enable_thinking": True, "effort": "low"}
    assert "allowed_token_ids" not in body
    assert version.endswith("template {'effort': 'low'}; reasoning 64")


def reply(text: str, *tokens: tuple[str, dict[str, float]], finish: str = "stop") -> JudgeReply:
    content = [
        {
            "token": token,
            "logprob": 0.0,
            "top_logprobs": [{"token": one, "logprob": math.log(p)} for one, p in shares.items()],
        }
        for token, shares in tokens
    ]
    choice = {"message": {"content": text}, "finish_reason": finish, "logprobs": {"content": content}}
    parsed = parse_completion({"choices": [choice]}, 0.0)
    assert isinstance(parsed, JudgeReply)
    return parsed


@pytest.mark.parametrize("text", ["B", "**B**.", "so it is B", "<think>C</think> B", "analysis... final B\n"])
def test_reasoned_label_is_the_last_word(text: str) -> None:
    answer = parse_reasoned_label(reply(text, ("B", {"C": 1.0}), ("B", {"B": 0.5, "A": 0.25})), LABELS)
    assert not isinstance(answer, CallError)
    assert answer.probabilities == pytest.approx({"A": 1 / 3, "B": 2 / 3, "C": 0.0})
    assert answer.label_mass == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (reply("B", ("B", {"B": 1.0}), finish="length"), ErrorKind.TRUNCATED),
        (reply("I do not know", ("know", {"B": 1.0})), ErrorKind.OUT_OF_SET),
        (reply("", ("", {})), ErrorKind.OUT_OF_SET),
        (reply("<think>B</think>", ("B", {"B": 1.0})), ErrorKind.OUT_OF_SET),
        (reply("B"), ErrorKind.NO_PROBABILITIES),
    ],
)
def test_reasoning_without_a_usable_label_is_an_error(answer: JudgeReply, kind: ErrorKind) -> None:
    found = parse_reasoned_label(answer, LABELS)
    assert isinstance(found, CallError)
    assert found.kind is kind
