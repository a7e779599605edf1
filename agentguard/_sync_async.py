"""One body for a synchronous and an asynchronous function, so that the two cannot drift apart.

The body is a generator. It yields what is to be done outside, a request to a model for instance, and is sent
what came of it; what that raised is raised in the body. The function around it says how it is done, at once
or awaited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

R = TypeVar("R")

Effects = Generator[Any, Any, R]


@dataclass(frozen=True, slots=True)
class Gather:
    """Several requests that a body yields together: one after the other, or side by side where they are
    awaited.

    What came of each is sent as a list in their order; what one of them raised stands in its place.
    """

    requests: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RunInThread:
    """Work of the guard's own that may take long, a judge's for instance: where a body is awaited, a thread
    does it, so that nobody else waits."""

    work: Callable[[], Any]


def run_sync(body: Effects[R], handle_request: Callable[[Any], Any]) -> R:
    """Run a body whose requests are done at once."""
    try:
        asked = next(body)
        while True:
            try:
                given = _handle(asked, handle_request)
            except BaseException as error:
                asked = body.throw(error)
            else:
                asked = body.send(given)
    except StopIteration as end:
        made: R = end.value
        return made


async def run_async(body: Effects[R], handle_request: Callable[[Any], Awaitable[Any]]) -> R:
    """As `run`, with requests that are awaited; a cancellation is raised in the body, too."""
    try:
        asked = next(body)
        while True:
            try:
                given = await _ahandle(asked, handle_request)
            except BaseException as error:
                asked = body.throw(error)
            else:
                asked = body.send(given)
    except StopIteration as end:
        made: R = end.value
        return made


def _handle(request: Any, handle_request: Callable[[Any], Any]) -> Any:
    if isinstance(request, RunInThread):
        return request.work()
    return _handle_all(request, handle_request) if isinstance(request, Gather) else handle_request(request)


async def _ahandle(request: Any, handle_request: Callable[[Any], Awaitable[Any]]) -> Any:
    if isinstance(request, RunInThread):
        import asyncio

        return await asyncio.to_thread(request.work)
    return await (
        _ahandle_all(request, handle_request) if isinstance(request, Gather) else handle_request(request)
    )


def _handle_all(gather: Gather, handle_request: Callable[[Any], Any]) -> list[Any]:
    made: list[Any] = []
    for request in gather.requests:
        try:
            made.append(handle_request(request))
        except Exception as error:  # the body says what that means
            made.append(error)
    return made


async def _ahandle_all(gather: Gather, handle_request: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    import asyncio

    async def one(request: Any) -> Any:
        return await handle_request(request)

    return await asyncio.gather(*(one(request) for request in gather.requests), return_exceptions=True)


def call(function: Callable[[], Any]) -> Any:
    """For bodies that yield what is to be called: what it returns, or gives to be awaited."""
    return function()
