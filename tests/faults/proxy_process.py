"""``agentguard serve`` as a separate process, and observations from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from agentguard.testing.fake_backend import FakeBackend
from tests.faults.proxy_client import Got, ask

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-c", "from agentguard.cli import main; main()", "serve")
SLACK_S = 4.0
"""Tolerance of time limits for a loaded machine. The promise is 250 ms, but two cores with eight other
processes pause for seconds. A test with this tolerance must look for a delay that is longer.
"""


class Proxy:
    """A running proxy.

    Attributes:
        pid: process id of the command; with several workers it is their parent.
        port: port of the proxy.
        log: file with its complete output.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path, config: Path) -> None:
        self.process, self.pid, self.port, self.log, self.config = process, process.pid, port, log, config

    def printed(self) -> str:
        """Return its output so far, stdout and stderr."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def pids(self) -> list[int]:
        """Return the processes with open connections: the workers, or the only process."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(one) for one in children] or [self.pid]

    def open_files(self) -> Counter[str]:
        """Return the open file descriptors of all its processes, by kind."""
        found: Counter[str] = Counter()
        for pid in {self.pid, *self.pids()}:
            for one in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found[os.readlink(one).partition(":")[0]] += 1
        return found

    def rss(self) -> int:
        """Return the resident memory of all its processes, in bytes."""
        return sum(_status(pid, "VmRSS") for pid in {self.pid, *self.pids()})

    def peak(self) -> int:
        """Return the peak memory, in bytes."""
        return sum(_status(pid, "VmHWM") for pid in {self.pid, *self.pids()})

    def threads(self) -> int:
        return sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in self.pids())

    async def get(self, path: str, **options: Any) -> Got:
        return await ask(self.port, path, method="GET", **options)

    async def status(self, **options: Any) -> dict[str, Any]:
        """Return the content of /status."""
        got = await self.get("/status", **options)
        assert got.status == 200, got
        found: dict[str, Any] = json.loads(got.body)
        return found

    def hang_up(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/{pid}/status has no {name}")


def replicas(*backends: FakeBackend, **more: Any) -> list[dict[str, Any]]:
    """Return the configuration of the backends."""
    return [{"name": backend.name, "url": backend.url, **more} for backend in backends]


@contextlib.contextmanager
def serving(
    folder: Path, config: dict[str, Any], *options: str, environment: dict[str, str] | None = None
) -> Iterator[Proxy]:
    """Start a proxy with a configuration; stop it at the end of the block and check that it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    file, log = folder / "proxy.yaml", folder / "proxy.log"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [*COMMAND, "--config", str(file), "--port", "0", "--json", *options]
    told = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "default", **(environment or {})}
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=told, cwd=folder)
    try:
        yield Proxy(process, _port(process, log), log, file)
    finally:
        process.terminate()
        try:
            process.wait(
                25
            )  # below the default request timeout of 30 seconds: no open request may delay the end
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise AssertionError(f"the proxy did not end:\n{log.read_text()[-2000:]}") from None


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    def told() -> int | None:
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith('{"url"'):
                return int(json.loads(line)["url"].rsplit(":", 1)[1])
        assert process.poll() is None, f"it did not start:\n{log.read_text()[-3000:]}"
        return None

    return until(told, 90.0)


def until(met: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for a condition, and return its value."""
    end = time.monotonic() + seconds
    while not (found := met()):
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(0.02)
    return found


async def soon(met: Callable[[], Any], seconds: float = 30.0, *, what: Callable[[], str] = lambda: "") -> Any:
    """Wait for a condition in a coroutine; ``what`` names the missing condition."""
    end = time.monotonic() + seconds
    while not (found := met()):
        assert time.monotonic() < end, f"waited {seconds} s in vain; {what()}"
        await asyncio.sleep(0.02)
    return found
