"""A model endpoint on loopback that fails as it is told: real sockets, in a thread of its own."""

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

from agentguard.testing.fake_backend.dispatch import play
from agentguard.testing.fake_backend.exchange import FakeExchange
from agentguard.testing.fake_backend.expected import FakeReply, api_of, body_of, other, right
from agentguard.testing.fake_backend.faults import InjectedFault, Ok, Refuse
from agentguard.testing.fake_backend.http import ClientGone, ParsedRequest, ServerConnection
from agentguard.testing.fake_backend.script import MARK, RecordedRequest, Script, script_of

T = TypeVar("T")


class FaultBackend:
    """A fake endpoint for chat, completions, responses, messages, embeddings and models, streamed or not.

    ::

        with FaultBackend([Status(status=503), Truncate(tokens=3), Ok()]) as backend:
            client = OpenAI(base_url=backend.url, api_key="none")

    What it saw is in `seen`; it is written by the backend's thread and may be read at any time.

    Args:
        script: one fault for every request, several in turn (the last one stays), or a `Script`.
        words: in the text of an answer, one token each.
        known: answers by what they are asked, as for a canary; others are made from the request.
        name: of its thread, and of the replica in a test.
        port: to listen on; 0 lets the system choose.

    Raises:
        ConfigError: a script that can't be meant.
    """

    def __init__(
        self,
        script: Script | InjectedFault | Sequence[InjectedFault] | None = None,
        *,
        words: int = 8,
        known: Mapping[str, str] | None = None,
        name: str = "fault-backend",
        port: int = 0,
    ) -> None:
        self.name, self.seen = name, list[RecordedRequest]()
        self.connections = 0
        self._words, self._known, self._port = words, known, port
        self._counts: Counter[str] = Counter()
        self._wires: set[ServerConnection] = set()
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self.play(script if script is not None else Ok())

    @property
    def port(self) -> int:
        """That it listens on."""
        return self._port

    @property
    def url(self) -> str:
        """The base URL of the OpenAI-compatible APIs, up to and with ``/v1``."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._wires)

    @property
    def working(self) -> int:
        """Requests that are not over."""
        return sum(not one.over for one in list(self.seen))

    def attempts(self, key: str) -> list[RecordedRequest]:
        """The requests of one mark, in order."""
        return [one for one in list(self.seen) if one.key == key]

    def right(self, target: str, body: bytes) -> FakeReply:
        """The right answer to a request."""
        return right(api_of(target), body_of(body), words=self._words, known=self._known)

    def play(self, script: Script | InjectedFault | Sequence[InjectedFault]) -> None:
        """Take another script for the requests that come from now on."""
        self._refuses = isinstance(script, Refuse)
        self._script = script_of(script)
        if self._loop is not None:
            self._do(self._hide() if self._refuses else self._listen())

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse connections and reset those that are open, for the time of the block; keep the port."""
        self._do(self._hide())
        try:
            yield
        finally:
            self._do(self._listen())

    def until(self, met: Callable[[], object], seconds: float = 30.0) -> None:
        """Wait for something that the backend will have seen. Raises TimeoutError."""
        end = time.monotonic() + seconds
        with self._changed:
            while not met():
                # The limit on one wait: what is waited for may hang on something else than the backend, too.
                if not self._changed.wait(min(0.05, end - time.monotonic())) and time.monotonic() >= end:
                    raise TimeoutError(f"{self.name} did not see in {seconds:g} s what was waited for")

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=self.name, daemon=True)
        self._thread.start()
        self._do(self._hide() if self._refuses else self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._hide())
        loop, held = self._running(), self._socket
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()
        if held is not None:
            held.close()
        self._loop = self._socket = None

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._running()).result(30)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError(f"{self.name} does not run: use it in a `with` block")
        return self._loop

    async def _listen(self) -> None:
        if self._server is None:
            listening = self._socket or self._bound()
            self._socket = None
            self._server = await self._running().create_server(self._accepted, sock=listening, backlog=1024)

    async def _hide(self) -> None:
        """Listen no more, hold the port, and drop all connections."""
        if self._server is not None:
            await self._accept_no_more(self._server)
            self._server = None
        self._socket = self._socket or self._bound()
        while self._wires:
            for wire in list(self._wires):
                wire.reset()
            await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=5)

    async def _accept_no_more(self, server: asyncio.Server) -> None:
        """Close the server, once whoever was accepted a moment ago has a connection.

        asyncio makes that in a task of its own. If the server was closed before, the task fails unheard: its
        wire would never be made, nor lost, and it would be waited for without end.
        """
        for listening in server.sockets:
            with suppress(NotImplementedError):  # Windows' loop knows no readers
                self._running().remove_reader(listening.fileno())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        server.close()
        self._wires = {wire for wire in self._wires if wire.made}

    def _bound(self) -> socket.socket:
        """A socket that has the port and refuses connections: it does not listen."""
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", self._port))
        self._port = made.getsockname()[1]
        return made

    def _accepted(self) -> ServerConnection:
        wire = ServerConnection(self.connections, self._serve, self._lost)
        self.connections += 1
        self._wires.add(wire)
        return wire

    def _lost(self, wire: ServerConnection) -> None:
        self._wires.discard(wire)
        self._tell()

    async def _serve(self, wire: ServerConnection, asked: ParsedRequest) -> bool:
        body = body_of(asked.body)
        seen = self._note(wire, asked, stream=body.get("stream") is True)
        before = wire.sent
        try:
            keep = await play(seen.fault, self._exchange(wire, seen, body))
            seen.answered_at = time.monotonic()
        except ClientGone:
            seen.left_at = wire.left_at or time.monotonic()
            raise
        finally:
            seen.sent = wire.sent - before
            self._tell()
        return keep and asked.keep

    def _note(self, wire: ServerConnection, asked: ParsedRequest, *, stream: bool) -> RecordedRequest:
        mark = MARK.search(asked.body)
        key = mark[1].decode() if mark else hashlib.sha256(asked.body).hexdigest()[:16]
        seen = RecordedRequest(
            number=len(self.seen),
            connection=wire.number,
            at=time.monotonic(),
            method=asked.method,
            target=asked.target,
            headers=asked.headers,
            body=asked.body,
            api=api_of(asked.target),
            stream=stream,
            key=key,
            attempt=self._counts[key],
        )
        self._counts[key] += 1
        seen.fault = self._script(seen)
        self.seen.append(seen)
        self._tell()
        return seen

    def _exchange(
        self, wire: ServerConnection, seen: RecordedRequest, body: Mapping[str, Any]
    ) -> FakeExchange:
        reply = right(seen.api, body, words=self._words, known=self._known)
        foreign = right(seen.api, other(seen.api), words=self._words)
        return FakeExchange(wire=wire, seen=seen, asked=body, reply=reply, other=foreign)

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
