"""A real vLLM on the CPU for tests, started once and shared; a killed one is started again when asked for.

``tests/vllm/conftest.py`` makes the fixtures known to all modules there. Where vLLM is not installed
(``make vllm``) the tests skip and say so; in CI they fail.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.vllm_setup import COMMAND, PYTHON, WEIGHTS, missing

START_S = 300.0
_PR_SET_PDEATHSIG = 1
_FLAGS = (
    *(
        "--served-model-name",
        "judge",
        "--max-model-len",
        "4096",
        "--dtype",
        "bfloat16",
        "--max-num-seqs",
        "8",
    ),
    *("--enforce-eager", "--enable-prompt-tokens-details", "--shutdown-timeout", "15", "--block-size", "32"),
    *("--max-num-queued-reqs", "64"),
    # Agents call tools: without a parser any request with tools is refused.
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    # Without it, a model with sliding windows (Gemma) keeps only a prompt's very end in its prefix cache, and
    # the second question of a run is computed whole once more.
    *("--prefix-cache-retention-interval", "32"),
)
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
_METRIC = re.compile(r"^(vllm:\w+)(?:\{[^}]*\})? ([-+.\deE]+|NaN)$", re.MULTILINE)


class VllmServer:
    """A server process in a group of its own, on a loopback port that the system chose."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self._log = Path(tempfile.mkdtemp(prefix="agentguard-vllm-")) / "server.log"

    @property
    def url(self) -> str:
        """Up to and with ``/v1``."""
        return f"{self.root}/v1"

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ensure(self) -> None:
        """Start it unless it runs, and wait until it answers."""
        if self.process is None or self.process.poll() is not None or not self.healthy():
            self.stop()
            self._start()

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.root}/health", timeout=5) as answer:
                return int(answer.status) == 200
        except (urllib.error.URLError, OSError):
            return False

    def metrics(self) -> dict[str, float]:
        """Every counter and gauge by name, summed over its labels."""
        with urllib.request.urlopen(f"{self.root}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        sums: dict[str, float] = {}
        for name, value in _METRIC.findall(text):
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def kill(self) -> None:
        """SIGKILL to all of its processes, as when a machine runs out of memory."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=30)

    def stop(self) -> None:
        """End the whole group, so that no worker is left holding memory."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=30)
        self.kill()
        self.process = None

    def _start(self) -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            self.port = held.getsockname()[1]
        # The `vllm` command looks for a distribution of that name, which the CPU build is not.
        command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(WEIGHTS)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *_FLAGS]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            if self.healthy():
                return
            time.sleep(0.5)
        tail = self._log.read_text(errors="replace")[-3_000:]
        self.stop()
        pytest.fail(f"vLLM did not come up within {START_S:.0f} s; the end of its log:\n{tail}")


def _end_with_parent() -> None:
    """Be sent SIGTERM when the test process dies without its fixtures' ends (prctl(2), Linux only)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@pytest.fixture(scope="session")
def vllm_session() -> Iterator[VllmServer]:
    """The server of this test session."""
    if lacking := missing():
        text = f"{lacking}: run `make vllm` (or {COMMAND})"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)
    server = VllmServer()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def vllm(vllm_session: VllmServer) -> VllmServer:
    """The server, up and answering; a test may kill it."""
    vllm_session.ensure()
    return vllm_session
