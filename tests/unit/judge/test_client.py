"""The client of an endpoint, over real HTTP: its requests, and every failure of an endpoint."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from agentguard.errors import ConfigError
from agentguard.judge.llm import client
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import CallError, EndpointOptions, ErrorKind, LabelProbabilities
from tests.unit.judge.chat_server import LONG_S, Script, closed_port, serving
from tests.unit.judge.clock import Clock

ASK = ({"role": "user", "content": "Question: did it fail?\nA: yes\nB: no"},)
FORM = {
    "type": "object",
    "properties": {"why": {"type": "string", "maxLength": 20}},
    "required": ["why"],
    "additionalProperties": False,
}
PATIENT = EndpointOptions(deadline_s=60.0)
"""Longer than a busy machine takes: no call here ends because of it."""


@pytest.fixture
def served() -> Iterator[tuple[str, Script]]:
    with serving() as (url, script):
        yield url, script


def pick(
    url: str, options: EndpointOptions = PATIENT, model: str | None = None
) -> LabelProbabilities | CallError:
    endpoint = JudgeEndpoint(url, model=model, options=options)
    try:
        return endpoint.loop.run(endpoint.select_label(ASK, ("A", "B")))
    finally:
        endpoint.close()


def write(url: str, options: EndpointOptions = PATIENT) -> Any:
    endpoint = JudgeEndpoint(url, options=options)
    try:
        return endpoint.loop.run(endpoint.generate_json(ASK, FORM, max_tokens=50))
    finally:
        endpoint.close()


def picked(result: LabelProbabilities | CallError) -> LabelProbabilities:
    assert isinstance(result, LabelProbabilities), result
    return result


def fault(result: Any) -> ErrorKind:
    assert isinstance(result, CallError), result
    return result.kind


def test_vllm_request_asks_for_raw_label_probabilities(served: tuple[str, Script]) -> None:
    url, script = served
    result = picked(pick(url))
    assert result.probabilities == pytest.approx({"A": 1 / 3, "B": 2 / 3})
    assert result.label_mass == pytest.approx(0.06)
    assert script.seen[0]["allowed_token_ids"] == script.seen[0]["logprob_token_ids"] == [236_776, 236_777]
    assert "tools" not in script.seen[0]


def test_usage_is_parsed(served: tuple[str, Script]) -> None:
    url, script = served
    script.prefer = lambda prompt, label: 0.1
    spent = picked(pick(url)).usage
    assert (spent.calls, spent.prompt_tokens, spent.completion_tokens) == (1, 8, 1)
    assert spent.seconds > 0


def test_server_without_tokenizer_is_asked_for_a_choice(served: tuple[str, Script]) -> None:
    url, script = served
    script.tokenize = False
    result = picked(pick(url))
    assert script.seen[0]["structured_outputs"] == {"choice": ["A", "B"]}
    assert result.probabilities == pytest.approx({"A": 1 / 3, "B": 2 / 3})
    assert result.label_mass is None  # the mask hides the model's preference


def test_other_endpoints_receive_only_standard_fields(served: tuple[str, Script]) -> None:
    url, script = served
    script.vllm = False
    result = picked(pick(url))
    assert result.probabilities == pytest.approx({"A": 1 / 3, "B": 2 / 3})
    assert not {"allowed_token_ids", "logprob_token_ids", "structured_outputs"} & script.seen[0].keys()
    assert "/tokenize" not in script.paths


def test_free_text_is_outside_the_options(served: tuple[str, Script]) -> None:
    """An endpoint that silently ignores a mask answers 200 with any text."""
    url, script = served
    script.text = "The"
    assert fault(pick(url)) is ErrorKind.OUT_OF_SET


def test_missing_log_probabilities_are_a_fault(served: tuple[str, Script]) -> None:
    url, script = served
    script.logprobs = False
    assert fault(pick(url)) is ErrorKind.NO_PROBABILITIES


@pytest.mark.parametrize("finish", ["content_filter", "error", "abort"])
def test_finish_reason_is_checked(served: tuple[str, Script], finish: str) -> None:
    url, script = served
    script.finish = finish
    assert fault(pick(url)) is ErrorKind.TRUNCATED


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("500", ErrorKind.SERVER),
        ("503", ErrorKind.BUSY),
        ("429", ErrorKind.BUSY),
        ("401", ErrorKind.REFUSED),
        ("400", ErrorKind.BAD_REQUEST),
        ("overlong", ErrorKind.TOO_LONG),
        ("html", ErrorKind.MALFORMED),
        ("not-chat", ErrorKind.MALFORMED),
    ],
)
def test_faults_are_values(served: tuple[str, Script], what: str, expected: ErrorKind) -> None:
    url, script = served
    script.always = what
    assert fault(pick(url)) is expected
    assert len(script.seen) == 1  # there is no retry by default


@pytest.mark.parametrize("what", ["truncated", "reset"])
def test_interrupted_request_is_sent_once_more(served: tuple[str, Script], what: str) -> None:
    url, script = served
    script.faults = [what]
    picked(pick(url))
    assert len(script.seen) == 2
    script.always = what
    error = pick(url)
    assert fault(error) is ErrorKind.UNREACHABLE
    assert "closed the connection before its answer was complete" in error.message
    assert len(script.seen) == 4


@pytest.mark.parametrize("what", ["hang", "drip"])
def test_deadline_covers_silence_and_slow_bytes(served: tuple[str, Script], what: str) -> None:
    url, script = served
    clock = Clock()
    endpoint = clock.on(JudgeEndpoint(url, options=PATIENT))
    script.always, script.stuck = what, lambda: clock.forward(PATIENT.deadline_s)
    started = clock.now()
    try:
        assert fault(endpoint.loop.run(endpoint.select_label(ASK, ("A", "B")))) is ErrorKind.TIMEOUT
    finally:
        endpoint.close()
    assert len(script.seen) == 1
    assert clock.now() - started < 2 * PATIENT.deadline_s


@pytest.mark.parametrize("what", ["hang", "drip"])
def test_deadline_uses_real_seconds(served: tuple[str, Script], what: str) -> None:
    url, script = served
    script.always = what
    started = time.monotonic()
    assert fault(pick(url, EndpointOptions(deadline_s=0.4))) is ErrorKind.TIMEOUT
    assert 0.39 < time.monotonic() - started < LONG_S / 2  # the server would take LONG_S


def test_unreachable_endpoint_is_a_fault() -> None:
    error = pick(f"http://127.0.0.1:{closed_port()}/v1")
    assert fault(error) is ErrorKind.UNREACHABLE
    assert error.message == "the endpoint accepts no connection"


def test_unserved_model_is_a_fault(served: tuple[str, Script]) -> None:
    url, _ = served
    assert fault(pick(url, model="larger")) is ErrorKind.NO_MODEL


def test_endpoint_without_models_is_a_fault(served: tuple[str, Script]) -> None:
    url, script = served
    script.models = ()
    assert fault(pick(url)) is ErrorKind.NO_MODEL


def test_number_of_attempts_is_bounded(served: tuple[str, Script]) -> None:
    url, script = served
    script.faults = ["500", "503"]
    picked(pick(url, EndpointOptions(deadline_s=60, retries=2)))
    assert len(script.seen) == 3
    script.always = "500"
    assert fault(pick(url, EndpointOptions(deadline_s=60, retries=1))) is ErrorKind.SERVER
    assert len(script.seen) == 5


def test_retry_after_is_respected(served: tuple[str, Script]) -> None:
    url, script = served
    script.faults = ["429"]
    started = time.monotonic()
    picked(pick(url, EndpointOptions(deadline_s=60, retries=1)))
    assert time.monotonic() - started >= 0.2


def test_retry_after_beyond_deadline_ends_attempts_at_once(served: tuple[str, Script]) -> None:
    url, script = served
    script.faults = ["429-late"]
    assert fault(pick(url, EndpointOptions(deadline_s=20, retries=3))) is ErrorKind.BUSY
    assert len(script.seen) == 1


def test_refusal_is_not_retried(served: tuple[str, Script]) -> None:
    url, script = served
    script.always = "400"
    assert fault(pick(url, EndpointOptions(deadline_s=60, retries=3))) is ErrorKind.BAD_REQUEST
    assert len(script.seen) == 1


def test_json_is_requested_under_a_schema_and_checked(served: tuple[str, Script]) -> None:
    url, script = served
    script.text = '{"why": "it looped"}'
    value, spent = write(url)
    assert value == {"why": "it looped"}
    assert spent.calls == 1
    assert script.seen[0]["response_format"]["json_schema"]["schema"] == FORM
    script.text = '{"why": "longer than twenty characters"}'
    assert fault(write(url)) is ErrorKind.OUT_OF_SET
    script.text = '{"why": "it'
    assert fault(write(url)) is ErrorKind.MALFORMED
    script.text, script.finish = '{"why": "it looped"}', "length"
    assert fault(write(url)) is ErrorKind.TRUNCATED


def test_concurrent_calls_are_limited(served: tuple[str, Script]) -> None:
    url, script = served
    script.meet, script.hold = 2, lambda: time.sleep(0.05)  # time for a third request to arrive
    endpoint = JudgeEndpoint(url, options=EndpointOptions(max_concurrent=2))

    async def many() -> list[LabelProbabilities | CallError]:
        return await asyncio.gather(*(endpoint.select_label(ASK, ("A", "B")) for _ in range(8)))

    try:
        assert all(isinstance(one, LabelProbabilities) for one in endpoint.loop.run(many()))
    finally:
        endpoint.close()
    assert script.most_at_once == 2


@pytest.mark.parametrize(("keep_alive_s", "connections"), [(60.0, 1), (0.0, 4)])
def test_idle_connections_expire_before_the_server_closes_them(
    served: tuple[str, Script], monkeypatch: pytest.MonkeyPatch, keep_alive_s: float, connections: int
) -> None:
    """A request on a connection that the server is closing is lost: uvicorn, of vLLM, closes after 5 s."""
    assert uvicorn.Config("app", log_config=None).timeout_keep_alive > client._KEEP_ALIVE_S
    monkeypatch.setattr(client, "_KEEP_ALIVE_S", keep_alive_s)
    endpoint = JudgeEndpoint(served[0])
    try:
        for _ in range(4):
            assert not isinstance(endpoint.loop.run(endpoint.post("/tokenize", {"prompt": "A"})), CallError)
    finally:
        endpoint.close()
    assert len(served[1].clients) == connections


def test_closed_client_reopens(served: tuple[str, Script]) -> None:
    url, _ = served
    endpoint = JudgeEndpoint(url)
    for _ in range(2):
        picked(endpoint.loop.run(endpoint.select_label(ASK, ("A", "B"))))
        endpoint.close()


def test_message_contains_no_text_of_the_endpoint(served: tuple[str, Script]) -> None:
    url, script = served
    script.always = "overlong"
    result = pick(url)
    assert isinstance(result, CallError)
    assert "4097" not in result.message


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("127.0.0.1:8000", EndpointOptions()),
        ("http://127.0.0.1:1/v1", EndpointOptions(deadline_s=0)),
        ("http://127.0.0.1:1/v1", EndpointOptions(retries=-1)),
        ("http://127.0.0.1:1/v1", EndpointOptions(max_concurrent=0)),
        ("http://127.0.0.1:1/v1", EndpointOptions(dialect="other")),  # type: ignore[arg-type]
    ],
)
def test_invalid_options_are_rejected(url: str, options: EndpointOptions) -> None:
    with pytest.raises(ConfigError):
        JudgeEndpoint(url, options=options)
