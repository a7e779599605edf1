"""Token limits of keys and tenants: usage is read, estimated if it is not reported, and charged."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from agentguard.backends.base import Response
from agentguard.errors import BackendError, ConfigError
from tests.unit.server.proxy.harness import JSON, Got, Stream, ask, asked, gateway, settings

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def key(name: str, *, tenant: str = "", **limits: Any) -> dict[str, Any]:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {"name": name, "hash": f"sha256:{digest}", "tenant": tenant, "limits": limits}


def answer(**usage: Any) -> Response:
    return Response(status=200, headers=JSON, body=json.dumps({"usage": usage}).encode(), replica="a")


def event(**value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def send(gate: Any, name: str = "k", body: Any = None, **how: Any) -> Got:
    return ask(gate, body or BODY, Authorization=f"Bearer {name}", **how)


def tokens_left_after(*answers: Any, body: Any = None, path: str = "/v1/chat/completions", **how: Any) -> int:
    """Return what one request leaves of 1000 tokens per minute, from the wait of the next one."""
    gate = gateway(*answers, keys=[key("k", tokens_per_minute=1000)])
    now = 100.0
    gate.clock = type("Clock", (), {"now": lambda self: now})()
    send(gate, body=body, path=path, **how)
    _, caller = gate.keyring.find_by_name("k")
    (limit,) = caller._limits
    counted = limit._row.tokens.compute_wait(now, 1000) * 1000 / 60
    if not counted:  # tokens are left: find how many are needed for a wait
        limit._row.tokens.add(now, 1000, 1000)
        counted = limit._row.tokens.compute_wait(now, 1000) * 1000 / 60 - 1000
    return round(1 - counted)


def test_reported_usage_is_charged() -> None:
    assert tokens_left_after(answer(prompt_tokens=300, completion_tokens=100)) == 1000 - 400


def test_anthropic_cache_tokens_are_charged() -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 40}
    assert tokens_left_after(answer(**usage, output_tokens=50), path="/v1/messages") == 1000 - 300


def test_unreported_usage_is_estimated_from_sizes() -> None:
    body = {**BODY, "pad": "x" * 400}
    response = Response(status=200, headers=JSON, body=b'{"pad": "%b"}' % (b"y" * 400))
    size = len(json.dumps(body)) // 4 + 1 + len(response.body) // 4
    assert tokens_left_after(response, body=body) == 1000 - size


def test_usage_of_unreadable_response_is_estimated() -> None:
    response = Response(status=200, headers=JSON, body=b"[" * 4000)
    assert tokens_left_after(response) == 1000 - (len(json.dumps(BODY)) // 4 + 1) - 1000


def test_stream_reports_usage_without_a_change_for_the_client() -> None:
    text = event(choices=[{"delta": {"content": "hi"}}], usage=None)
    final = event(choices=[], usage={"prompt_tokens": 100, "completion_tokens": 20})
    gate = gateway(Stream(text, final + b"data: [DONE]\n\n"), keys=[key("k", tokens_per_minute=50)])
    got = send(gate, body={**BODY, "stream": True})
    assert got.body == text + b"data: [DONE]\n\n"
    assert json.loads(gate.pool.asked[0].body)["stream_options"] == {"include_usage": True}
    assert send(gate).status == 429


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_obfuscation": False}])
def test_stream_options_of_client_are_extended(options: Any) -> None:
    gate = gateway(Stream(b"data: [DONE]\n\n"), keys=[key("k", tokens_per_minute=50)])
    send(gate, body={**BODY, "stream": True, "stream_options": options})
    sent = json.loads(gate.pool.asked[0].body)
    assert sent == {**BODY, "stream": True, "stream_options": {**(options or {}), "include_usage": True}}


def test_usage_event_that_the_client_requested_is_delivered() -> None:
    final = event(choices=[], usage={"prompt_tokens": 1, "completion_tokens": 1})
    gate = gateway(Stream(final), keys=[key("k", tokens_per_minute=50)])
    body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
    assert send(gate, body=body).body == final
    assert gate.pool.asked[0].body == json.dumps(body).encode(), "the body stays as the client sent it"


def test_messages_stream_adds_usage_of_first_and_last_event() -> None:
    stream = Stream(
        event(type="message_start", message={"usage": {"input_tokens": 300, "output_tokens": 1}}),
        event(type="content_block_delta", delta={"type": "text_delta", "text": '"usage": {}'}),
        event(type="message_delta", delta={}, usage={"output_tokens": 40}),
    )
    assert tokens_left_after(stream, body={**BODY, "stream": True}, path="/v1/messages") == 1000 - 340


def test_responses_stream_charges_usage_of_completed_event() -> None:
    stream = Stream(
        event(type="response.output_text.delta", delta="hi"),
        event(type="response.completed", response={"usage": {"input_tokens": 30, "output_tokens": 5}}),
    )
    body = {"model": "m", "input": "hi", "stream": True}
    assert tokens_left_after(stream, body=body, path="/v1/responses") == 1000 - 35


def test_client_disconnect_before_the_usage_event_is_charged_by_estimate() -> None:
    text = event(choices=[{"delta": {"content": "hi"}}])
    body = {**BODY, "stream": True}
    sent = len(json.dumps(body)) - 1 + len(',"stream_options":{"include_usage":true}}')
    left = tokens_left_after(Stream(text * 30, None), body=body, leaves=lambda got: bool(got.body))
    assert left == 1000 - (sent // 4 + 1) - 30


def test_client_disconnect_before_the_response_is_charged_for_the_prompt() -> None:
    async def main() -> int:
        gate = gateway(None, keys=[key("k", tokens_per_minute=5)])
        await asked(gate, BODY, Authorization="Bearer k", leaves=lambda _: bool(gate.pool.asked))
        return (await asked(gate, BODY, Authorization="Bearer k")).status

    assert asyncio.run(main()) == 429


def test_vote_is_charged_for_each_replica() -> None:
    response = answer(prompt_tokens=30, completion_tokens=10)
    assert tokens_left_after(response, Agentguard_Quorum="9") == 1000 - 9 * 40


def test_failed_call_is_not_charged() -> None:
    assert tokens_left_after(BackendError("no", stage="unsent")) == 1000


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/audio/speech", 403),
        ("POST", "/v1/batches", 403),
        ("PUT", "/v1/files/x", 403),
        ("POST", "/v1/messages/count_tokens", 200),
        ("POST", "/v1/responses/resp_1/cancel", 200),
        ("GET", "/v1/models", 200),
        ("DELETE", "/v1/files/x", 200),
    ],
)
def test_path_that_reports_no_tokens_is_refused_to_metered_keys(method: str, path: str, status: int) -> None:
    gate = gateway(keys=[key("k", tokens_per_minute=50), key("free")])
    assert send(gate, method=method, path=path).status == status
    assert send(gate, "free", method=method, path=path).status == 200


def test_background_response_is_refused_to_metered_keys() -> None:
    gate = gateway(keys=[key("k", tokens_per_minute=50)])
    body = {"model": "m", "input": "hi", "background": True}
    got = send(gate, body=body, path="/v1/responses")
    assert (got.status, got.json["error"]["code"]) == (403, "not_metered")
    assert send(gate, body={**body, "background": False}, path="/v1/responses").status == 200


def test_keys_of_a_tenant_share_its_limits() -> None:
    gate = gateway(
        answer(prompt_tokens=60, completion_tokens=0),
        keys=[key("k", tenant="t"), key("l", tenant="t"), key("other", tenant="u")],
        tenants={"t": {"tokens_per_minute": 100}},
    )
    assert [send(gate, name).status for name in ("k", "l", "k", "l", "other")] == [200, 200, 429, 429, 200]


def test_request_that_the_tenant_refuses_does_not_count_for_the_key() -> None:
    gate = gateway(
        keys=[key("k", tenant="t", requests_per_minute=2, max_concurrent=1), key("l", tenant="t")],
        tenants={"t": {"requests_per_minute": 1}},
    )
    assert [send(gate, name).status for name in ("l", "k", "k", "k")] == [200, 429, 429, 429]
    _, caller = gate.keyring.find_by_name("k")
    assert caller._limits[0]._row.requests.compute_wait(gate.clock.now(), 2) == 0
    assert caller._limits[0]._row.in_flight == caller._limits[1]._row.in_flight == 0


def test_refusal_names_the_limit_and_the_wait() -> None:
    gate = gateway(answer(prompt_tokens=200, completion_tokens=0), keys=[key("k", tokens_per_minute=100)])
    send(gate)
    got = send(gate)
    assert "tokens_per_minute" in got.json["error"]["message"]
    assert 55 <= int(got.headers["retry-after"]) <= 62


def test_tenant_without_a_key_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="no key has the tenant typo"):
        settings(keys=[key("k", tenant="t")], tenants={"typo": {}})
