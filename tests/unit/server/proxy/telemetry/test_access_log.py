"""Access log in JSON lines without keys and contents, written by a thread that never blocks requests."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agentguard_server.proxy.telemetry.access_log import LOG_FIELDS, BackgroundLogWriter, StructuredLogger
from agentguard_server.proxy.telemetry.options import LogsOptions

from agentguard.errors import ConfigError
from agentguard.resilience.events import EventKind, ResilienceEvent

from .request_builders import recorded

KEY = "sk-canary0123456789abcdefCANARY0123456789"


@pytest.fixture
def default_logging() -> Iterator[None]:
    """Provide the default configuration of logging; a uvicorn in this process may have changed it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    for name in ("uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate, logger.level = True, logging.NOTSET
    yield
    root.handlers[:], root.level = handlers, level


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def logs(path: Path, **options: Any) -> StructuredLogger:
    return StructuredLogger(LogsOptions(output=str(path), **options), worker=2)


def ended(told: StructuredLogger) -> None:
    """Close the log after all lines are written, however late its thread is."""
    told.writer.close(60)
    told.close()


def until(met: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_request_is_logged_as_one_line(tmp_path: Path) -> None:
    told = logs(tmp_path / "log")
    told.record(recorded(notes=(("hedged", "1"),), target="/v1/chat/completions?key=secret"))
    ended(told)
    (line,) = lines_of(tmp_path / "log")
    assert line["event"] == "request"
    assert line["path"] == "/v1/chat/completions"
    assert (line["status"], line["replica"], line["model"], line["worker"]) == (200, "a", "m", 2)
    assert line["notes"] == {"hedged": "1"}
    assert "secret" not in json.dumps(line)
    assert set(line) <= LOG_FIELDS
    assert (tmp_path / "log").stat().st_mode & 0o77 == 0


def test_contents_are_logged_only_on_request_and_without_keys(tmp_path: Path) -> None:
    body = json.dumps({"messages": [{"content": f"my prompt, my key is {KEY}"}]}).encode()
    for contents in (False, True):
        told = logs(tmp_path / f"log{contents}", include_bodies=contents)
        told.record(recorded(body=body, response_body=b"my answer"))
        ended(told)
    assert "my prompt" not in (tmp_path / "logFalse").read_text()
    shown = (tmp_path / "logTrue").read_text()
    assert "my prompt" in shown
    assert "my answer" in shown
    assert KEY not in shown


def test_client_values_are_truncated_and_redacted(tmp_path: Path) -> None:
    told = logs(tmp_path / "log")
    told.record(recorded(model=KEY, run_id=f"run {KEY}", target=f"/v1/files/{KEY}", error_code="e"))
    told.record(recorded(model="m" * 10_000, run_id="x\ud800\ny"))
    ended(told)
    first, second = lines_of(tmp_path / "log")
    assert KEY not in json.dumps(first)
    assert len(second["model"]) == 300


def test_log_level_filters_lower_levels(tmp_path: Path) -> None:
    event = ResilienceEvent(kind=EventKind.HEDGE, at=0.0, source="hedge")
    opened = ResilienceEvent(kind=EventKind.BREAKER, at=0.0, source="breaker", target="a", reason="open")
    for level, events in (("debug", ["request", "hedge", "breaker"]), ("info", ["request", "breaker"])):
        told = logs(tmp_path / level, level=level)
        told.record(recorded())
        told(event)
        told(opened)
        ended(told)
        assert [line["event"] for line in lines_of(tmp_path / level)] == events
    told = logs(tmp_path / "warning", level="warning")
    told.record(recorded())
    told(opened)
    ended(told)
    (line,) = lines_of(tmp_path / "warning")
    assert (line["event"], line["target"], line["reason"]) == ("breaker", "a", "open")


def test_unlisted_fields_are_omitted(tmp_path: Path) -> None:
    told = logs(tmp_path / "log")
    told.log_event("info", "started", port=80, authorization=KEY, headers={"x": KEY}, reason=f"with {KEY}")
    ended(told)
    (line,) = lines_of(tmp_path / "log")
    assert line["port"] == 80
    assert set(line) == {"time", "level", "event", "worker", "port", "reason"}
    assert KEY not in json.dumps(line)


@pytest.mark.usefixtures("default_logging")
def test_foreign_log_records_keep_only_their_location(tmp_path: Path) -> None:
    told = logs(tmp_path / "log", level="debug")
    told.install()
    try:
        raise RuntimeError(KEY)
    except RuntimeError:
        logging.getLogger("httpx2").debug(f"headers {KEY}", exc_info=True)
    logging.getLogger("uvicorn.error").error("it failed: %s", KEY)
    logging.getLogger("agentguard.pool").warning("replica %s is out", "a")
    try:
        raise ConfigError("the port is taken")
    except ConfigError:
        logging.getLogger("agentguard_server").error("it ends", exc_info=True)
    ended(told)
    other, error, ours, failed = lines_of(tmp_path / "log")
    assert KEY not in (tmp_path / "log").read_text()
    assert (other["event"], other["logger"], other["error"]) == ("log", "httpx2", "RuntimeError")
    assert other["file"] == "test_access_log.py"
    assert "test_foreign_log_records" in other["place"]
    assert error["level"] == "error"
    assert ours["event"] == "replica a is out"
    assert (failed["code"], failed["reason"]) == ("config_error", "the port is taken")
    assert logging.getLogger().handlers == []


def test_full_pipe_drops_and_counts_lines_without_blocking() -> None:
    """The pipe has no reader, so a blocking write would never return."""
    reading, writing = os.pipe()
    lines = BackgroundLogWriter(f"/proc/self/fd/{writing}", max_queue=100)
    for _ in range(3000):
        lines.put(b"x" * 1000 + b"\n")
    until(lambda: lines._file is not None)
    lines.close(0.3)
    assert lines.dropped >= 2000
    os.close(reading)  # the writer's thread ends with a counted error
    assert lines._thread is not None
    lines._thread.join(60)  # otherwise it would open the next file with this number
    assert not lines._thread.is_alive()
    os.close(writing)


def test_full_disk_loses_only_lines() -> None:
    lines = BackgroundLogWriter("/dev/full", max_queue=10)
    lines.put(b"x\n")
    lines.close(60)
    assert (lines.dropped, lines.written) == (1, 0)


def test_moved_log_file_is_reopened(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = BackgroundLogWriter(str(path), max_queue=10)
    lines.put(b"one\n")
    until(lambda: lines.written)
    path.rename(tmp_path / "log.1")
    lines.put(b"two\n")
    lines.close(60)
    assert path.read_text() == "two\n"
    assert (tmp_path / "log.1").read_text() == "one\n"


def test_concurrent_lines_are_not_interleaved(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [BackgroundLogWriter(str(path), max_queue=10_000) for _ in range(2)]

    def write(number: int) -> None:
        for _ in range(500):
            lines[number % 2].put(str(number).encode() * 50 + b"\n")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in lines:
        one.close(60)
    found = path.read_text().splitlines()
    assert len(found) == 2000
    assert set(found) == {str(number) * 50 for number in range(4)}
