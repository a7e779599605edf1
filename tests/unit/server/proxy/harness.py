"""The proxy on a loopback socket in the test process: its own protocol over a scripted pool."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.http.server_protocol import HttpServerProtocol
from agentguard_server.proxy.requests.handler import ProxyApp
from agentguard_server.proxy.state import AppState
from uvicorn.server import ServerState

from agentguard.backends.base import Response
from agentguard.backends.config import BackendsOptions
from agentguard.errors import ResilienceError

JSON = ((b"content-type", b"application/json"),)
EVENTS = ((b"content-type", b"text/event-stream"),)


def settings(**sections: object) -> ProxySettings:
    replicas = [{"name": "a", "url": "http://127.0.0.1:1/v1"}]
    return ProxySettings.parse({"backends": {"replicas": replicas}, **sections})


class Stream:
    """A streamed answer of these items; an error item is raised, a None item hangs."""

    def __init__(self, *items: object, status: int = 200, headers=EVENTS) -> None:
        self.status, self.headers, self.replica, self.notes = status, headers, "a", ()
        self._items = self._play(items)
        self.closed = self.hangs = False

    async def _play(self, items) -> AsyncIterator[bytes]:
        for item in items:
            if isinstance(item, Exception):
                raise item
            if item is None:
                self.hangs = True
                await asyncio.Event().wait()
            yield item

    def __aiter__(self):
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._items)

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class Pool:
    """Pool that answers in order and repeats the last answer; errors are raised, functions are called."""

    options: BackendsOptions
    answers: list = field(
        default_factory=lambda: [Response(status=200, headers=JSON, body=b"{}", replica="a")]
    )
    asked: list = field(default_factory=list)
    cancelled: bool = False

    async def send(self, request, _deadline):
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        if isinstance(answer, ResilienceError):
            raise answer
        return answer

    async def aclose(self) -> None:
        pass


class Told(list):
    def record(self, recorded) -> None:
        self.append(recorded)


@dataclass
class Got:
    """Response as the client receives it."""

    status: int = 0
    headers: dict = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False

    @property
    def json(self):
        return json.loads(self.body)


def gateway(*answers: object, recorders=(), guarding=None, **sections: object) -> AppState:
    parsed = settings(**sections)
    pool = Pool(parsed.backends, list(answers)) if answers else Pool(parsed.backends)
    return AppState(
        parsed, pool, request_observers=recorders, interceptor=guarding,
        max_captured_bytes=1000 if recorders else 0,
    )  # fmt: skip


@asynccontextmanager
async def serving(gate: AppState) -> AsyncIterator[tuple[int, ServerState]]:
    """Serve on a free port; at the end, abort all connections and wait for their requests."""
    app, state = ProxyApp(gate), ServerState()
    config = SimpleNamespace(loaded_app=app)
    server = await asyncio.get_running_loop().create_server(
        lambda: HttpServerProtocol(config, state, {}), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1], state
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        while state.connections or state.tasks:
            await asyncio.sleep(0)


def head_of(method: str, path: str, headers: dict[str, str], framing: bytes) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if "Host" not in named:
        named = {"Host": "127.0.0.1:8080", **named}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n" + framing + b"\r\n\r\n"


async def read_response(reader: asyncio.StreamReader, method: str, got: Got) -> None:
    """Read a response into ``got`` as it arrives; a connection that is cut leaves ``ended`` false."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        got.headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}
        got.status = int(status.split()[1])
        if method == "HEAD" or got.status in (204, 304):
            got.ended = True
        elif (length := got.headers.get("content-length")) is not None:
            got.body = await reader.readexactly(int(length))
            got.ended = True
        else:
            while line := await reader.readline():
                if (size := int(line, 16)) == 0:
                    got.ended = True
                    break
                got.body += (await reader.readexactly(size + 2))[:-2]


async def asked(
    gate: AppState, body: object = None, *, path: str = "/v1/chat/completions", method: str = "POST",
    leaves: Callable[[Got], bool] | None = None, parts: list[bytes] | None = None,
    declared: int | None = None, **headers: str,
) -> Got:  # fmt: skip
    """Send one request. The client disconnects as soon as ``leaves`` returns true for the response so far.

    ``parts`` are chunks of a body without a declared length; the first arrives before the others are sent.
    ``declared`` is a length that the body may not have.
    """
    data = body if isinstance(body, bytes) else json.dumps(body or {"model": "m"}).encode()
    size = b"content-length: %d" % (len(data) if declared is None else declared)
    head = head_of(method, path, headers, size if parts is None else b"transfer-encoding: chunked")
    chunks = [b"%x\r\n%b\r\n" % (len(one), one) for one in parts or ()]
    got = Got()
    async with serving(gate) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        reading = asyncio.create_task(read_response(reader, method, got))
        try:
            writer.write(head + (data if parts is None else chunks[0]))
            if parts is not None:
                while not (gate.in_flight or got.status):
                    await asyncio.sleep(0)
                writer.write(b"".join(chunks[1:]) + b"0\r\n\r\n")
            if leaves is None:
                await reading
            else:
                while not leaves(got):
                    await asyncio.sleep(0)
        finally:
            reading.cancel()
            writer.transport.abort()
    return got


def ask(gate: AppState, body: object = None, **how) -> Got:
    return asyncio.run(asked(gate, body, **how))
