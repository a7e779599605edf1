"""Connections over real sockets: reuse, limits, stale and refused connections, progress of failed calls."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from agentguard.backends.base import Response
from agentguard.backends.http import HttpBackend, HttpLimits
from agentguard.errors import BackendError, DeadlineExceeded, ResilienceError
from agentguard.model_api import API_FORMATS
from tests.unit.backends.http.scripted_server import (
    CHUNKED,
    END,
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


async def _hang(heard: Heard) -> None:
    await heard.gone()


async def _close(heard: Heard) -> None:
    heard.writer.close()


async def _ok_and_close(heard: Heard) -> None:
    await heard.say(OK)
    heard.writer.close()


def test_connection_is_reused_for_sequential_requests() -> None:
    async def main() -> None:
        async with serving() as server, backend(server) as client:
            for _ in range(5):
                await client.send(request(), soon())
            assert (server.connections, client.connection_count) == (1, 1)
            await asyncio.gather(*(client.send(request(), soon()) for _ in range(8)))
            assert server.connections == 8

    run(main())


def test_unrepeatable_request_gets_new_connection_while_possible() -> None:
    async def main() -> None:
        limits = HttpLimits(max_connections=3)
        async with serving() as server, backend(server, limits=limits) as client:
            await client.send(request(), soon())
            for opened in (2, 3, 3):
                await client.send(request(idempotent=False), soon())
                assert server.connections == client.connection_count == opened
            await client.send(request(), soon())
            assert server.connections == 3

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=1\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
def test_connection_marked_close_is_not_reused(answer: bytes) -> None:
    async def main() -> None:
        async with serving(answer) as server, backend(server) as client:
            await client.send(request(), soon())
            await client.send(request(), soon())
            assert [one.connection for one in server.heard] == [1, 2]

    run(main())


def test_stale_connection_is_replaced_without_error() -> None:
    async def main() -> None:
        async with serving(_ok_and_close) as server, backend(server) as client:
            await client.send(request(), soon())
            await until(lambda: client.connection_count == 0)
            answer = await client.send(request(), soon())
            assert isinstance(answer, Response)
            assert server.connections == 2

    run(main())


def test_request_on_closing_connection_counts_as_sent() -> None:
    async def main() -> None:
        async with serving(OK, _close) as server, backend(server) as client:
            await client.send(request(), soon())
            with pytest.raises(BackendError) as caught:
                await client.send(request(), soon())
            assert caught.value.stage == "sent"
            assert [one.connection for one in server.heard] == [1, 1]

    run(main())


def test_idle_connections_are_closed_by_age_and_number() -> None:
    async def main() -> None:
        limits = HttpLimits(max_idle_connections=2, keepalive_timeout_s=0.05)
        async with serving() as server, backend(server, limits=limits) as client:
            await asyncio.gather(*(client.send(request(), soon()) for _ in range(5)))
            await until(lambda: client.connection_count <= 2)
            await until(lambda: client.connection_count == 0)
            await client.send(request(), soon())

    run(main())


def test_requests_wait_in_order_for_a_connection() -> None:
    async def main() -> None:
        limits = HttpLimits(max_connections=2)
        async with serving(*([_slow_ok] * 9)) as server, backend(server, limits=limits) as client:
            order: list[int] = []

            async def one(number: int) -> None:
                await client.send(request(), soon())
                order.append(number)

            await asyncio.gather(*(one(number) for number in range(9)))
            assert server.connections == 2
            assert sorted(order[:4]) == [0, 1, 2, 3]

    run(main())


async def _slow_ok(heard: Heard) -> None:
    await asyncio.sleep(0.01)
    await heard.say(OK)


def test_connection_queue_is_bounded_in_length_and_time() -> None:
    async def main() -> None:
        limits = HttpLimits(max_connections=1, max_waiting=1, pool_timeout_s=0.05)
        async with serving(_hang) as server, backend(server, limits=limits) as client:
            first = asyncio.ensure_future(client.send(request(), soon()))
            await until(lambda: len(server.heard) == 1)
            second = asyncio.ensure_future(client.send(request(), soon()))
            await asyncio.sleep(0)
            for waiting, text in ((client.send(request(), soon()), "too many"), (second, "no connection")):
                with pytest.raises(BackendError, match=text) as caught:
                    await waiting
                assert caught.value.stage == "unsent"
            with pytest.raises(DeadlineExceeded) as late:
                await client.send(request(), soon(0.02))
            assert late.value.stage == "unsent"
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await client.send(request(), soon())

    run(main())


def test_connection_broken_during_handover_is_not_used() -> None:
    async def main() -> None:
        async with (
            serving(_slow_ok, OK) as server,
            backend(server, limits=HttpLimits(max_connections=1)) as client,
        ):
            release = client._connection_pool.release

            def breaking(connection: Any) -> None:
                release(connection)
                connection.abort()

            client._connection_pool.release = breaking  # type: ignore[method-assign]
            answers = await asyncio.gather(*(client.send(request(), soon()) for _ in range(2)))
            assert [type(one) for one in answers] == [Response, Response]
            assert [one.connection for one in server.heard] == [1, 2]

    run(main())


def test_idle_connection_closed_by_endpoint_is_detected_before_send() -> None:
    async def main() -> None:
        async with serving() as server, backend(server) as client:
            await client.send(request(), soon())
            kept = client._connection_pool._idle[0]
            kept._fd, theirs = (pair := socket.socketpair())[0].fileno(), pair[1]
            assert kept.is_usable(kept.idle_since + 2)
            theirs.close()
            assert not kept.is_usable(kept.idle_since + 2)
            pair[0].close()

    run(main())


def test_waiting_request_gets_slot_of_broken_connection() -> None:
    async def main() -> None:
        async with (
            serving(_close, OK) as server,
            backend(server, limits=HttpLimits(max_connections=1)) as client,
        ):
            results = await asyncio.gather(
                *(client.send(request(), soon()) for _ in range(3)), return_exceptions=True
            )
            assert [type(one).__name__ for one in results] == ["BackendError", "Response", "Response"]

    run(main())


def test_refused_and_unknown_endpoints_count_as_unsent() -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            closed = HttpBackend(f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
            for client in (closed, HttpBackend("http://agentguard.invalid/v1")):
                with pytest.raises(BackendError) as caught:
                    await client.send(request(), soon())
                assert caught.value.stage == "unsent"
                assert client.connection_count == 0
                await client.aclose()

    run(main())


def test_connect_timeout_is_separate() -> None:
    async def main() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            fillers = [socket.socket() for _ in range(3)]
            try:
                for filler in fillers:
                    filler.setblocking(False)
                    filler.connect_ex(full.getsockname())
                client = HttpBackend(
                    f"http://127.0.0.1:{full.getsockname()[1]}", limits=HttpLimits(connect_timeout_s=0.05)
                )
                with pytest.raises(BackendError, match="timed out") as caught:
                    await client.send(request(), soon())
                assert caught.value.stage == "unsent"
                assert client.connection_count == 0
            finally:
                for filler in fillers:
                    filler.close()

    run(main())


def test_expired_deadline_sends_nothing_and_closes_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving(_hang, _hang, OK) as server, backend(server) as client:
            with pytest.raises(DeadlineExceeded) as caught:
                await client.send(request(), soon(0))
            assert (caught.value.stage, len(server.heard)) == ("unsent", 0)
            long = asyncio.ensure_future(client.send(request(), soon(300)))
            await until(lambda: len(server.heard) == 1)
            short = asyncio.ensure_future(client.send(request(), soon(60)))
            await until(lambda: len(server.heard) == 2)
            skip(monkeypatch, 60)
            with pytest.raises(DeadlineExceeded) as caught:
                await short
            assert caught.value.stage == "sent"
            assert not long.done()
            skip(monkeypatch, 240)
            with pytest.raises(DeadlineExceeded):
                await long
            await until(lambda: server.open == 0)
            await client.send(request(), soon())

    run(main())


def test_early_answer_ends_request_and_connection() -> None:
    async def main() -> None:
        big = b"x" * (24 << 20)

        async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await asyncio.sleep(0.1)
            writer.close()

        server = await asyncio.start_server(early, "127.0.0.1", 0)
        client = HttpBackend(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        answer = await client.send(request(body=big), soon())
        assert isinstance(answer, Response)
        await until(lambda: client.connection_count == 0)
        server.close()
        await client.aclose()

    run(main())


def test_large_bodies_are_sent_completely() -> None:
    async def main() -> None:
        body = bytes(range(256)) * 40_000
        async with serving() as server, backend(server) as client:
            await client.send(request(body=body), soon(20))
            assert server.heard[0].body == body

    run(main())


def test_unexpected_data_closes_idle_connection() -> None:
    async def main() -> None:
        async with serving() as server, backend(server) as client:
            await client.send(request(), soon())
            server.heard[0].writer.write(OK)
            await until(lambda: client.connection_count == 0)
            answer = await client.send(request(), soon())
            assert isinstance(answer, Response)
            assert [one.connection for one in server.heard] == [1, 2]

    run(main())


def test_close_fails_active_and_later_requests() -> None:
    async def main() -> None:
        async with serving(_hang) as server, backend(server, limits=HttpLimits(max_connections=1)) as client:
            tasks = [asyncio.ensure_future(client.send(request(), soon())) for _ in range(2)]
            await until(lambda: len(server.heard) == 1)
            await client.aclose()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [getattr(one, "stage", None) for one in results] == ["sent", "unsent"]
            with pytest.raises(BackendError, match="closed"):
                await client.send(request(), soon())

    run(main())


async def _in_parts(heard: Heard) -> None:
    done = b"data: [DONE]\n\n"
    for part in (CHUNKED, chunked(b'data: {"choices":[]}\n\n'), chunked(done), END):
        await heard.say(part)
        await asyncio.sleep(0)


class Cancelled:
    """Cancels a task before its k-th resumption."""

    def __init__(self, after: int) -> None:
        self._left = after

    async def run(self, work: Any) -> bool:
        """Return whether the work ended before its cancellation."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.sleep(0)
            self._left -= 1
            if self._left == 0:
                task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return False
        return True


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_cancellation_at_any_await_leaks_nothing(loop: str) -> None:
    async def use(client: HttpBackend) -> None:
        stream: Any = await client.send(request(stream=True, api=API_FORMATS["chat"]), soon())
        try:
            async for _ in stream:
                pass
        finally:
            await stream.aclose()

    async def main() -> None:
        whole = 0
        for after in range(1, 200):
            async with (
                serving(_in_parts) as server,
                backend(server, limits=HttpLimits(max_connections=1)) as client,
            ):
                done = await Cancelled(after).run(use(client))
                whole += done
                if not done:
                    await until(
                        lambda s=server, c=client: s.open == c.connection_count
                    )  # all answers arrived: the connection is kept
                await client.send(request(), soon())
                if whole > 3:
                    break
        assert whole > 0

    if loop == "uvloop":
        pytest.importorskip("uvloop").run(main())
    else:
        run(main())


def test_cancellation_while_connection_becomes_free_leaks_nothing() -> None:
    async def main() -> None:
        async with (
            serving(_slow_ok, OK) as server,
            backend(server, limits=HttpLimits(max_connections=1)) as client,
        ):
            first = asyncio.ensure_future(client.send(request(), soon()))
            await asyncio.sleep(0)
            second = asyncio.ensure_future(client.send(request(), soon()))
            first.add_done_callback(lambda _: second.cancel())
            results = await asyncio.gather(first, second, return_exceptions=True)
            assert isinstance(results[0], Response)
            assert isinstance(results[1], asyncio.CancelledError | Response)
            await client.send(request(), soon())

    run(main())


def test_errors_contain_no_keys_bodies_or_addresses() -> None:
    async def main() -> None:
        async with serving(b"HTTP/1.1 200 sk-canary\r\nbad\r\n") as server:
            client = HttpBackend(server.url, key="sk-canary")
            for deadline in (soon(), soon(0)):
                with pytest.raises(ResilienceError) as caught:
                    await client.send(request(body=b"sk-canary"), deadline)
                assert "sk-canary" not in str(caught.value)
                assert caught.value.__cause__ is None
            await client.aclose()

    run(main())
