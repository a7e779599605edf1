"""Processes of a benchmark: start on one core, wait, measurement from /proc, and end by process id."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class NoPeer(Exception):
    """Error: a gateway cannot be measured here; the message is the reason."""


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port


def pinned(core: int | None, command: Sequence[str]) -> list[str]:
    return list(command) if core is None else ["taskset", "-c", str(core), *command]


@dataclass
class Started:
    """A process and its descendants.

    Attributes:
        name: name for messages.
        process: the first process, which is the worker if there are helpers.
        log: file of its output.
        cold_s: seconds until its first answer.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    cold_s: float = 0.0

    def pids(self) -> list[int]:
        """Return the ids of the process and its descendants, in the order of their start."""
        found, parents = [self.process.pid], _parents()
        for pid in found:
            found.extend(child for child, parent in parents.items() if parent == pid)
        return found

    def cpu_s(self) -> tuple[float, float]:
        """Return processor seconds of the worker and of its helpers; ended helpers count for the worker."""
        worker = _cpu(self.process.pid)
        return worker, sum(_cpu(pid) for pid in self.pids()[1:])

    def settled(self, most_s: float = 15.0) -> tuple[float, float]:
        """Wait for the helpers to finish; return `cpu_s`, with the worker's value from before the wait."""
        worker, before = self.cpu_s()
        until = time.monotonic() + most_s
        while before and time.monotonic() < until:
            time.sleep(0.5)
            now = self.cpu_s()[1]
            if now - before < 0.015:
                return worker, now
            before = now
        return worker, before

    def memory_mb(self) -> tuple[float, float]:
        """Return the resident memory of the worker and of its helpers."""
        pids = self.pids()
        return _memory(pids[0]), sum(map(_memory, pids[1:]))

    def proportional_mb(self) -> float:
        """Return the sum of the proportional set sizes, which count shared pages once; 0 outside of Linux."""
        return sum(map(_proportional, self.pids()))

    def stop(self) -> None:
        """Stop all processes: terminate them, then kill those that remain."""
        pids = self.pids()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)
        for pid in pids[1:]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def start(
    name: str, command: Sequence[str], log: Path, *, core: int | None, env: Mapping[str, str] | None = None
) -> Started:
    with log.open("wb") as out:
        process = subprocess.Popen(
            pinned(core, command),
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )
    return Started(name, process, log)


def wait_for(started: Started, request: urllib.request.Request, seconds: float = 300) -> None:
    """Wait until the gateway answers with 200. Raises NoPeer with the end of its log if it does not."""
    begun, last = time.perf_counter(), "it did not answer"
    while time.perf_counter() - begun < seconds and started.process.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                answer.read()
            started.cold_s = time.perf_counter() - begun
            return
        except urllib.error.HTTPError as error:
            last = f"status {error.code}: {error.read()[:300]!r}"
            error.close()
        except OSError as error:
            last = str(error)
        time.sleep(0.01)
    tail = started.log.read_bytes()[-400:].decode(errors="replace")
    started.stop()
    raise NoPeer(f"{started.name} did not come up: {last}; its log ends with: {' '.join(tail.split())}")


def _parents() -> dict[int, int]:
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            parts = _stat(int(entry))
            if parts:
                found[int(entry)] = int(parts[1])
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []


def _cpu(pid: int) -> float:
    parts = _stat(pid)
    return sum(map(int, parts[11:15])) / TICKS if parts else 0.0


def _memory(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6
    except (OSError, ValueError, IndexError):
        return 0.0


def _proportional(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().split("\n")
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("Pss:"))
