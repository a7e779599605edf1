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

Body = Generator[Any, Any, R]


@dataclass(frozen=True, slots=True)
class Each:
    """Several requests that a body yields together: one after the other, or side by side where they are
    awaited.

    What came of each is sent as a list in their order; what one of them raised stands in its place.
    """

    requests: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Aside:
    """Work of the guard's own that may take long, a judge's for instance: where a body is awaited, a thread
    does it, so that nobody else waits."""

    work: Callable[[], Any]


def run(body: Body[R], do: Callable[[Any], Any]) -> R:
    """Run a body whose requests are done at once."""
    try:
        asked = next(body)
        while True:
            try:
                given = _done(asked, do)
            except BaseException as error:
                asked = body.throw(error)
            else:
                asked = body.send(given)
    except StopIteration as end:
        made: R = end.value
        return made


async def arun(body: Body[R], do: Callable[[Any], Awaitable[Any]]) -> R:
    """As `run`, with requests that are awaited; a cancellation is raised in the body, too."""
    try:
        asked = next(body)
        while True:
            try:
                given = await _adone(asked, do)
            except BaseException as error:
                asked = body.throw(error)
            else:
                asked = body.send(given)
    except StopIteration as end:
        made: R = end.value
        return made


def _done(asked: Any, do: Callable[[Any], Any]) -> Any:
    if isinstance(asked, Aside):
        return asked.work()
    return _each(asked, do) if isinstance(asked, Each) else do(asked)


async def _adone(asked: Any, do: Callable[[Any], Awaitable[Any]]) -> Any:
    if isinstance(asked, Aside):
        import asyncio

        return await asyncio.to_thread(asked.work)
    return await (_aeach(asked, do) if isinstance(asked, Each) else do(asked))


def _each(asked: Each, do: Callable[[Any], Any]) -> list[Any]:
    made: list[Any] = []
    for request in asked.requests:
        try:
            made.append(do(request))
        except Exception as error:  # the body says what that means
            made.append(error)
    return made


async def _aeach(asked: Each, do: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    import asyncio

    async def one(request: Any) -> Any:
        return await do(request)

    return await asyncio.gather(*(one(request) for request in asked.requests), return_exceptions=True)


def call(asked: Callable[[], Any]) -> Any:
    """For bodies that yield what is to be called: what it returns, or gives to be awaited."""
    return asked()
