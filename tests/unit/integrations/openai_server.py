"""A model server on a loopback socket that records requests and answers by a function."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
Say = Callable[[Body], Any]
"""Function from the body of a request to an answer: an object, `Raw`, or a stream as a list of bytes."""


@dataclass(frozen=True, kw_only=True)
class Raw:
    """An answer that is not a whole chat completion."""

    status: int = 200
    content: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)


@dataclass
class Server:
    """Recorded requests of a server."""

    url: str = ""
    bodies: list[Body] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@contextmanager
def serving(say: Say, *, compressed: bool = False) -> Iterator[Server]:
    """Run a server that answers by the function, for the time of the block."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are two segments: the second would wait for an ACK

        def do_GET(self) -> None:
            server.paths.append(self.path)
            self._send(Raw(content=b'{"object":"list","data":[]}'))

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            server.paths.append(self.path)
            server.raw.append(raw)
            server.headers.append({name.lower(): text for name, text in self.headers.items()})
            server.bodies.append(json.loads(raw))
            given = say(server.bodies[-1])
            if isinstance(given, list):
                self._stream(given)
            else:
                self._send(given if isinstance(given, Raw) else Raw(content=json.dumps(given).encode()))

        def _send(self, answer: Raw) -> None:
            content = gzip.compress(answer.content) if compressed else answer.content
            self.send_response(answer.status)
            for name, text in answer.headers:
                self.send_header(name, text)
            if compressed:
                self.send_header("content-encoding", "gzip")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _stream(self, pieces: list[bytes]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for piece in filter(None, pieces):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            """Suppress the log on the terminal."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def completion(message: Body, *, finish: str | None = None) -> Body:
    """Return a whole chat completion of an assistant message."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, **message},
                "finish_reason": finish or ("tool_calls" if message.get("tool_calls") else "stop"),
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
        "x_unknown": {"kept": True},
    }


def say(text: str) -> Body:
    """Return an assistant message of text."""
    return {"content": text}


def call(name: str, id: str, **arguments: Any) -> Body:
    """Return an assistant message of one call."""
    return {
        "tool_calls": [
            {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        ]
    }


def chunks(message: Body, *, id: str = "chatcmpl-1", usage: bool = False) -> list[bytes]:
    """Return a chat completion as the events of a stream: text by words, call arguments in halves."""
    deltas: list[Body] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word + " "} for word in (message.get("content") or "").split()]
    for index, one in enumerate(message.get("tool_calls") or ()):
        text = one["function"]["arguments"]
        head = {"index": index, "id": one["id"], "type": "function"}
        deltas.append({"tool_calls": [{**head, "function": {**one["function"], "arguments": text[:4]}}]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text[4:]}}]})
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    made = [_chunk(id, [{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    made.append(_chunk(id, [{"index": 0, "delta": {}, "finish_reason": finish}]))
    if usage:
        made.append(_chunk(id, [], usage={"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}))
    return [*made, b"data: [DONE]\n\n"]


def _chunk(id: str, choices: list[Body], **more: Any) -> bytes:
    head = {"id": id, "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    return b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"
