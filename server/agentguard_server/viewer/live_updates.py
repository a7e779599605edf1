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
from agentguard.store.db.run_summary import SummaryChange
from agentguard.store.read.change_detection import ChangeDetector
from agentguard.store.store import Store

_LOG = logging.getLogger(__name__)

MAX_LISTENERS: Final = 64
MAX_IDS: Final = 50
_OVERLAP_S: Final = 10.0
"""How far back is looked for rows that another machine committed late, or whose clock is behind."""
_ERROR_PAUSE_S: Final = 5.0

EventData = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class EventListener:
    """A page: the events that wait for it, at most a few; older ones of a kind give way to newer."""

    pending_events: dict[str, dict[str, Any]] = field(default_factory=dict)
    wakeup: asyncio.Event = field(default_factory=asyncio.Event)

    def push(self, event: str, data: EventData) -> None:
        """Leave an event; what waits of the same kind becomes one with it."""
        held = self.pending_events.get(event)
        self.pending_events[event] = (
            dict(data) if held is None or event != "runs" else _merge_runs_events(held, data)
        )
        self.wakeup.set()


class EventHub:
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
        poll_interval_s: float = 1.0,
        heartbeat_interval_s: float = 15.0,
        read_load_progress: Callable[[], EventData | None] = lambda: None,
    ) -> None:
        self._store, self._tenant, self._read_load_progress = store, tenant, read_load_progress
        self._poll_interval_s, self._heartbeat_interval_s = poll_interval_s, heartbeat_interval_s
        self._listeners: set[EventListener] = set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._first_poll = asyncio.Event()
        self._known_versions: dict[str, float] | None = None
        self._since = time.time()

    def close(self) -> None:
        """End all streams, so that a server that stops does not wait for them. From the loop's thread."""
        self._closed = True
        for one in self._listeners:
            one.wakeup.set()

    async def listen(self, since: float | None = None) -> AsyncIterator[bytes]:
        """The stream of one page, from what changed after ``since`` (epoch seconds) on.

        Raises:
            Overloaded: too many pages are open.
        """
        if len(self._listeners) >= MAX_LISTENERS:
            raise Overloaded(f"{MAX_LISTENERS} pages listen already: close some")
        listener = EventListener()
        self._listeners.add(listener)
        if self._task is None or self._task.done():
            self._known_versions, self._since, self._first_poll = None, time.time(), asyncio.Event()
            self._task = asyncio.create_task(self._poll_store())
        return self._stream(listener, since)

    async def _stream(self, listener: EventListener, since: float | None) -> AsyncIterator[bytes]:
        try:
            yield b"retry: 3000\n\n"
            if since is not None:
                # Only after the first look: a row that shows between the two is old to neither.
                await self._first_poll.wait()
                if missed := await self._read_changes(since):
                    listener.push("runs", _build_runs_event(missed))
            while not self._closed:
                try:
                    await asyncio.wait_for(listener.wakeup.wait(), self._heartbeat_interval_s)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                listener.wakeup.clear()
                waiting, listener.pending_events = listener.pending_events, {}
                for event, data in waiting.items():
                    yield encode_event(event, data)
        finally:
            self._listeners.discard(listener)

    async def _poll_store(self) -> None:
        """Look at the store until nobody listens."""
        pulse = self._store.open_change_detector()
        told: EventData | None = None
        try:
            while self._listeners and not self._closed:
                pause = self._poll_interval_s
                try:
                    if found := await asyncio.to_thread(self._find_changes, pulse):
                        self._broadcast("runs", found)
                except AgentGuardError as error:
                    _LOG.info("the store cannot be read, pages wait: %s", error)
                    pause = max(pause, _ERROR_PAUSE_S)
                self._first_poll.set()
                now = self._read_load_progress()
                if now != told:
                    told = now
                    self._broadcast("loading", now or {})
                await asyncio.sleep(pause)
        finally:
            self._first_poll.set()
            await asyncio.to_thread(pulse.close)
        if self._listeners and not self._closed:  # a page came after the last look, and found this task
            self._task = asyncio.create_task(self._poll_store())

    def _find_changes(self, pulse: ChangeDetector) -> EventData | None:
        """What is new since the last look; rows that became visible late are found within the overlap."""
        if not pulse.has_changed():
            return None
        found = self._store.list_changes(self._since - _OVERLAP_S, tenant=self._tenant)
        if self._known_versions is None:  # what a page missed before it listened, it asks for itself
            new = [one for one in found if one.updated_at > self._since]
            self._known_versions = {}
        else:
            new = [one for one in found if self._known_versions.get(one.run_id) != one.updated_at]
        self._since = max([self._since, *(one.updated_at for one in found)])
        floor = self._since - 2 * _OVERLAP_S
        self._known_versions = {id: at for id, at in self._known_versions.items() if at > floor}
        self._known_versions |= {one.run_id: one.updated_at for one in found}
        return _build_runs_event(new) if new else None

    async def _read_changes(self, since: float) -> tuple[SummaryChange, ...]:
        try:
            return await asyncio.to_thread(self._store.list_changes, since, tenant=self._tenant)
        except AgentGuardError:
            return ()

    def _broadcast(self, event: str, data: EventData) -> None:
        for one in self._listeners:
            one.push(event, data)


def encode_event(event: str, data: EventData) -> bytes:
    """An event as the stream has it; its id is where to go on from after a break."""
    lines = [f"event: {event}", f"data: {json.dumps(data)}"]
    if "version" in data:
        lines.insert(0, f"id: {data['version']!r}")
    return ("\n".join(lines) + "\n\n").encode()


def _build_runs_event(found: Sequence[SummaryChange]) -> dict[str, Any]:
    return {
        "ids": [one.run_id for one in found[:MAX_IDS]],
        "created": [one.created_at for one in found[:MAX_IDS]],
        "more": len(found) > MAX_IDS,
        "version": max(one.updated_at for one in found),
    }


def _merge_runs_events(older: EventData, newer: EventData) -> dict[str, Any]:
    """Two events about runs as one."""
    created = dict(zip(newer["ids"], newer["created"], strict=True))
    created |= dict(zip(older["ids"], older["created"], strict=True))
    kept = dict(list(created.items())[:MAX_IDS])
    more = older["more"] or newer["more"] or len(created) > MAX_IDS
    return {**newer, "ids": list(kept), "created": list(kept.values()), "more": more}
