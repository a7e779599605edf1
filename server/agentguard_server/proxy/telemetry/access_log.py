"""Logs: a line of JSON for each request and each event, of fields that are on a list and no others.

A key, a prompt or an answer gets into a log by way of a message that somebody formats. So nothing is written
but the fields in `FIELDS`, whose values are numbers, names of ours, or short texts without what looks like a
secret; of other packages' messages only the place is kept that they came from. Bodies are written where
``contents`` asks for them, without what looks like a secret.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import orjson

from agentguard.errors import AgentGuardError
from agentguard.resilience.events import EventKind, ResilienceEvent
from agentguard.trajectory.redaction import Redactor
from agentguard_server.proxy.error_summary import error_location
from agentguard_server.proxy.hooks import CompletedRequest
from agentguard_server.proxy.telemetry.guard_headers import run_of
from agentguard_server.proxy.telemetry.log_writer import BackgroundLogWriter
from agentguard_server.proxy.telemetry.options import Level, LogsOptions

FIELDS: Final = frozenset(
    {
        *("time", "level", "event", "worker", "logger", "file", "line", "place"),
        *(
            "id",
            "method",
            "path",
            "api",
            "model",
            "tenant",
            "stream",
            "status",
            "complete",
            "replica",
            "seconds",
        ),
        *("first_s", "error", "code", "run", "guarded", "notes", "request", "response"),
        *("source", "target", "reason", "attempt", "port", "workers", "version", "what", "lost", "replicas"),
    }
)
"""All that a line may hold."""

_LEVELS: Final[Mapping[Level, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_LOUD: Final = frozenset({EventKind.BREAKER, EventKind.EJECT, EventKind.PANIC, EventKind.READMIT})
_WARNED: Final = frozenset(
    {EventKind.GAVE_UP, EventKind.SHED, EventKind.STRAY, EventKind.STALL, EventKind.CUT}
)
_OURS: Final = ("agentguard", "agentguard_server")
_LONGEST: Final = 300
_REDACTOR: Final = Redactor()


class Logs:
    """A `Recorder` and an observer of events, and where the logs of Python's ``logging`` go.

    Args:
        options: what is written, and where to.
        worker: number of this process.
    """

    def __init__(self, options: LogsOptions | None = None, *, worker: int = 0) -> None:
        self.options = options or LogsOptions()
        self.lines = BackgroundLogWriter(self.options.to, self.options.queue)
        self._worker, self._least = worker, _LEVELS[self.options.level]
        self._access = self.options.access and self._least <= _LEVELS["info"]
        self._handler = Bridge(self.lines, worker)

    def record(self, recorded: CompletedRequest) -> None:
        """A line about a request."""
        if not self._access:
            return
        asked = recorded.asked
        line: dict[str, Any] = {
            "time": _now(),
            "level": "info",
            "event": "request",
            "worker": self._worker,
            "id": asked.id,
            "method": asked.method,
            "path": short(asked.target.partition("?")[0]),
            "api": asked.api,
            "model": short(asked.model),
            "tenant": asked.tenant,
            "stream": asked.stream,
            "status": recorded.status,
            "complete": recorded.complete,
            "replica": recorded.replica,
            "seconds": round(recorded.seconds, 6),
            "first_s": None if recorded.first_s is None else round(recorded.first_s, 6),
        }
        if recorded.error:
            line["error"] = recorded.error
        if asked.run or recorded.guarded:
            line["run"], line["guarded"] = short(run_of(recorded.did) or asked.run), recorded.guarded
        if recorded.notes:
            line["notes"] = {short(name): short(value) for name, value in recorded.notes}
        if self.options.contents:
            line["request"] = self._content(asked.body)
            line["response"] = self._content(recorded.answer)
        self.lines.put(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def __call__(self, event: ResilienceEvent) -> None:
        """A line about an event of the pipeline."""
        level: Level = "warning" if event.kind in _LOUD | _WARNED else "debug"
        if event.kind is EventKind.READMIT:
            level = "info"
        self.tell(
            level,
            event.kind.value,
            source=event.source,
            target=event.target,
            reason=event.reason,
            attempt=event.attempt,
            seconds=round(event.seconds, 6),
        )

    def tell(self, level: Level, event: str, **fields: Any) -> None:
        """A line about something else; fields that are not in `FIELDS` are left out."""
        if _LEVELS[level] < self._least:
            return
        line = {"time": _now(), "level": level, "event": event, "worker": self._worker}
        line |= {name: _plain(value) for name, value in fields.items() if name in FIELDS and value != ""}
        self.lines.put(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def install(self) -> None:
        """Take what Python's ``logging`` is told, in place of all handlers there are."""
        root = logging.getLogger()
        for handler in root.handlers[:]:
            root.removeHandler(handler)
        root.addHandler(self._handler)
        root.setLevel(self._least)

    def close(self) -> None:
        """Write what waits, and let go of ``logging``."""
        logging.getLogger().removeHandler(self._handler)
        self.lines.close()

    def _content(self, body: bytes) -> str:
        most = self.options.most_chars
        text = body[: 4 * most].decode("utf-8", "replace")
        # A secret that is cut in two is none that can be found: it is looked for first.
        return _REDACTOR.redact_text(text)[:most]


class Bridge(logging.Handler):
    """What is told to Python's ``logging``, as lines.

    Messages of ours are safe, as errors are. What others write may hold anything: of it the place is kept,
    and the kind of the error.
    """

    def __init__(self, lines: BackgroundLogWriter, worker: int) -> None:
        super().__init__()
        self._lines, self._worker = lines, worker

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line. Never raises."""
        try:
            self._lines.put(orjson.dumps(self._line(record), option=orjson.OPT_APPEND_NEWLINE))
        except Exception:  # a record that cannot be written must not fail what it tells of
            self._lines.lost += 1

    def _line(self, record: logging.LogRecord) -> dict[str, Any]:
        ours = record.name.partition(".")[0] in _OURS
        line: dict[str, Any] = {
            "time": _now(record.created),
            "level": record.levelname.lower(),
            "event": short(record.getMessage()) if ours else "log",
            "worker": self._worker,
            "logger": short(record.name),
        }
        if not ours:
            line["file"], line["line"] = short(record.filename), record.lineno
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line["error"] = type(error).__name__
            line["place"] = error_location(error)
            if isinstance(error, AgentGuardError):
                line["code"], line["reason"] = error.code, short(str(error))
        return line


@lru_cache(maxsize=4096)
def short(text: str) -> str:
    """A text of somebody else's as a line may hold it: not long, and without what looks like a secret."""
    return _REDACTOR.redact_text(text[: 2 * _LONGEST])[:_LONGEST].encode("utf-8", "replace").decode()


def _now(at: float | None = None) -> str:
    """A time in UTC, to the millisecond: ``2026-01-02T03:04:05.678Z``."""
    when = time.time() if at is None else at
    return f"{_second(int(when))}.{int(when * 1000) % 1000:03d}Z"


@lru_cache(maxsize=4)
def _second(when: int) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | None) else short(str(value))
