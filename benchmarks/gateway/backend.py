"""Model endpoint that answers at once: 500 bytes of JSON, a stream of 20 or 1,000 events, or a tool call.

Run: python benchmarks/gateway/backend.py PORT. The endpoint has almost no cost, so that the measured cost is
that of the gateway. If the request asks for a stream, the answer is a stream. If it has tools, the answer
calls the first tool. ``metadata`` selects a long stream (``events``), or one turn of a run: its number from 0
(``turn``) and the number of turns (``turns``).
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

import httptools
import uvloop

CHUNKS = 20


def _completion(message: dict[str, Any], finish: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": "mock",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": {"prompt_tokens": 400, "completion_tokens": 40, "total_tokens": 440},
    }


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    chunk = {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": "mock",
        "choices": [choice],
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


PLACES = ("Brig", "Milan", "Genoa", "Pisa", "Rome", "Naples")


def build_answer(turn: int) -> str:
    """Return the answer of a turn, from 1 on; `load.lua` sends it back in the following turns."""
    return (
        f"The next train to {PLACES[turn - 1]} leaves at {8 + turn}:1{turn} from platform {3 + turn}. "
        f"You change once, and have {10 + turn} minutes for that. There are free seats in both classes, "
        "and the dining car of that train is open."
    )


CALL = {
    "id": "call_0123456789",
    "type": "function",
    "function": {"name": "find_trains", "arguments": '{"from": "Bern", "to": "Genoa", "after": "09:00"}'},
}


def _answer(value: dict[str, Any]) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


PLAIN = [
    _answer(_completion({"role": "assistant", "content": build_answer(turn)}, "stop")) for turn in range(1, 7)
]
TOOL = _answer(_completion({"role": "assistant", "content": None, "tool_calls": [CALL]}, "tool_calls"))
MODELS = _answer({"object": "list", "data": [{"id": "mock", "object": "model", "owned_by": "mock"}]})
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
WORDS = [_chunk({"role": "assistant", "content": ""})] + [
    _chunk({"content": " word"}) for _ in range(CHUNKS - 3)
]
ENDING = [_chunk({}, "stop"), b"data: [DONE]\n\n"]
STREAM = [_framed(event) for event in [*WORDS, *ENDING]]
_PART = {"index": 0, **CALL, "function": {"name": "find_trains", "arguments": ""}}
_ARGUMENTS = [CALL["function"]["arguments"][at : at + 10] for at in range(0, 50, 10)]  # type: ignore[index]
CALLED = [
    _framed(event)
    for event in [
        *WORDS[:8],
        _chunk({"tool_calls": [_PART]}),
        *(_chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]}) for part in _ARGUMENTS),
        _chunk({}, "tool_calls"),
        b"data: [DONE]\n\n",
    ]
]


LONG_STREAM = [_framed(event) for event in [*WORDS[:1], *[WORDS[1]] * 997, *ENDING]]
MAX_TURNS = 64


def build_call(turn: int) -> dict[str, Any]:
    """Return the tool call of one turn of a run; no turn repeats the call of another."""
    arguments = json.dumps({"from": "Bern", "to": f"stop {turn}", "after": f"{turn % 24:02}:00"})
    return {
        "id": f"call_{turn:06}",
        "type": "function",
        "function": {"name": "find_trains", "arguments": arguments},
    }


RUN_CALLS = [
    _answer(
        _completion({"role": "assistant", "content": None, "tool_calls": [build_call(turn)]}, "tool_calls")
    )
    for turn in range(MAX_TURNS)
]
_RUN_MARK = re.compile(rb'"metadata": ?\{"turn": ?"(\d+)", ?"turns": ?"(\d+)"')


def _answer_run(body: bytes) -> bytes | None:
    """Return the answer of one turn of a run; None if the request is not part of one."""
    mark = _RUN_MARK.search(body, max(0, len(body) - 2000)) or _RUN_MARK.search(body)
    if mark is None:
        return None
    turn, turns = int(mark[1]), int(mark[2])
    return PLAIN[0] if turn + 1 == turns else RUN_CALLS[turn]


def _turn(body: bytes) -> int:
    """Return the number of earlier turns of the conversation, from its last message."""
    at = body.rfind(b"Turn ")
    return 0 if at < 0 else body[at + 5] - ord("0")


class Served(asyncio.Protocol):
    """One connection; each event of a stream is a separate write, as in model servers."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        tools = b'"tools"' in body
        if b'"stream": true' in body or b'"stream":true' in body:
            self._transport.write(HEAD)
            for event in CALLED if tools else LONG_STREAM if b'"events"' in body else STREAM:
                self._transport.write(event)
            self._transport.write(b"0\r\n\r\n")
        elif self._url.endswith(b"/models"):
            self._transport.write(MODELS)
        else:
            self._transport.write((_answer_run(body) or TOOL) if tools else PLAIN[_turn(body)])


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Served, "127.0.0.1", port, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
