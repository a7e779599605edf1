"""Streams over real sockets: complete events, the end, interruptions, slow readers, and disconnects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentguard.backends.base import Response
from agentguard.backends.http import HttpLimits, HttpStream
from agentguard.errors import BackendError, DeadlineExceeded, ResilienceError
from agentguard.model_api import API_FORMATS
from tests.unit.backends.http.scripted_server import (
    CHUNKED,
    END,
    EVENTS,
    OK,
    Heard,
    backend,
    chunked,
    request,
    run,
    serving,
    skip,
    soon,
    until,
)

ONE, TWO = b'data: {"choices":[],"n":1}\n\n', b'data: {"choices":[],"n":2}\n\n'
DONE = b"data: [DONE]\n\n"
CHAT = API_FORMATS["chat"]


async def stream_of(client: Any, deadline: Any = None, **more: Any) -> HttpStream:
    given = {"stream": True, "api": CHAT, **more}
    answer = await client.send(request(**given), deadline or soon())
    assert isinstance(answer, HttpStream)
    return answer


def read(
    scene: Any, *, close: bool = False, limits: HttpLimits | None = None, **more: Any
) -> tuple[list[bytes], Any]:
    """Return the chunks of a stream and its error."""
    got: list[bytes] = []
    failed: list[ResilienceError] = []

    async def closed(heard: Heard) -> None:
        await heard.say(scene)
        heard.writer.close()

    async def main() -> None:
        async with serving(closed if close else scene) as server, backend(server, limits=limits) as client:
            try:
                stream = await stream_of(client, **more)
                while True:
                    got.append(await anext(stream))
            except StopAsyncIteration:
                pass
            except ResilienceError as error:
                failed.append(error)

    run(main())
    return got, failed[0] if failed else None


def test_events_are_complete_for_any_split() -> None:
    async def drip(heard: Heard) -> None:
        whole = ONE + b": ping\n\n" + TWO + DONE
        await heard.say(CHUNKED)
        for at in range(0, len(whole), 7):
            await heard.say(chunked(whole[at : at + 7]))
            await asyncio.sleep(0.002)
        await heard.say(END)

    got, error = read(drip)
    assert error is None
    assert b"".join(got) == ONE + b": ping\n\n" + TWO + DONE
    assert all(chunk.endswith(b"\n\n") for chunk in got)
    assert len(got) > 1


def test_events_of_one_read_are_one_chunk() -> None:
    got, error = read(CHUNKED + chunked(ONE) + chunked(TWO) + chunked(DONE) + END)
    assert error is None
    assert got == [ONE + TWO + DONE]


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\r\r"])
def test_all_line_endings_end_events(end: bytes) -> None:
    event = b"data: [DONE]" + end
    got, _ = read(CHUNKED + chunked(event[:-1]) + chunked(event[-1:]) + END)
    assert b"".join(got) == event


def test_stream_exposes_head_and_reuses_connection() -> None:
    async def main() -> None:
        async with serving(CHUNKED + chunked(DONE) + END, OK) as server, backend(server, name="a") as client:
            stream = await stream_of(client)
            assert (stream.status, stream.replica, stream.notes) == (200, "a", ())
            assert stream.headers == ((b"content-type", b"text/event-stream"),)
            assert [chunk async for chunk in stream] == [DONE]
            await stream.aclose()
            await client.send(request(), soon())
            assert [one.connection for one in server.heard] == [1, 1]

    run(main())


def test_fully_received_stream_frees_connection_before_it_is_read() -> None:
    async def main() -> None:
        async with serving(CHUNKED + chunked(ONE + DONE) + END, OK) as server, backend(server) as client:
            stream = await stream_of(client)
            await client.send(request(), soon())
            assert [one.connection for one in server.heard] == [1, 1]
            assert [chunk async for chunk in stream] == [ONE + DONE]

    run(main())


@pytest.mark.parametrize(
    ("scene", "close"),
    [
        (CHUNKED + chunked(ONE), True),
        (CHUNKED + chunked(ONE) + b"20\r\ndata: ", True),
        (CHUNKED + chunked(ONE + DONE), True),
        (EVENTS + b"content-length: 5000\r\n\r\n" + ONE + DONE, True),
        (EVENTS + b"connection: close\r\n\r\n" + ONE, True),
        (EVENTS + b"connection: close\r\n\r\n" + ONE + b"data: [DO", True),
    ],
)
def test_cut_stream_is_not_a_success(scene: bytes, close: bool) -> None:
    got, error = read(scene, close=close)
    assert b"".join(got).startswith(ONE)
    assert isinstance(error, BackendError)
    assert error.stage == "committed"


def test_stream_cut_before_first_event_is_retryable() -> None:
    got, error = read(CHUNKED, close=True)
    assert got == []
    assert isinstance(error, BackendError)
    assert error.stage == "sent"


def test_stream_without_length_is_complete_after_last_event() -> None:
    got, error = read(EVENTS + b"connection: close\r\n\r\n" + ONE + DONE, close=True)
    assert (b"".join(got), error) == (ONE + DONE, None)
    _, error = read(EVENTS + b"connection: close\r\n\r\n" + ONE + DONE, close=True, api=None)
    assert isinstance(error, BackendError)


def test_data_after_last_blank_line_is_kept() -> None:
    got, error = read(CHUNKED + chunked(ONE + b"data: [DONE]\n") + END)
    assert (b"".join(got), error) == (ONE + b"data: [DONE]\n", None)


def test_endless_event_has_a_size_limit() -> None:
    limits = HttpLimits(max_event_bytes=4096)
    _, error = read(CHUNKED + chunked(b"data: " + b"x" * 8000), limits=limits)
    assert isinstance(error, BackendError)
    assert error.stage == "sent"


def test_invalid_chunk_ends_the_stream() -> None:
    async def bad(heard: Heard) -> None:
        await heard.say(CHUNKED + chunked(ONE))
        await asyncio.sleep(0.05)
        await heard.say(b"zz\r\n")
        await heard.gone()

    got, error = read(bad)
    assert got == [ONE]
    assert isinstance(error, BackendError)
    assert error.stage == "committed"


def test_bytes_of_unknown_api_pass_unchanged() -> None:
    scene = b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ntransfer-encoding: chunked\r\n\r\n"
    got, error = read(scene + chunked(b"RIFF\n\nx") + END, api=None)
    assert (b"".join(got), error) == (b"RIFF\n\nx", None)


def test_encoded_stream_is_rejected() -> None:
    _, error = read(EVENTS + b"content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n" + END)
    assert isinstance(error, BackendError)


def test_whole_answer_to_stream_request_is_accepted() -> None:
    async def main() -> None:
        async with serving(OK) as server, backend(server) as client:
            answer = await client.send(request(stream=True, api=CHAT), soon())
            assert isinstance(answer, Response)

    run(main())


async def _forever(heard: Heard) -> None:
    await heard.say(CHUNKED + chunked(ONE))
    await heard.gone()


def test_deadline_covers_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving(_forever) as server, backend(server) as client:
            stream = await stream_of(client, soon(60))
            assert await anext(stream) == ONE
            skip(monkeypatch, 60)
            with pytest.raises(DeadlineExceeded) as caught:
                await anext(stream)
            assert caught.value.stage == "committed"
            await until(lambda: server.open == 0)

    run(main())


@pytest.mark.parametrize("how", ["aclose", "cancel"])
def test_closing_the_stream_closes_the_connection_at_once(how: str) -> None:
    async def main() -> None:
        async with serving(_forever) as server, backend(server) as client:
            stream = await stream_of(client)
            assert await anext(stream) == ONE
            if how == "cancel":
                task = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                await stream.aclose()
            await until(lambda: server.open == 0)
            with pytest.raises(ResilienceError):
                await anext(stream)
            assert client.connection_count == 0

    run(main())


def test_slow_reader_applies_backpressure() -> None:
    sent = [0]

    async def flood(heard: Heard) -> None:
        heard.writer.transport.set_write_buffer_limits(high=65536)
        await heard.say(CHUNKED)
        for _ in range(800):
            await heard.say(chunked(ONE * 2000))
            sent[0] += 2000
        await heard.say(chunked(DONE) + END)

    async def main() -> None:
        async with serving(flood) as server, backend(server) as client:
            stream = await stream_of(client, soon(30))
            first = await anext(stream)
            before = -1
            while sent[0] != before:  # until the endpoint cannot write more
                before = sent[0]
                await asyncio.sleep(0.1)
            assert sent[0] < 800 * 2000
            count = first.count(ONE)
            async for chunk in stream:
                assert len(chunk) < 2 << 20
                count += chunk.count(ONE)
            assert count == 800 * 2000
            await client.send(request(), soon())
            assert server.connections == 1

    run(main())


def test_reset_is_raised_after_received_events() -> None:
    async def reset(heard: Heard) -> None:
        await heard.say(CHUNKED + chunked(ONE))
        await asyncio.sleep(0.05)
        heard.reset()

    got, error = read(reset)
    assert got == [ONE]
    assert isinstance(error, BackendError)
    assert error.stage == "committed"


def test_uvloop_streams_behave_equally() -> None:
    uvloop = pytest.importorskip("uvloop")
    got: list[bytes] = []

    async def main() -> None:
        async with (
            serving(CHUNKED + chunked(ONE + DONE) + END, _forever) as server,
            backend(server) as client,
        ):
            got.extend([chunk async for chunk in await stream_of(client)])
            await (await stream_of(client)).aclose()
            await until(lambda: server.open == 0)

    uvloop.run(main())
    assert got == [ONE + DONE]
