"""Structured log: one JSON line for each request and each event, with a fixed set of fields.

Keys, prompts and responses usually reach a log through formatted messages. The log therefore has only the
fields in `LOG_FIELDS`. Their values are numbers, names from the configuration, or short texts with secrets
redacted. Of a message of another package, the log has only the source location. With ``include_bodies`` it
also has bodies, with secrets redacted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import orjson

from agentguard.errors import AgentGuardError
from agentguard.resilience.events import EventKind, ResilienceEvent
from agentguard.trajectory.redaction import Redactor
from agentguard_server.proxy.errors import format_error_location
from agentguard_server.proxy.hooks import CompletedRequest
from agentguard_server.proxy.telemetry.options import LogLevel, LogsOptions

LOG_FIELDS: Final = frozenset(
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
"""Fields that a line may have."""

_LEVELS: Final[Mapping[LogLevel, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_STATE_CHANGE_KINDS: Final = frozenset(
    {EventKind.BREAKER, EventKind.EJECT, EventKind.PANIC, EventKind.READMIT}
)
_FAILURE_KINDS: Final = frozenset(
    {EventKind.GAVE_UP, EventKind.SHED, EventKind.STRAY, EventKind.STALL, EventKind.CUT}
)
_OWN_PACKAGES: Final = ("agentguard", "agentguard_server")
_MAX_TEXT_CHARS: Final = 300
_BATCH_INTERVAL_S: Final = 0.05
_BATCH_BYTES: Final = 1 << 20
_STREAM_DESCRIPTORS: Final = {"stderr": 2, "stdout": 1}
_REDACTOR: Final = Redactor()


class StructuredLogger:
    """Request observer, event observer and target of Python's ``logging``.

    Args:
        options: section ``logs`` of the configuration.
        worker: number of this process.
    """

    def __init__(self, options: LogsOptions | None = None, *, worker: int = 0) -> None:
        self.options = options or LogsOptions()
        self.writer = BackgroundLogWriter(self.options.output, self.options.max_queue)
        self._worker, self._min_level = worker, _LEVELS[self.options.level]
        self._logs_requests = self.options.access_log and self._min_level <= _LEVELS["info"]
        self._handler = LoggingBridge(self.writer, worker)

    def record(self, completed: CompletedRequest) -> None:
        """Log a completed request."""
        if not self._logs_requests:
            return
        request = completed.request
        line: dict[str, Any] = {
            "time": _format_timestamp(),
            "level": "info",
            "event": "request",
            "worker": self._worker,
            "id": request.request_id,
            "method": request.method,
            "path": sanitize_text(request.target.partition("?")[0]),
            "api": request.api,
            "model": sanitize_text(request.model),
            "tenant": request.tenant,
            "stream": request.stream,
            "status": completed.status,
            "complete": completed.is_complete,
            "replica": completed.replica,
            "seconds": round(completed.duration_s, 6),
            "first_s": None
            if completed.time_to_first_byte_s is None
            else round(completed.time_to_first_byte_s, 6),
        }
        if completed.error_code:
            line["error"] = completed.error_code
        outcome = completed.guard_outcome
        if outcome is not None:
            # Without a name from the client, the guard has generated the ID.
            line["run"] = sanitize_text(outcome.run_id) if request.run_id else outcome.run_id
            line["guarded"] = not outcome.is_unjoined
            if outcome.is_unjoined:
                line["unjoined"] = True
        elif request.run_id:
            line["run"], line["guarded"] = sanitize_text(request.run_id), False
        if completed.notes:
            line["notes"] = {sanitize_text(name): sanitize_text(value) for name, value in completed.notes}
        if self.options.include_bodies:
            line["request"] = self._format_body(request.body)
            line["response"] = self._format_body(completed.response_body)
        self.writer.put(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def __call__(self, event: ResilienceEvent) -> None:
        """Log a resilience event."""
        level: LogLevel = "warning" if event.kind in _STATE_CHANGE_KINDS | _FAILURE_KINDS else "debug"
        if event.kind is EventKind.READMIT:
            level = "info"
        self.log_event(
            level,
            event.kind.value,
            source=event.source,
            target=event.target,
            reason=event.reason,
            attempt=event.attempt,
            seconds=round(event.seconds, 6),
        )

    def log_event(self, level: LogLevel, event: str, **fields: Any) -> None:
        """Log another event; fields that are not in `LOG_FIELDS` are left out."""
        if _LEVELS[level] < self._min_level:
            return
        line = {"time": _format_timestamp(), "level": level, "event": event, "worker": self._worker}
        line |= {
            name: _to_json_value(value)
            for name, value in fields.items()
            if name in LOG_FIELDS and value != ""
        }
        self.writer.put(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def install(self) -> None:
        """Replace all handlers of Python's root logger by this log."""
        root = logging.getLogger()
        for handler in root.handlers[:]:
            root.removeHandler(handler)
        root.addHandler(self._handler)
        root.setLevel(self._min_level)

    def close(self) -> None:
        """Remove the handler from Python's root logger and write the queued lines."""
        logging.getLogger().removeHandler(self._handler)
        self.writer.close()

    def _format_body(self, body: bytes) -> str:
        max_chars = self.options.max_chars
        text = body[: 4 * max_chars].decode("utf-8", "replace")
        # Redact before the truncation, since a truncated secret is not recognised.
        return _REDACTOR.redact_text(text)[:max_chars]


class LoggingBridge(logging.Handler):
    """Handler that writes records of Python's ``logging`` as JSON lines.

    Messages of agentguard's packages contain no secrets. Messages of other packages may, so their lines have
    only the source location and the type of the error.
    """

    def __init__(self, writer: BackgroundLogWriter, worker: int) -> None:
        super().__init__()
        self._writer, self._worker = writer, worker

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line. Never raises."""
        try:
            self._writer.put(orjson.dumps(self._build_fields(record), option=orjson.OPT_APPEND_NEWLINE))
        except Exception:  # a failed log record must not fail the code that logs
            self._writer.dropped += 1

    def _build_fields(self, record: logging.LogRecord) -> dict[str, Any]:
        is_own = record.name.partition(".")[0] in _OWN_PACKAGES
        line: dict[str, Any] = {
            "time": _format_timestamp(record.created),
            "level": record.levelname.lower(),
            "event": sanitize_text(record.getMessage()) if is_own else "log",
            "worker": self._worker,
            "logger": sanitize_text(record.name),
        }
        if not is_own:
            line["file"], line["line"] = sanitize_text(record.filename), record.lineno
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line["error"] = type(error).__name__
            line["place"] = format_error_location(error)
            if isinstance(error, AgentGuardError):
                line["code"], line["reason"] = error.code, sanitize_text(str(error))
        return line


@lru_cache(maxsize=4096)
def sanitize_text(text: str) -> str:
    """Return an untrusted text for a log line: truncated, and with secrets redacted."""
    return (
        _REDACTOR.redact_text(text[: 2 * _MAX_TEXT_CHARS])[:_MAX_TEXT_CHARS]
        .encode("utf-8", "replace")
        .decode()
    )


def _format_timestamp(at: float | None = None) -> str:
    """Format a time in UTC with milliseconds: ``2026-01-02T03:04:05.678Z``."""
    when = time.time() if at is None else at
    return f"{_format_second(int(when))}.{int(when * 1000) % 1000:03d}Z"


@lru_cache(maxsize=4)
def _format_second(when: int) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _to_json_value(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | None) else sanitize_text(str(value))


class BackgroundLogWriter:
    """Bounded queue of lines with a writer thread, which the first line starts.

    A caller never waits for a disk or a full pipe.

    The writer reopens a file that was moved, so that log rotation works. It writes whole lines in append
    mode, so that several workers can share a file.

    Args:
        output: ``stderr``, ``stdout``, or the path of a file; a new file is readable by its owner only.
        max_queue: upper bound on queued lines.

    Attributes:
        dropped: number of lines that were not written because the queue was full or the write failed.
        written: number of written lines.
    """

    def __init__(self, output: str, max_queue: int) -> None:
        self._output, self._max_queue = output, max_queue
        self._queue: deque[bytes] = deque()
        self._wake_event = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._file: int | None = _STREAM_DESCRIPTORS.get(output)
        self._file_identity: tuple[int, int] | None = None
        self.dropped = self.written = 0

    def put(self, line: bytes) -> None:
        """Queue a line that ends with a newline. Never waits or raises."""
        if len(self._queue) >= self._max_queue or self._is_closing:
            self.dropped += 1
            return
        # A copy, because the output of orjson 3.13 occupies 4 KB at least.
        self._queue.append(bytes(memoryview(line)))
        if not self._wake_event.is_set():
            self._wake_event.set()
            if self._thread is None:
                self._start_thread()

    def close(self, timeout_s: float = 1.0) -> None:
        """Write the queued lines until the timeout; later lines are dropped."""
        self._is_closing = True
        self._wake_event.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self.dropped += len(self._queue)
                return
        if self._file is not None and self._output not in _STREAM_DESCRIPTORS:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, name="agentguard-log", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._wake_event.wait()
            if not self._is_closing:
                time.sleep(_BATCH_INTERVAL_S)  # write a burst of lines at once
            self._wake_event.clear()
            while self._queue:
                self._write_batch()
            if self._is_closing and not self._queue:  # a line may arrive just before the close
                return

    def _write_batch(self) -> None:
        lines: list[bytes] = []
        size = 0
        while self._queue and size < _BATCH_BYTES:
            lines.append(self._queue.popleft())
            size += len(lines[-1])
        # Compute the count before the addition: ``+=`` with a call could lose increments of other threads.
        left, count = memoryview(b"".join(lines)), len(lines)
        try:
            file = self._ensure_open()
            while left:
                left = left[os.write(file, left) :]
        except OSError:
            self.dropped += count
        else:
            self.written += count

    def _ensure_open(self) -> int:
        """Return the open file; reopen it if another file has its path. Raises OSError."""
        if self._output in _STREAM_DESCRIPTORS:
            return _STREAM_DESCRIPTORS[self._output]
        if self._file is not None and self._file_identity != _read_file_identity(self._output):
            os.close(self._file)
            self._file = None
        if self._file is None:
            self._file = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._file_identity = _read_file_identity(self._output)
        return self._file


def _read_file_identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
