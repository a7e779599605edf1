"""Tests of forked child processes: standard input, files, exit status, and use by `ChildProcess`."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")

PARENT = """
import os, sys
from agentguard.supervision.forked_process import ForkedProcess
from agentguard.supervision.process import ChildProcess

{body}
"""


def run_parent(body: str) -> list[str]:
    """Run a program with one thread, which may fork; return its lines of output."""
    code = PARENT.format(body=textwrap.dedent(body))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def test_forked_child_reads_standard_input_and_returns_its_exit_status() -> None:
    lines = run_parent(
        """
        child = ForkedProcess(lambda: 40 + len(os.read(0, 10)))
        print(child.poll())
        child.stdin.write(b"ab")
        child.stdin.close()
        print(child.wait(20), child.poll())
        """
    )
    assert lines == ["None", "42 42"]


def test_forked_child_inherits_no_file_but_standard_error() -> None:
    lines = run_parent(
        """
        other = os.open(os.devnull, os.O_RDONLY)

        def target():
            print("not shown")
            try:
                os.fstat(other)
            except OSError:
                return 7
            return 0

        child = ForkedProcess(target)
        print(child.wait(20))
        """
    )
    assert lines == ["7"]


def test_forked_child_with_exception_ends_with_status_1() -> None:
    lines = run_parent(
        """
        def target():
            sys.stderr = open(os.devnull, "w")
            raise ValueError

        print(ForkedProcess(target).wait(20))
        """
    )
    assert lines == ["1"]


def test_child_process_starts_with_the_fork_and_restarts_with_the_command() -> None:
    lines = run_parent(
        """
        command = [sys.executable, "-c", "import sys; sys.exit(10 + len(sys.stdin.readline()))"]
        process = ChildProcess(command, stdin=b"abc\\n")
        process.fork(lambda: len(os.read(0, 10)))
        for _ in range(2):
            process.start()
            print(process.wait(20), process.exit_status)
        process.kill()
        """
    )
    assert lines == ["True 4", "True 14"]


def test_terminate_ends_a_forked_child() -> None:
    lines = run_parent(
        """
        import signal
        child = ForkedProcess(lambda: signal.pause() or 0)
        child.terminate()
        print(child.wait(20))
        child.terminate()
        """
    )
    assert lines == ["-15"]
