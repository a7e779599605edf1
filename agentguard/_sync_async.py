"""Shared body of a synchronous and an asynchronous function, so that the two cannot diverge.

The body is a generator. It yields requests, for instance to a model, and receives the results; an exception
of a request is raised in the body. `run_sync` executes each request in the calling thread; `run_async` awaits
it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

R = TypeVar("R")

SharedBody = Generator[Any, Any, R]
"""Generator that yields requests, receives their results, and returns the result of the function."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Several requests that a body yields together; `run_async` executes them concurrently.

    The body receives a list with the result of each request, or its exception, in the same order.
    """

    requests: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RunInThread:
    """Function of the guard that may take long, such as a judgement; `run_async` calls it in a thread."""

    work: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Request to wait ``seconds``."""

    seconds: float


def run_sync(body: SharedBody[R], handle_request: Callable[[Any], Any]) -> R:
    """Run a body and return its result; ``handle_request`` executes each request."""
    try:
        request = next(body)
        while True:
            try:
                response = _handle(request, handle_request)
            except BaseException as error:
                request = body.throw(error)
            else:
                request = body.send(response)
    except StopIteration as end:
        result: R = end.value
        return result


async def run_async(body: SharedBody[R], handle_request: Callable[[Any], Awaitable[Any]]) -> R:
    """Run a body like `run_sync`, but await each request; a cancellation is raised in the body, too."""
    try:
        request = next(body)
        while True:
            try:
                response = await _ahandle(request, handle_request)
            except BaseException as error:
                request = body.throw(error)
            else:
                request = body.send(response)
    except StopIteration as end:
        result: R = end.value
        return result


def _handle(request: Any, handle_request: Callable[[Any], Any]) -> Any:
    if isinstance(request, RunInThread):
        return request.work()
    if isinstance(request, Sleep):
        return time.sleep(request.seconds)
    return _handle_all(request, handle_request) if isinstance(request, Gather) else handle_request(request)


async def _ahandle(request: Any, handle_request: Callable[[Any], Awaitable[Any]]) -> Any:
    if isinstance(request, RunInThread):
        import asyncio

        return await asyncio.to_thread(request.work)
    if isinstance(request, Sleep):
        import asyncio

        return await asyncio.sleep(request.seconds)
    return await (
        _ahandle_all(request, handle_request) if isinstance(request, Gather) else handle_request(request)
    )


def _handle_all(gather: Gather, handle_request: Callable[[Any], Any]) -> list[Any]:
    results: list[Any] = []
    for request in gather.requests:
        try:
            results.append(handle_request(request))
        except Exception as error:  # the body decides how to handle it
            results.append(error)
    return results


async def _ahandle_all(gather: Gather, handle_request: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    import asyncio

    async def one(request: Any) -> Any:
        return await handle_request(request)

    return await asyncio.gather(*(one(request) for request in gather.requests), return_exceptions=True)


def call(function: Callable[[], Any]) -> Any:
    """Call a function that a body yields as its request; use it as ``handle_request``."""
    return function()
