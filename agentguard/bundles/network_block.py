"""Block of the network for a sealed replay, by an audit hook of the interpreter.

The block follows the context: it includes tasks and threads that copy the context, and leaves the other
threads of the process alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

from agentguard.errors import ReplayMismatch

_EVENTS: Final = frozenset(
    {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg"}
)
_is_blocked: ContextVar[bool] = ContextVar("agentguard_network_block", default=False)


@contextmanager
def block_network() -> Iterator[None]:
    """Raise ReplayMismatch for each connection and name lookup inside the ``with`` block."""
    _add_audit_hook()
    token = _is_blocked.set(True)
    try:
        yield
    finally:
        _is_blocked.reset(token)


@cache
def _add_audit_hook() -> None:
    # The interpreter cannot remove a hook, so there is one for the process.
    sys.addaudithook(_check_event)


def _check_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _EVENTS and _is_blocked.get():
        raise ReplayMismatch(f"{event} {arguments[1:] or arguments}: a sealed replay opens no connection")
