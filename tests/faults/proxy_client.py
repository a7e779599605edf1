"""Minimal HTTP client on raw sockets, and a strict reader of answers.

Neither shares code with the proxy, so that an error in the proxy's parser cannot hide here.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, Literal

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
}
TOOLS = {
    "chat": {"type": "function", "function": {"name": "book", "parameters": {"type": "object"}}},
    "responses": {"type": "function", "name": "book", "parameters": {"type": "object"}},
    "messages": {"name": "book", "input_schema": {"type": "object"}},
}


class Breach(AssertionError):
    """An answer that is neither complete nor one typed error."""


@dataclass(slots=True, kw_only=True)
class Got:
    """Response: `end` is how it ended; ``whole`` is set only if the HTTP framing marks it as complete."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    end: Literal["whole", "cut", "reset", "late", "refused"] = "cut"
    seconds: float = 0.0

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


def body_for(
    api: str, *, stream: bool = False, text: str = "hello", tools: bool = False, **more: Any
) -> bytes:
    value: dict[str, Any] = {"model": "m", **more}
    if stream:
        value["stream"] = True
    if api in ("chat", "messages"):
        value["messages"] = [{"role": "user", "content": text}]
    else:
        value["prompt" if api == "completions" else "input"] = text
    if api == "messages":
        value["max_tokens"] = 100
    if tools:
        value["tools"] = [TOOLS[api]]
    return json.dumps(value).encode()


def request_bytes(
    path: str, body: bytes = b"", *, method: str = "POST", headers: tuple[tuple[str, str], ...] = ()
) -> bytes:
    head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    if not any(name.lower() == "host" for name, _ in headers):
        head.append("host: 127.0.0.1")
    head += [f"content-length: {len(body)}", "connection: close"]
    return "\r\n".join((*head, "", "")).encode() + body


async def ask(port: int, path: str, body: bytes = b"", *, seconds: float = 30.0, **options: Any) -> Got:
    """Send one request on a new connection and read the answer to its end."""
    return await send(port, request_bytes(path, body, **options), seconds=seconds)


async def send(port: int, data: bytes, *, seconds: float = 30.0) -> Got:
    """Send any bytes and read the first answer."""
    got, began = Got(), time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            try:
                writer.write(data)
                await _read(reader, got)
            finally:
                writer.close()
    except TimeoutError:
        got.end = "late"
    except ConnectionRefusedError:
        got.end = "refused"
    except (ConnectionError, BrokenPipeError):
        got.end = "reset"
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        got.end = "cut"
    got.seconds = time.monotonic() - began
    return got


async def _read(reader: asyncio.StreamReader, got: Got) -> None:
    status = 100
    while status < 200:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head[:-4].split("\r\n")
        status = int(first.split(" ")[1])
    got.status = status
    got.headers = [(n.lower(), v.strip()) for n, _, v in (line.partition(":") for line in lines)]
    if "chunked" in (got.header("transfer-encoding") or ""):
        parts = bytearray()
        try:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                parts += await reader.readexactly(size)
                await reader.readexactly(2)
            await reader.readexactly(2)
        finally:
            got.body = bytes(parts)
    elif (length := got.header("content-length")) is not None:
        got.body = await reader.readexactly(int(length))
    else:
        got.body = await reader.read(-1)
    got.end = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A complete answer with its content, or one typed error with its code."""

    said: str | None = None
    error: str | None = None
    status: int = 200


def outcome(api: str, got: Got, *, stream: bool) -> Outcome:
    """Return the outcome of an answer. Raises Breach if it is neither complete nor one typed error."""
    if got.end != "whole":
        raise Breach(f"{got.end} after {got.seconds:.1f} s, status {got.status}: {got.body[-300:]!r}")
    if got.status != 200:
        return Outcome(error=_error(api, _object(got.body)), status=got.status)
    if stream and api != "embeddings":
        if not (got.header("content-type") or "").startswith("text/event-stream"):
            raise Breach(f"a stream that is none: {got.headers}")
        return _streamed(api, got.body)
    return Outcome(said=_whole(api, _object(got.body)))


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        raise Breach(f"no JSON: {data[:300]!r}") from None
    if not isinstance(value, dict):
        raise Breach(f"no object: {data[:300]!r}")
    return value


def _error(api: str, value: dict[str, Any]) -> str:
    error = value.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("message"), str) or not error.get("type"):
        raise Breach(f"no typed error: {value}")
    if (api == "messages") != (value.get("type") == "error"):
        raise Breach(f"an error of another API: {value}")
    return str(error.get("code") or error["type"])


def _whole(api: str, value: dict[str, Any]) -> str:
    try:
        if api == "chat":
            message = value["choices"][0]["message"]
            calls = message.get("tool_calls")
            return calls[0]["function"]["arguments"] if calls else message["content"]
        if api == "completions":
            return value["choices"][0]["text"]
        if api == "responses":
            if value["status"] != "completed":
                raise Breach(f"not completed: {value}")
            item = value["output"][0]
            return item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        if api == "messages":
            block = value["content"][0]
            return json.dumps(block["input"]) if block["type"] == "tool_use" else block["text"]
        return json.dumps(value["data"][0]["embedding"])
    except (KeyError, IndexError, TypeError):
        raise Breach(f"no answer of {api}: {value}") from None


def _streamed(api: str, body: bytes) -> Outcome:
    if body and not body.endswith(b"\n\n"):
        raise Breach(f"the stream ends inside an event: {body[-300:]!r}")
    said: list[str] = []
    over, error = False, None
    for event in body.split(b"\n\n"):
        lines = [line for line in event.split(b"\n") if line and not line.startswith(b":")]
        if not lines:
            continue
        if over or error is not None:
            raise Breach(f"something after the end: {event!r}")
        data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        if any(not line.startswith((b"data:", b"event:", b"id:")) for line in lines):
            raise Breach(f"no event: {event!r}")
        if data == b"[DONE]":
            over = True
            continue
        value = _object(data)
        if "error" in value or value.get("type") == "error":
            error = _error(api, value) if api != "responses" else str(value["code"])
            continue
        over = _event(api, value, said) or over
    if error is None and not over:
        raise Breach(f"a stream that is silently short: {body[-300:]!r}")
    return Outcome(said="".join(said)) if error is None else Outcome(error=error)


def _event(api: str, value: dict[str, Any], said: list[str]) -> bool:
    """Read one event; return whether it is the last event of the API's stream."""
    if api in ("chat", "completions"):
        for choice in value["choices"]:
            delta = choice.get("delta", choice)
            calls = delta.get("tool_calls") or []
            said.append(delta.get("content") or delta.get("text") or "")
            said.extend(call["function"].get("arguments", "") for call in calls)
        return False
    if api == "responses":
        if value["type"].endswith(".delta"):
            said.append(value["delta"])
        return value["type"] in ("response.completed", "response.failed", "response.incomplete")
    delta = value.get("delta", {})
    said.append(delta.get("text") or delta.get("partial_json") or "")
    return value["type"] == "message_stop"
