"""Tests of child processes: standard input, output, and termination."""

from __future__ import annotations

import asyncio
import sys

from agentguard.supervision.process import ChildProcess

_READ_ALL = "import sys; data = sys.stdin.read(); print(data, file=sys.stderr); sys.exit(len(data))"
_WAIT = "import time; time.sleep(60)"
_IGNORE_SIGTERM = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('ready', flush=True); time.sleep(60)"
)


def test_open_stdin_is_closed_by_terminate():
    process = ChildProcess([sys.executable, "-c", _READ_ALL], stdin=b"abc")
    process.start()
    assert process.is_alive
    process.terminate()
    assert asyncio.run(process.wait_async(60))
    assert process.exit_status == 3
    process.kill()


def test_stop_without_stdin_sends_sigterm(tmp_path):
    process = ChildProcess([sys.executable, "-c", _WAIT], log=tmp_path / "log")
    process.start()
    assert process.stop(60)
    assert process.exit_status == -15
    assert process.pid is None


def test_stop_kills_process_that_ignores_sigterm(tmp_path):
    process = ChildProcess([sys.executable, "-c", _IGNORE_SIGTERM], log=tmp_path / "log")
    process.start()
    while "ready" not in process.read_log_tail():
        assert process.is_alive
    assert not process.stop(0.01)
    assert process.exit_status == -9


def test_process_starts_again_and_appends_to_its_log(tmp_path):
    process = ChildProcess([sys.executable, "-c", "print('run')"], log=tmp_path / "deep" / "log")
    for _ in range(2):
        process.start()
        assert process.wait(60)
    assert process.read_log_tail().split() == ["run", "run"]


def test_stop_before_start_does_nothing():
    process = ChildProcess(["does-not-exist"])
    assert process.stop(0.0)
    assert process.exit_status is None
    assert process.read_log_tail() == ""
