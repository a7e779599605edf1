"""A tiny real model as the agent of a test: a real server decodes under masks that choose its words.

A base model of 270 million parameters does not act sensibly by itself. Before each model call, a function
reads
the model's input and returns the texts that the server may produce (``structured_outputs``, enforced by vLLM
on
its logits). This simulates a model that follows corrections. Decoding, parsing of tool calls, usage,
streaming
and ids are the server's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

TASK = "Book seat 4."
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "name": "find",
        "description": "Find a seat.",
        "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
    },
    {
        "name": "book",
        "description": "Book a seat.",
        "parameters": {"type": "object", "properties": {"seat": {"type": "integer"}}},
    },
)
BESIDE, DONE = "Have a nice trip!", "Seat 4 is booked."


def call(name: str, **arguments: Any) -> str:
    """Return a tool call in the format of the server's parser (hermes)."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def allowed(told: list[str], results: list[str]) -> list[str]:
    """Return the texts that the model may produce, given the guard's hints and the tool results.

    The model begins with a tool that does not exist. After the first hint, it repeats one search. After the
    second
    hint, it books a seat and gives a wrong answer. After the rejection of this answer, it books again, and
    finally
    states that the seat is booked.
    """
    everything = " ".join(told)
    booked = any("is yours" in result for result in results)
    if "acceptance" in everything:
        return [DONE] if booked or "last answer was rejected" in everything else [call("book", seat=4)]
    if not told:
        return [call("fly", to="aisle")]
    if len(told) == 1:
        return [call("find", where="aisle")]
    return [BESIDE] if booked else [call("book", seat=4)]


def texts(items: list[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the guard's hints and the tool results in a request of either API."""
    told, results = [], []
    for item in items:
        content = item.get("content")
        if item.get("role") == "user" and isinstance(content, str) and content.startswith("[guard]"):
            told.append(content)
        elif item.get("role") == "tool":
            results.append(str(content))
        elif item.get("type") == "function_call_output":
            results.append(str(item["output"]))
    return told, results


class Steering:
    """Transport below the guard: reads each request as the model gets it, and masks the answer."""

    def __init__(self, choose: Callable[[list[str], list[str]], list[str]] = allowed) -> None:
        self._choose = choose
        self.seen: list[list[Any]] = []

    def masked(self, request: httpx2.Request) -> httpx2.Request:
        """Return the request with the mask."""
        body = json.loads(request.content)
        given = body.get("messages") or body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        self.seen.append(items)
        body["structured_outputs"] = {"choice": self._choose(*texts(items))}
        kept = [pair for pair in request.headers.raw if pair[0].lower() != b"content-length"]
        return httpx2.Request(request.method, request.url, headers=kept, content=json.dumps(body).encode())


class Steered(Steering, httpx2.BaseTransport):
    """Transport for the guard's ``inner``."""

    def __init__(self) -> None:
        super().__init__()
        self._inner = httpx2.HTTPTransport()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._inner.handle_request(self.masked(request))

    def close(self) -> None:
        self._inner.close()


class AsyncSteered(Steering, httpx2.AsyncBaseTransport):
    """Asynchronous `Steered`."""

    def __init__(self) -> None:
        super().__init__()
        self._inner = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._inner.handle_async_request(self.masked(request))

    async def aclose(self) -> None:
        await self._inner.aclose()
