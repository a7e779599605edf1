import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from agentguard.errors import BackendError, DeadlineExceeded, ResilienceError, Stalled
from agentguard.resilience import (
    AttemptTimeoutOptions,
    BasicRequest,
    Pipeline,
    RetryOptions,
    StreamTimeoutOptions,
    TimeoutOptions,
)
from agentguard.testing.virtual_clock import VirtualClock
from tests.unit.resilience.scripted_backend import (
    BEAT,
    LAST,
    TOKENS,
    WHOLE,
    Backend,
    answer,
    carries,
    ends,
    stream,
)

OPTIONS = StreamTimeoutOptions(
    first_chunk_timeout_s=10.0, idle_timeout_s=3.0, has_content=carries, is_last=ends
)


def scene(*script, before=(), options=OPTIONS):
    clock, events = VirtualClock(), []
    backend = Backend(clock, *script)
    send = Pipeline((*before, options), clock=clock, observers=[events.append]).bind(backend.send)
    return clock, backend, send, events


async def tokens_and_error(response):
    got = []
    try:
        async for chunk in response:
            got.append(chunk)  # noqa: PERF401 - what came before an error is wanted
    except Exception as error:
        return got, error
    return got, None


def test_whole_stream_passes_with_heartbeats():
    clock, backend, send, _ = scene(stream(beats=2))
    got, error = clock.run(_read(send))
    assert (got, error) == ([BEAT, BEAT, *WHOLE], None)
    assert backend.streams == 0


async def _read(send):
    return await tokens_and_error(await send(BasicRequest()))


def test_non_stream_answer_passes():
    clock, _, send, _ = scene(answer())
    assert clock.run(send(BasicRequest(payload=3))) == "answer to 3"


@pytest.mark.parametrize(
    ("then", "kind", "seconds"),
    [
        ("cut", BackendError, 0.25),
        ("error", BackendError, 0.25),
        ("stall", Stalled, 3.2),
        ("drip", Stalled, 3.2),
    ],
)
def test_failure_after_first_token_is_a_typed_error(then, kind, seconds):
    clock, backend, send, events = scene(stream(tokens=3, then=then))
    got, error = clock.run(_read(send))
    assert [chunk for chunk in got if carries(chunk)] == list(TOKENS[:3])
    assert type(error) is kind
    assert error.stage == "committed"
    assert clock.now() == pytest.approx(seconds, abs=0.06)
    assert backend.streams == 0
    assert [e.kind for e in events] == ["stall" if kind is Stalled else "cut"]


def test_silent_end_is_not_a_success():
    clock, _, send, _ = scene(stream(tokens=3, then="close"))
    _, error = clock.run(_read(send))
    assert isinstance(error, BackendError)
    assert "last event" in str(error)


def test_silent_end_is_a_success_without_final_event_in_protocol():
    clock, _, send, _ = scene(
        stream(tokens=3, then="close"), options=StreamTimeoutOptions(has_content=carries)
    )
    assert clock.run(_read(send)) == (list(TOKENS[:3]), None)


@pytest.mark.parametrize(
    "first", [stream(first=1e6), stream(beats=10**6, first=1.0), stream(tokens=0, then="cut")]
)
def test_failure_before_first_token_is_a_retryable_call_error(first):
    clock, backend, send, _ = scene(first, stream(), before=(RetryOptions(),))
    got, error = clock.run(_read(send))
    assert (got, error) == (WHOLE, None)
    assert len(backend.calls) == 2
    assert backend.streams == 0


def test_excess_heartbeats_are_dropped():
    options = StreamTimeoutOptions(has_content=carries, is_last=ends, max_leading_heartbeats=5)
    clock, backend, send, _ = scene(stream(beats=50, first=0.01), options=options)

    async def main():
        with pytest.raises(Stalled) as caught:
            await send(BasicRequest())
        assert caught.value.stage == "sent"

    clock.run(main())
    assert backend.streams == 0


def test_empty_stream_is_a_call_error():
    clock, _, send, _ = scene(stream(tokens=0, then="close"))

    async def main():
        with pytest.raises(BackendError) as caught:
            await send(BasicRequest())
        assert caught.value.stage == "sent"

    clock.run(main())


def test_slow_reader_is_not_a_stall():
    clock, _, send, _ = scene(stream())

    async def main():
        async for _chunk in await send(BasicRequest()):
            await clock.sleep(60)

    clock.run(main())
    assert clock.now() >= 360


def test_call_deadline_covers_stream_but_attempt_timeout_does_not():
    clock, backend, send, _ = scene(
        stream(gap=2.0), before=(TimeoutOptions(total_s=5.0), AttemptTimeoutOptions(seconds=1.0))
    )
    got, error = clock.run(_read(send))
    assert got == list(TOKENS[:3])
    assert isinstance(error, DeadlineExceeded)
    assert error.stage == "committed"
    assert clock.now() == pytest.approx(5.0)
    assert backend.streams == 0


def test_early_close_closes_source_and_ends_reading():
    clock, backend, send, _ = scene(stream())
    ended = []

    async def main():
        response = await send(BasicRequest())
        response.add_end_callback(ended.append)
        assert await anext(response) == TOKENS[0]
        await response.aclose()
        await response.aclose()
        assert backend.streams == 0
        with pytest.raises(ResilienceError, match="closed"):
            await anext(response)

    clock.run(main())
    assert [type(error) for error in ended] == [asyncio.CancelledError]


def test_error_is_raised_again_on_next_read():
    clock, _, send, _ = scene(stream(tokens=1, then="cut"))

    async def main():
        response = await send(BasicRequest())
        for _ in range(2):
            _, error = await tokens_and_error(response)
            assert isinstance(error, BackendError)
        ended = []
        response.add_end_callback(ended.append)
        assert ended == [error]

    clock.run(main())


def test_cancelled_reader_ends_unclosed_stream():
    clock, backend, send, _ = scene(stream(gap=2.0))
    ended = []

    async def reader():
        response = await send(BasicRequest())
        response.add_end_callback(ended.append)
        await tokens_and_error(response)

    async def main():
        task = asyncio.create_task(reader())
        await clock.sleep(1)
        task.cancel()
        await asyncio.wait({task})
        assert backend.streams == 0

    clock.run(main())
    assert [type(error) for error in ended] == [asyncio.CancelledError]


def test_unclosable_source_is_abandoned_after_100_ms():
    clock = VirtualClock()

    class Stuck(AsyncIterator):
        async def __anext__(self):
            await clock.sleep(1e6)

        async def aclose(self):
            await clock.sleep(1e6)

    async def backend(request, deadline):
        return Stuck()

    async def main():
        with pytest.raises(Stalled):
            await Pipeline((OPTIONS,), clock=clock).bind(backend)(BasicRequest())

    clock.run(main())
    assert clock.now() == pytest.approx(10.1)


class Reads:
    """API adapter that reads errors from chunks."""

    has_content, is_last = staticmethod(carries), staticmethod(ends)

    def find_chunk_error(self, chunk):
        return "an event is malformed" if chunk == "junk" else None


class Headed:
    """A streamed answer with a head, as backends return it."""

    status, headers, replica, notes = 200, ((b"x", b"y"),), "a", (("hedged", "1"),)

    def __init__(self, *chunks):
        self._chunks, self.closed = list(chunks), False

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self._chunks:
            raise StopAsyncIteration
        return self._chunks.pop(0)

    async def aclose(self):
        self.closed = True


@dataclass(frozen=True)
class Asking(BasicRequest):
    api: object = None


def read_headed(source, *, api=None):
    clock = VirtualClock()

    async def backend(request, deadline):
        return source

    async def main():
        response = await Pipeline((StreamTimeoutOptions(),), clock=clock).bind(backend)(Asking(api=api))
        return response, *await tokens_and_error(response)

    return clock.run(main())


def test_head_of_wrapped_answer_is_accessible():
    response, got, error = read_headed(Headed("token", LAST))
    assert (response.status, response.headers) == (200, ((b"x", b"y"),))
    assert (response.replica, response.notes) == ("a", (("hedged", "1"),))
    assert (got, error) == (["token", LAST], None)


def test_api_of_request_selects_the_parser():
    _, got, error = read_headed(Headed("token"), api=Reads())
    assert got == ["token"]
    assert isinstance(error, BackendError)
    assert "last event" in str(error)
    assert read_headed(Headed("token", LAST), api=Reads())[1:] == (["token", LAST], None)


def test_malformed_event_ends_stream_like_a_cut():
    source = Headed("token", "junk", LAST)
    _, got, error = read_headed(source, api=Reads())
    assert got == ["token"]
    assert isinstance(error, BackendError)
    assert error.stage == "committed"
    assert "malformed" in str(error)
    assert source.closed


def test_malformed_event_before_first_token_is_retryable():
    with pytest.raises(BackendError) as caught:
        read_headed(Headed("junk"), api=Reads())
    assert caught.value.stage == "sent"


def test_finished_stream_is_freed_without_garbage_collection():
    clock, _, send, _ = scene(stream())

    async def read_one():
        response = await send(BasicRequest())
        await tokens_and_error(response)
        return weakref.ref(response)

    gc.collect()
    gc.disable()
    try:
        assert clock.run(read_one())() is None
    finally:
        gc.enable()
