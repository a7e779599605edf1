"""What changed, told to every page that is open: server-sent events (WHATWG HTML, "Server-sent events").

However many pages listen, one task looks at the store, and only while one does. A page that does not keep up
misses what it can read from the store anyway: each event names what changed since the last one it was sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agentguard.errors import AgentGuardError, Overloaded
from agentguard.store.overview import Change
from agentguard.store.pulse import Pulse
from agentguard.store.store import Store

_LOG = logging.getLogger(__name__)

MOST_LISTENERS: Final = 64
MOST_IDS: Final = 50
_OVERLAP_S: Final = 10.0
"""How far back is looked for rows that another machine committed late, or whose clock is behind."""
_TROUBLE_S: Final = 5.0

Notice = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Listener:
    """A page: the events that wait for it, at most a few; older ones of a kind give way to newer."""

    waiting: dict[str, dict[str, Any]] = field(default_factory=dict)
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, event: str, data: Notice) -> None:
        """Leave an event; what waits of the same kind becomes one with it."""
        held = self.waiting.get(event)
        self.waiting[event] = dict(data) if held is None or event != "runs" else _together(held, data)
        self.woken.set()


class Hub:
    """The listeners of one application, and the task that tells them.

    Args:
        store: whose runs are watched.
        tenant: of whom.
        every_s: seconds between two looks at the store.
        beat_s: seconds after which a quiet connection is sent a comment, so that nothing between ends it.
        loading: what is being read into the store now, if anything is.
    """

    def __init__(
        self,
        store: Store,
        *,
        tenant: str = "",
        every_s: float = 1.0,
        beat_s: float = 15.0,
        loading: Callable[[], Notice | None] = lambda: None,
    ) -> None:
        self._store, self._tenant, self._loading = store, tenant, loading
        self._every_s, self._beat_s = every_s, beat_s
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._based = asyncio.Event()
        self._seen: dict[str, float] | None = None
        self._since = time.time()

    def close(self) -> None:
        """End all streams, so that a server that stops does not wait for them. From the loop's thread."""
        self._closed = True
        for one in self._listeners:
            one.woken.set()

    async def listen(self, since: float | None = None) -> AsyncIterator[bytes]:
        """The stream of one page, from what changed after ``since`` (epoch seconds) on.

        Raises:
            Overloaded: too many pages are open.
        """
        if len(self._listeners) >= MOST_LISTENERS:
            raise Overloaded(f"{MOST_LISTENERS} pages listen already: close some")
        listener = Listener()
        self._listeners.add(listener)
        if self._task is None or self._task.done():
            self._seen, self._since, self._based = None, time.time(), asyncio.Event()
            self._task = asyncio.create_task(self._watch())
        return self._stream(listener, since)

    async def _stream(self, listener: Listener, since: float | None) -> AsyncIterator[bytes]:
        try:
            yield b"retry: 3000\n\n"
            if since is not None:
                # Only after the first look: a row that shows between the two is old to neither.
                await self._based.wait()
                if missed := await self._changes(since):
                    listener.tell("runs", _runs(missed))
            while not self._closed:
                try:
                    await asyncio.wait_for(listener.woken.wait(), self._beat_s)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                listener.woken.clear()
                waiting, listener.waiting = listener.waiting, {}
                for event, data in waiting.items():
                    yield encoded(event, data)
        finally:
            self._listeners.discard(listener)

    async def _watch(self) -> None:
        """Look at the store until nobody listens."""
        pulse = self._store.pulse()
        told: Notice | None = None
        try:
            while self._listeners and not self._closed:
                pause = self._every_s
                try:
                    if found := await asyncio.to_thread(self._look, pulse):
                        self._tell("runs", found)
                except AgentGuardError as error:
                    _LOG.info("the store cannot be read, pages wait: %s", error)
                    pause = max(pause, _TROUBLE_S)
                self._based.set()
                now = self._loading()
                if now != told:
                    told = now
                    self._tell("loading", now or {})
                await asyncio.sleep(pause)
        finally:
            self._based.set()
            await asyncio.to_thread(pulse.close)
        if self._listeners and not self._closed:  # a page came after the last look, and found this task
            self._task = asyncio.create_task(self._watch())

    def _look(self, pulse: Pulse) -> Notice | None:
        """What is new since the last look; rows that became visible late are found within the overlap."""
        if not pulse.moved():
            return None
        found = self._store.changes(self._since - _OVERLAP_S, tenant=self._tenant)
        if self._seen is None:  # what a page missed before it listened, it asks for itself
            new = [one for one in found if one.updated_at > self._since]
            self._seen = {}
        else:
            new = [one for one in found if self._seen.get(one.run_id) != one.updated_at]
        self._since = max([self._since, *(one.updated_at for one in found)])
        floor = self._since - 2 * _OVERLAP_S
        self._seen = {id: at for id, at in self._seen.items() if at > floor}
        self._seen |= {one.run_id: one.updated_at for one in found}
        return _runs(new) if new else None

    async def _changes(self, since: float) -> tuple[Change, ...]:
        try:
            return await asyncio.to_thread(self._store.changes, since, tenant=self._tenant)
        except AgentGuardError:
            return ()

    def _tell(self, event: str, data: Notice) -> None:
        for one in self._listeners:
            one.tell(event, data)


def encoded(event: str, data: Notice) -> bytes:
    """An event as the stream has it; its id is where to go on from after a break."""
    lines = [f"event: {event}", f"data: {json.dumps(data)}"]
    if "version" in data:
        lines.insert(0, f"id: {data['version']!r}")
    return ("\n".join(lines) + "\n\n").encode()


def _runs(found: Sequence[Change]) -> dict[str, Any]:
    return {
        "ids": [one.run_id for one in found[:MOST_IDS]],
        "created": [one.created_at for one in found[:MOST_IDS]],
        "more": len(found) > MOST_IDS,
        "version": max(one.updated_at for one in found),
    }


def _together(older: Notice, newer: Notice) -> dict[str, Any]:
    """Two events about runs as one."""
    created = dict(zip(newer["ids"], newer["created"], strict=True))
    created |= dict(zip(older["ids"], older["created"], strict=True))
    kept = dict(list(created.items())[:MOST_IDS])
    more = older["more"] or newer["more"] or len(created) > MOST_IDS
    return {**newer, "ids": list(kept), "created": list(kept.values()), "more": more}
