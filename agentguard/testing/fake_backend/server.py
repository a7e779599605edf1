"""Model endpoint on loopback with scripted faults: real sockets, served in a separate thread."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar

from agentguard.testing.fake_backend.expected_response import (
    FakeResponse,
    build_expected_response,
    build_foreign_request,
    detect_api,
    parse_body,
)
from agentguard.testing.fake_backend.fault_injection import FakeExchange, inject_fault
from agentguard.testing.fake_backend.faults import InjectedFault, Ok, Refuse
from agentguard.testing.fake_backend.http_connection import ClientGone, ParsedRequest, ServerConnection
from agentguard.testing.fake_backend.script import MARK_PATTERN, RecordedRequest, Script, build_script

T = TypeVar("T")


class FakeBackend:
    """Fake endpoint for chat, completions, responses, messages, embeddings and models, streamed or not.

    ::

        with FakeBackend([StatusFault(status=503), Truncate(tokens=3), Ok()]) as backend:
            client = OpenAI(base_url=backend.url, api_key="none")

    `requests` contains the received requests. The thread of the backend writes it; any thread may read it.

    Args:
        script: one fault for every request, several in turn (the last one is repeated), or a `Script`.
        word_count: number of words in the text of a response, one token each.
        known_answers: texts of responses by question, as for a known-answer probe; without a question, the
            request determines the text.
        name: name of the thread, and of the replica in a test.
        port: port to listen on; 0 lets the system choose.

    Raises:
        ConfigError: the script is invalid.
    """

    def __init__(
        self,
        script: Script | InjectedFault | Sequence[InjectedFault] | None = None,
        *,
        word_count: int = 8,
        known_answers: Mapping[str, str] | None = None,
        name: str = "fault-backend",
        port: int = 0,
    ) -> None:
        self.name, self.requests = name, list[RecordedRequest]()
        self.connection_count = 0
        self._word_count, self._known_answers, self._port = word_count, known_answers, port
        self._counts: Counter[str] = Counter()
        self._connections: set[ServerConnection] = set()
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self.set_script(script if script is not None else Ok())

    @property
    def port(self) -> int:
        """Port that the backend listens on."""
        return self._port

    @property
    def url(self) -> str:
        """Base URL of the OpenAI-compatible APIs, including ``/v1``."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def open_connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    @property
    def active_requests(self) -> int:
        """Number of unfinished requests."""
        return sum(not one.is_finished for one in list(self.requests))

    def list_attempts(self, key: str) -> list[RecordedRequest]:
        """Return the requests of one mark, in order."""
        return [one for one in list(self.requests) if one.key == key]

    def build_expected_response(self, target: str, body: bytes) -> FakeResponse:
        """Return the expected response to a request with this path and body."""
        return build_expected_response(
            detect_api(target),
            parse_body(body),
            word_count=self._word_count,
            known_answers=self._known_answers,
        )

    def set_script(self, script: Script | InjectedFault | Sequence[InjectedFault]) -> None:
        """Set the script for all later requests."""
        self._is_refusing = isinstance(script, Refuse)
        self._script = build_script(script)
        if self._loop is not None:
            self._run_in_loop(self._stop_listening() if self._is_refusing else self._start_listening())

    @contextmanager
    def refuse_connections(self) -> Iterator[None]:
        """Refuse connections and reset the open ones during the block; the backend keeps the port."""
        self._run_in_loop(self._stop_listening())
        try:
            yield
        finally:
            self._run_in_loop(self._start_listening())

    def wait_until(self, condition: Callable[[], object], timeout_s: float = 30.0) -> None:
        """Wait until a condition is true, for at most ``timeout_s`` seconds. Raises TimeoutError."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while not condition():
                # Limit each wait: a condition on something other than the backend sends no notification.
                if not self._changed.wait(min(0.05, end - time.monotonic())) and time.monotonic() >= end:
                    raise TimeoutError(f"{self.name}: the condition is not true after {timeout_s:g} s")

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=self.name, daemon=True)
        self._thread.start()
        self._run_in_loop(self._stop_listening() if self._is_refusing else self._start_listening())
        return self

    def __exit__(self, *_: object) -> None:
        self._run_in_loop(self._stop_listening())
        loop, listening_socket = self._get_loop(), self._socket
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()
        if listening_socket is not None:
            listening_socket.close()
        self._loop = self._socket = None

    def _run_in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._get_loop()).result(30)

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError(f"{self.name} is not running: use it in a `with` block")
        return self._loop

    async def _start_listening(self) -> None:
        if self._server is None:
            listening = self._socket or self._bind_socket()
            self._socket = None
            self._server = await self._get_loop().create_server(
                self._create_connection, sock=listening, backlog=1024
            )

    async def _stop_listening(self) -> None:
        """Stop listening, keep the port, and reset all connections."""
        if self._server is not None:
            await self._close_server(self._server)
            self._server = None
        self._socket = self._socket or self._bind_socket()
        while self._connections:
            for connection in list(self._connections):
                connection.reset()
            await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=5)

    async def _close_server(self, server: asyncio.Server) -> None:
        """Close the server after every accepted socket has a connection object.

        asyncio creates the connection in a separate task. If the server closes first, this task fails
        silently: asyncio calls neither connection_made nor connection_lost, and the backend waits for ever.
        """
        for listening in server.sockets:
            with suppress(NotImplementedError):  # the loop of Windows has no readers
                self._get_loop().remove_reader(listening.fileno())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        server.close()
        self._connections = {one for one in self._connections if one.is_connected}

    def _bind_socket(self) -> socket.socket:
        """Return a socket that is bound to the port but refuses connections, because it does not listen."""
        bound_socket = socket.socket()
        bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound_socket.bind(("127.0.0.1", self._port))
        self._port = bound_socket.getsockname()[1]
        return bound_socket

    def _create_connection(self) -> ServerConnection:
        connection = ServerConnection(self.connection_count, self._serve, self._remove_connection)
        self.connection_count += 1
        self._connections.add(connection)
        return connection

    def _remove_connection(self, connection: ServerConnection) -> None:
        self._connections.discard(connection)
        self._notify_waiters()

    async def _serve(self, connection: ServerConnection, request: ParsedRequest) -> bool:
        body = parse_body(request.body)
        record = self._record_request(connection, request, stream=body.get("stream") is True)
        before = connection.sent_bytes
        try:
            is_kept_alive = await inject_fault(record.fault, self._build_exchange(connection, record, body))
            record.answered_at = time.monotonic()
        except ClientGone:
            record.disconnected_at = connection.disconnected_at or time.monotonic()
            raise
        finally:
            record.sent_bytes = connection.sent_bytes - before
            self._notify_waiters()
        return is_kept_alive and request.keep_alive

    def _record_request(
        self, connection: ServerConnection, request: ParsedRequest, *, stream: bool
    ) -> RecordedRequest:
        mark = MARK_PATTERN.search(request.body)
        key = mark[1].decode() if mark else hashlib.sha256(request.body).hexdigest()[:16]
        record = RecordedRequest(
            number=len(self.requests),
            connection=connection.number,
            received_at=time.monotonic(),
            method=request.method,
            target=request.target,
            headers=request.headers,
            body=request.body,
            api=detect_api(request.target),
            stream=stream,
            key=key,
            attempt=self._counts[key],
        )
        self._counts[key] += 1
        record.fault = self._script(record)
        self.requests.append(record)
        self._notify_waiters()
        return record

    def _build_exchange(
        self, connection: ServerConnection, record: RecordedRequest, body: Mapping[str, Any]
    ) -> FakeExchange:
        reply = build_expected_response(
            record.api, body, word_count=self._word_count, known_answers=self._known_answers
        )
        foreign = build_expected_response(
            record.api, build_foreign_request(record.api), word_count=self._word_count
        )
        return FakeExchange(
            connection=connection, record=record, request_body=body, reply=reply, foreign_reply=foreign
        )

    def _notify_waiters(self) -> None:
        with self._changed:
            self._changed.notify_all()
