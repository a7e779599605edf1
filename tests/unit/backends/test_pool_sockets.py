"""The pool over real sockets, with the client and the endpoints of a proxy."""

import asyncio
import json
import time
from contextlib import ExitStack

import pytest

from agentguard.backends.base import BackendRequest
from agentguard.backends.config import BackendsOptions
from agentguard.backends.pool import Pool
from agentguard.errors import BackendError, DeadlineExceeded, RetriesExhausted
from agentguard.model_api import API_FORMATS
from agentguard.model_api.canonicalization import canonicalize_response
from agentguard.resilience import Deadline
from agentguard.testing.fake_backend import (
    Corrupt,
    FakeBackend,
    Hang,
    HeartbeatOnly,
    InvalidResponse,
    Ok,
    Refuse,
    Reset,
    Stall,
    StatusFault,
    Truncate,
)
from tests.unit.backends.pool_fixtures import notes, read, texts

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
PATIENT = {
    "attempt_timeout": {"seconds": 60},
    "stream_timeout": {"first_chunk_timeout_s": 60, "idle_timeout_s": 60},
}
QUICK = {
    "attempt_timeout": {"seconds": 3},
    "stream_timeout": {"first_chunk_timeout_s": 3, "idle_timeout_s": 3},
}
"""Limit for faults that only a timeout detects; longer than a good endpoint takes on a busy machine."""


def pace(fault):
    return QUICK if isinstance(fault, Stall | HeartbeatOnly | Hang) else PATIENT


def request(*, stream=False, **fields):
    body = json.dumps({**BODY, "stream": stream}).encode()
    headers = ((b"content-type", b"application/json"),)
    return BackendRequest(
        target="/chat/completions",
        headers=headers,
        body=body,
        api=API_FORMATS["chat"],
        model="m",
        stream=stream,
        **fields,
    )


def over(scripts, main, *, each=None, **section):
    """Run with a pool over one endpoint per script, used in order."""

    async def whole(ends):
        replicas = [{"name": one.name, "url": one.url, **(each or {})} for one in ends]
        given = {"load_balancing": "priority", "health": "off", "pipeline": PATIENT, **section}
        pool = Pool(BackendsOptions.parse({"replicas": replicas, **given}))
        await pool.start()
        try:
            return await main(pool, ends)
        finally:
            await pool.aclose()

    with ExitStack() as stack:
        ends = [stack.enter_context(FakeBackend(script, name=f"end-{n}")) for n, script in enumerate(scripts)]
        found = asyncio.run(whole(ends))
        for end in ends:
            end.wait_until(lambda end=end: end.open_connections == 0)
        return found


@pytest.mark.parametrize(
    "fault", [Refuse(), Reset(), StatusFault(status=500), Truncate(framing="length"), InvalidResponse()]
)
def test_failed_request_is_answered_by_next_replica(fault):
    async def main(pool, ends):
        answer = await pool.send(request(), Deadline.after(100))
        assert (answer.status, answer.replica) == (200, "end-1")
        assert notes(answer)["attempts"] == "2"
        assert json.loads(answer.body)["choices"]

    over([fault, Ok()], main)


@pytest.mark.parametrize(
    "fault", [Reset(tokens=0), Truncate(tokens=0), Stall(tokens=0), HeartbeatOnly(tokens=0), Hang()]
)
def test_stream_without_token_is_answered_by_next_replica(fault):
    async def main(pool, ends):
        answer = await pool.send(request(stream=True), Deadline.after(100))
        got, error = await read(answer)
        assert error is None
        assert texts(got)[2]
        assert answer.replica == "end-1"

    over([fault, Ok()], main, pipeline=pace(fault))


@pytest.mark.parametrize(
    "fault", [Reset(tokens=3), Truncate(tokens=3), Truncate(framing="close"), Stall(), HeartbeatOnly()]
)
def test_interrupted_stream_is_resumed_as_one(fault):
    async def main(pool, ends):
        answer = await pool.send(request(stream=True), Deadline.after(100))
        got, error = await read(answer)
        assert error is None
        ids, text, ended = texts(got)
        assert (len(ids), ended, bool(text)) == (1, True, True)
        assert notes(answer)["continued"] == "end-1"
        sent = json.loads(ends[1].requests[0].body)
        assert sent["messages"][-1]["role"] == "assistant"
        assert text.startswith(sent["messages"][-1]["content"])
        assert sent["continue_final_message"] is True

    over([fault, Ok()], main, each={"resumable": True}, pipeline=pace(fault))


@pytest.mark.parametrize("fault", [Reset(tokens=3), Truncate(tokens=3), Stall(), HeartbeatOnly()])
def test_disabled_resumption_ends_stream_in_one_error(fault):
    async def main(pool, ends):
        got, error = await read(await pool.send(request(stream=True), Deadline.after(100)))
        assert not texts(got)[2]
        assert error.stage == "committed"
        assert not ends[1].requests

    over([fault, Ok()], main, pipeline=pace(fault))


@pytest.mark.parametrize("stream", [False, True])
def test_cancellation_reaches_endpoint(stream):
    """LiteLLM #37140: there, a client disconnect does not cancel calls without streaming."""

    async def main(pool, ends):
        task = asyncio.create_task(pool.send(request(stream=stream), Deadline.after(100)))
        await asyncio.to_thread(ends[0].wait_until, lambda: ends[0].requests)
        left = time.monotonic()
        task.cancel()
        await asyncio.wait({task})
        await asyncio.to_thread(ends[0].wait_until, lambda: ends[0].requests[0].disconnected_at)
        assert ends[0].requests[0].disconnected_at - left < 8  # the promise is 0.1 s; the machine may be busy

    over([Hang()], main)


def test_deadline_covers_all_attempts():
    async def main(pool, ends):
        began = time.monotonic()
        with pytest.raises((DeadlineExceeded, RetriesExhausted)):
            await pool.send(request(), Deadline.after(3.0))
        assert time.monotonic() - began < 12, "ten attempts would take forty seconds"

    attempts = {"retry": {"max_attempts": 10}, "attempt_timeout": {"seconds": 2}}
    over([Hang(), Hang()], main, pipeline=attempts)


def test_vote_masks_corrupt_answer():
    async def main(pool, ends):
        answer = await pool.send(request(quorum_size=3), Deadline.after(100))
        assert notes(answer)["voted"] == "2/3"
        await pool.drain("end-0")
        true = await pool.send(request(), Deadline.after(100))
        assert canonicalize_response("chat", answer.body) == canonicalize_response("chat", true.body)

    over([Corrupt(), Ok(), Ok()], main)


def test_probe_removes_corrupting_replica():
    canary = {"prompt": "Say seven", "expected": "seven", "interval_s": 0.05, "timeout_s": 30}

    async def main(pool, ends):
        async with asyncio.timeout(60):
            while pool.status()["replicas"][0]["state"] != "corrupt":
                await asyncio.sleep(0.02)
        for _ in range(3):
            assert (await pool.send(request(), Deadline.after(100))).replica == "end-1"

    async def whole(ends):
        replicas = [{"name": one.name, "url": one.url} for one in ends]
        section = {"replicas": replicas, "probe": canary, "health": "off", "load_balancing": "priority"}
        pool = Pool(BackendsOptions.parse(section))
        await pool.start()
        try:
            await main(pool, ends)
        finally:
            await pool.aclose()

    wrong = FakeBackend(Ok(), name="end-0", known_answers={"Say seven": "eight"})
    good = FakeBackend(Ok(), name="end-1", known_answers={"Say seven": "Seven."})
    with wrong, good:
        asyncio.run(whole([wrong, good]))


def test_heartbeat_detects_lost_and_recovered_replicas():
    async def main(pool, ends):
        async def until(state):
            async with asyncio.timeout(60):
                while pool.status()["replicas"][0]["state"] != state:
                    await asyncio.sleep(0.02)

        refusing = ends[0].refuse_connections()
        await asyncio.to_thread(refusing.__enter__)
        await until("down")
        answer = await pool.send(request(), Deadline.after(100))
        assert (answer.replica, answer.notes) == ("end-1", ())
        await asyncio.to_thread(refusing.__exit__, None, None, None)
        await until("up")

    over([Ok(), Ok()], main, health={"interval_s": 0.05, "timeout_s": 30})


def test_removed_replica_finishes_its_stream():
    async def main(pool, ends):
        answer = await pool.send(request(stream=True), Deadline.after(100))
        await pool.remove("end-0")
        assert (await pool.send(request(), Deadline.after(100))).replica == "end-1"
        got, error = await read(answer)
        assert (texts(got)[2], error) == (True, None)
        await pool.wait_idle("end-0")

    over([Ok(token_interval_s=0.05), Ok()], main)


def test_endpoint_refused_by_egress_policy_is_an_error():
    async def main(pool, ends):
        with pytest.raises(BackendError):
            await pool.send(request(), Deadline.after(3))

    async def whole():
        replicas = [{"name": "a", "url": "http://name.invalid/v1"}]
        pool = Pool(BackendsOptions.parse({"replicas": replicas, "health": "off", "pipeline": []}))
        try:
            await main(pool, ())
        finally:
            await pool.aclose()

    asyncio.run(whole())
