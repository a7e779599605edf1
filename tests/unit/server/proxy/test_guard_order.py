"""Order of the guard's hooks in a request, and requests without a guard."""

import asyncio
import hashlib
import json
from dataclasses import dataclass, field

import pytest
from agentguard_server.proxy.hooks import GuardOutcome

from agentguard.backends.base import Response
from agentguard.errors import BackendError
from tests.unit.server.proxy.harness import JSON, Stream, Told, ask, gateway

CHUNK = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


@dataclass
class Hold:
    """Guard that buffers a stream until its end and repeats the request the given number of times."""

    again: list = field(default_factory=list)
    held: bytes = b""
    broken: bool = False

    def feed(self, data: bytes) -> bytes:
        self.held += data
        return b""

    async def finish(self, ask) -> tuple[bytes, bool]:
        if self.broken:
            raise EOFError
        if self.again:
            self.held = b""
            return b"", self.again.pop()
        return b"[" + self.held + b"]", False

    def format_error_event(self, message: str) -> bytes:
        return b"data: failed: " + message.encode() + b"\n\n"


@dataclass
class Guarded:
    local_response: Response | None = None
    body: bytes | None = None
    outcome: GuardOutcome = field(default_factory=lambda: GuardOutcome(run_id="r1", step=1))
    held: Hold = field(default_factory=Hold)
    verdict: object = None
    settled: int = 0

    async def judge(self, answer, ask):
        return await self.verdict(answer, ask) if self.verdict else answer

    def create_stream_buffer(self):
        return self.held

    def settle(self) -> None:
        self.settled += 1


@dataclass
class Guarding:
    opens: object
    asked: list = field(default_factory=list)

    def intercept(self, asked):
        self.asked.append(asked)
        return self.opens


def test_guard_receives_client_request():
    guarding = Guarding(None)
    key = {"name": "k", "tenant": "t", "hash": "sha256:" + hashlib.sha256(b"ag-k").hexdigest()}
    gate = gateway(guarding=guarding, keys=[key])
    headers = {"Agentguard_Run": "r1", "X_Kept": "1", "Authorization": "Bearer ag-k"}
    got = ask(gate, {"model": "m", "stream": False}, **headers)
    (asked,) = guarding.asked
    assert (asked.api, asked.model, asked.run_id, asked.tenant) == ("chat", "m", "r1", "t")
    assert asked.headers == ((b"x-kept", b"1"),)
    assert asked.request_id == got.headers["agentguard-request"]
    assert json.loads(asked.body) == {"model": "m", "stream": False}


def test_guard_skips_pass_through_requests():
    guarding = Guarding(None)
    ask(gateway(guarding=guarding), method="GET", path="/v1/models")
    assert not guarding.asked


def test_guard_may_refuse_request():
    gate = gateway(guarding=Guarding(Response(status=503, headers=JSON, body=b'{"error":1}')))
    got = ask(gate)
    assert (got.status, got.body) == (503, b'{"error":1}')
    assert not gate.pool.asked


@dataclass
class Slowly(Guarding):
    def intercept(self, asked):
        found = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, found.set_result, self.opens)
        return found


@pytest.mark.parametrize("kind", [Guarding, Slowly])
def test_guard_may_answer_request(kind):
    guarded = Guarded(local_response=Response(status=200, headers=JSON, body=b"its own"))
    gate = gateway(guarding=kind(guarded))
    got = ask(gate)
    assert (got.body, got.headers["agentguard-run"], guarded.settled) == (b"its own", "r1", 1)
    assert not gate.pool.asked


def test_guard_body_is_sent_and_guard_verdict_is_returned():
    async def verdict(answer, ask):
        other = await ask(b'{"again":1}', False)
        return Response(status=200, headers=JSON, body=answer.body + other.body)

    told = Told()
    guarded = Guarded(body=b'{"sticky":1}', verdict=verdict)
    answers = [
        Response(status=200, headers=JSON, body=b"one"),
        Response(status=200, headers=JSON, body=b"two"),
    ]
    gate = gateway(*answers, guarding=Guarding(guarded), recorders=(told,))
    got = ask(gate)
    assert [one.body for one in gate.pool.asked] == [b'{"sticky":1}', b'{"again":1}']
    assert got.body == b"onetwo"
    assert (told[0].sent_body, told[0].guard_outcome) == (b'{"sticky":1}', guarded.outcome)


@pytest.mark.parametrize("error", [BackendError("cut")])
def test_guard_is_settled_after_failed_call(error):
    guarded = Guarded()
    assert ask(gateway(error, guarding=Guarding(guarded))).status == 502
    assert guarded.settled == 1


def test_held_stream_follows_verdict():
    guarded = Guarded()
    got = ask(gateway(Stream(CHUNK, CHUNK), guarding=Guarding(guarded)), {"stream": True})
    assert got.body == b"[" + CHUNK * 2 + b"]"
    assert got.headers["agentguard-run"] == "r1"
    assert guarded.settled == 1


def test_guard_may_request_another_stream():
    guarded = Guarded(body=b'{"stream":true,"view":1}', held=Hold(again=[True]))
    first, second = Stream(b"data: bad\n\n"), Stream(b"data: good\n\n")
    gate = gateway(first, second, guarding=Guarding(guarded))
    got = ask(gate, {"stream": True})
    assert got.body == b"[data: good\n\n]"
    assert [one.body for one in gate.pool.asked] == [guarded.body] * 2
    assert first.closed
    assert second.closed


def test_incomplete_stream_releases_nothing_held():
    guarded = Guarded(held=Hold(broken=True))
    got = ask(gateway(Stream(CHUNK), guarding=Guarding(guarded)), {"stream": True})
    assert CHUNK not in got.body
    assert b"backend_error" in got.body
    assert got.ended


def test_exhausted_stream_retries_end_with_one_error():
    guarded = Guarded(held=Hold(again=[True]))
    gate = gateway(Stream(CHUNK), BackendError("gone"), guarding=Guarding(guarded))
    got = ask(gate, {"stream": True})
    assert got.body.count(b"data: ") == 1
    assert b"failed" in got.body
    assert got.ended


def test_guard_failure_is_an_internal_error(caplog):
    async def verdict(_answer, _ask):
        raise ValueError("with contents of the run")

    guarded = Guarded(verdict=verdict)
    got = ask(gateway(guarding=Guarding(guarded)))
    assert (got.status, got.json["error"]["code"]) == (500, "internal_error")
    assert "contents" not in got.body.decode() + caplog.text
    assert "test_guard_order.py" in caplog.text
    assert guarded.settled == 1
