"""Timeout of tool calls.

After the timeout, an asynchronous tool is cancelled. A synchronous tool cannot be interrupted: it runs in a
thread with the caller's context variables, and the guard stops waiting for the thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

from agentguard.runtime.session import Session


class ToolTimeout(TimeoutError):
    """Tool call that the guard interrupted; the text is the result for the agent."""


def limit_call(session: Session, tool: str, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function that runs a tool, with the tool's timeout; without a timeout, the function itself.

    The returned function raises ToolTimeout after the timeout.
    """
    timeout_s = _get_timeout(session, tool)
    if timeout_s is None:
        return handler

    def call(request: Any) -> Any:
        future = _start_thread(handler, request)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise  # the tool itself timed out
            raise _build_timeout(session, tool, timeout_s) from None

    return call


def alimit_call(
    session: Session, tool: str, handler: Callable[[Any], Awaitable[Any]]
) -> Callable[[Any], Awaitable[Any]]:
    """Return the function that awaits a tool, with the tool's timeout, like `limit_call`."""
    timeout_s = _get_timeout(session, tool)
    if timeout_s is None:
        return handler

    async def call(request: Any) -> Any:
        try:
            async with asyncio.timeout(timeout_s) as scope:
                return await handler(request)
        except TimeoutError:
            if not scope.expired():
                raise  # the tool itself timed out
            raise _build_timeout(session, tool, timeout_s) from None

    return call


def _get_timeout(session: Session, tool: str) -> float | None:
    own = session.ledger.get_tool_effect(tool).timeout_s
    return session.config.tool_timeout_s if own is None else own


def _start_thread(handler: Callable[[Any], Any], request: Any) -> Future[Any]:
    future: Future[Any] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(handler, request))
        except BaseException as error:  # the waiting thread raises it
            future.set_exception(error)

    threading.Thread(target=run, name="agentguard-tool", daemon=True).start()
    return future


def _build_timeout(session: Session, tool: str, timeout_s: float) -> ToolTimeout:
    text = f"{tool} timed out: it did not return within {timeout_s:g} s and was interrupted."
    if session.ledger.has_effect(tool):
        text += " It is not known whether it took effect. Check this before you continue."
    return ToolTimeout(text)
