"""The application without a server: from a request to the client's response, over a scripted pool."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from agentguard_server.proxy.app import ProxyApp
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.state import AppState

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


def scope_of(method: str, path: str, headers: dict[str, str], size: int) -> dict:
    raw, _, query = path.partition("?")
    named = [(name.lower().replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {
        "type": "http", "method": method,
        "raw_path": raw.encode(), "path": raw, "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1:8080"), (b"content-length", b"%d" % size), *named],
    }  # fmt: skip


async def asked(
    gate: AppState, body: object = None, *, path: str = "/v1/chat/completions", method: str = "POST",
    leaves: Callable[[Got], bool] | None = None, parts: list[bytes] | None = None, **headers: str,
) -> Got:  # fmt: skip
    """Send one request. The client disconnects as soon as ``leaves`` returns true for the response so far."""
    data = body if isinstance(body, bytes) else json.dumps(body or {"model": "m"}).encode()
    pieces = list(parts or [data])
    got, gone = Got(), asyncio.Event()

    async def receive():
        if pieces:
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}
        if leaves is not None and leaves(got):
            return {"type": "http.disconnect"}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message["type"] == "http.response.start":
            got.status = message["status"]
            got.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            got.body += message.get("body", b"")
            got.ended = not message.get("more_body", False)
        if leaves is not None and leaves(got):
            gone.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    await ProxyApp(gate)(scope_of(method, path, headers, len(data)), receive, send)
    return got


def ask(gate: AppState, body: object = None, **how) -> Got:
    return asyncio.run(asked(gate, body, **how))
