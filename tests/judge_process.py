"""``agentguard judge serve`` as a process, and the states that it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]


class Serving:
    """The command and the states that it prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.seen: list[dict[str, Any]] = []

    def until(self, phase: str) -> dict[str, Any]:
        """Read states up to the next one of this phase."""
        lines: IO[str] | None = self.process.stdout
        assert lines is not None
        for line in lines:
            self.seen.append(json.loads(line))
            if self.seen[-1]["phase"] == phase:
                return self.seen[-1]
        raise AssertionError(f"it ended without being {phase}: {self.seen}")


@contextmanager
def serving(
    model: str, python: str | Path | None, *more: str, environment: Mapping[str, str] | None = None
) -> Iterator[Serving]:
    """Serve a model with the vLLM, or its fake, of an interpreter; None for the ``vllm`` on the path."""
    command = [
        *(sys.executable, "-c", "from agentguard.cli import main; main()"),
        *("judge", "serve", model, "--json", "--port", "0"),
        *(() if python is None else ("--python", str(python))),
        *more,
    ]
    told = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=told, cwd=ROOT) as process:
        try:
            yield Serving(process)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


def get(url: str) -> tuple[int, dict[str, Any]]:
    """Return status and JSON of a GET request."""
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def gone(pid: int) -> bool:
    """Return whether a process ends within thirty seconds."""
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def children(pid: int) -> dict[int, str]:
    """Return the descendants of a process by id: their names from Linux."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            if folder.name.isdigit():
                name, rest = (folder / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
                if int(rest.split()[1]) == pid:
                    found[int(folder.name)] = name
    for child in tuple(found):
        found |= children(child)
    return found
