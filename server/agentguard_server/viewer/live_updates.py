"""Change notifications for open pages: server-sent events (WHATWG HTML, "Server-sent events").

One task polls the store for all listeners, and only while there is a listener. A slow page loses no change:
each event names all runs that changed since the last event that the page received.
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
"""Overlap of polls, for rows that another machine committed late or with a slow clock."""
_ERROR_PAUSE_S: Final = 5.0

EventData = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class EventListener:
    """Open event stream of one page, with at most one pending event of each kind."""

    pending_events: dict[str, dict[str, Any]] = field(default_factory=dict)
    wakeup: asyncio.Event = field(default_factory=asyncio.Event)

    def push(self, event: str, data: EventData) -> None:
        """Queue an event; it replaces a pending event of the same kind, or is merged with it."""
        pending_data = self.pending_events.get(event)
        self.pending_events[event] = (
            dict(data) if pending_data is None or event != "runs" else _merge_runs_events(pending_data, data)
        )
        self.wakeup.set()


class EventHub:
    """Listeners of one application, and the task that polls the store for them.

    Args:
        store: the store to poll.
        tenant: tenant that owns the runs.
        poll_interval_s: seconds between two polls of the store.
        heartbeat_interval_s: seconds of silence after which a comment is sent, so that proxies keep the
            connection.
        read_load_progress: returns the progress of the file loader; None if there are no files to read.
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
        """End all streams, so that a stopping server does not wait for them; call it in the loop's thread."""
        self._closed = True
        for listener in self._listeners:
            listener.wakeup.set()

    async def listen(self, since: float | None = None) -> AsyncIterator[bytes]:
        """Return the stream of one page, beginning with the changes after ``since`` (epoch seconds).

        Raises:
            Overloaded: too many pages listen.
        """
        if len(self._listeners) >= MAX_LISTENERS:
            raise Overloaded(f"{MAX_LISTENERS} pages are open: close some of them")
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
                # after the first poll, or both would miss a row that is committed between them
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
                pending_events, listener.pending_events = listener.pending_events, {}
                for event, data in pending_events.items():
                    yield encode_event(event, data)
        finally:
            self._listeners.discard(listener)

    async def _poll_store(self) -> None:
        """Poll the store until there are no more listeners."""
        detector = self._store.open_change_detector()
        sent_progress: EventData | None = None
        try:
            while self._listeners and not self._closed:
                pause = self._poll_interval_s
                try:
                    if changes := await asyncio.to_thread(self._find_changes, detector):
                        self._broadcast("runs", changes)
                except AgentGuardError as error:
                    _LOG.info("the store cannot be read, pages wait: %s", error)
                    pause = max(pause, _ERROR_PAUSE_S)
                self._first_poll.set()
                progress = self._read_load_progress()
                if progress != sent_progress:
                    sent_progress = progress
                    self._broadcast("loading", progress or {})
                await asyncio.sleep(pause)
        finally:
            self._first_poll.set()
            await asyncio.to_thread(detector.close)
        if self._listeners and not self._closed:  # a listener was added after the last poll
            self._task = asyncio.create_task(self._poll_store())

    def _find_changes(self, detector: ChangeDetector) -> EventData | None:
        """Return the changes since the last poll; the overlap covers rows that became visible late."""
        if not detector.has_changed():
            return None
        changes = self._store.list_changes(self._since - _OVERLAP_S, tenant=self._tenant)
        if self._known_versions is None:  # earlier changes are read in _stream
            new_changes = [change for change in changes if change.updated_at > self._since]
            self._known_versions = {}
        else:
            new_changes = [
                change for change in changes if self._known_versions.get(change.run_id) != change.updated_at
            ]
        self._since = max([self._since, *(change.updated_at for change in changes)])
        floor = self._since - 2 * _OVERLAP_S
        self._known_versions = {
            id: updated_at for id, updated_at in self._known_versions.items() if updated_at > floor
        }
        self._known_versions |= {change.run_id: change.updated_at for change in changes}
        return _build_runs_event(new_changes) if new_changes else None

    async def _read_changes(self, since: float) -> tuple[SummaryChange, ...]:
        try:
            return await asyncio.to_thread(self._store.list_changes, since, tenant=self._tenant)
        except AgentGuardError:
            return ()

    def _broadcast(self, event: str, data: EventData) -> None:
        for listener in self._listeners:
            listener.push(event, data)


def encode_event(event: str, data: EventData) -> bytes:
    """Encode an event for the stream; its id is the point from which a client resumes."""
    lines = [f"event: {event}", f"data: {json.dumps(data)}"]
    if "version" in data:
        lines.insert(0, f"id: {data['version']!r}")
    return ("\n".join(lines) + "\n\n").encode()


def _build_runs_event(changes: Sequence[SummaryChange]) -> dict[str, Any]:
    return {
        "ids": [one.run_id for one in changes[:MAX_IDS]],
        "created": [one.created_at for one in changes[:MAX_IDS]],
        "more": len(changes) > MAX_IDS,
        "version": max(one.updated_at for one in changes),
    }


def _merge_runs_events(older: EventData, newer: EventData) -> dict[str, Any]:
    """Merge two events about runs."""
    created = dict(zip(newer["ids"], newer["created"], strict=True))
    created |= dict(zip(older["ids"], older["created"], strict=True))
    shown_runs = dict(list(created.items())[:MAX_IDS])
    has_more = older["more"] or newer["more"] or len(created) > MAX_IDS
    return {**newer, "ids": list(shown_runs), "created": list(shown_runs.values()), "more": has_more}
