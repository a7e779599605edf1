"""A real vLLM on the CPU for tests, started once and shared; a killed one is restarted on the next use.

``tests/vllm/conftest.py`` exports the fixtures to all modules there. If vLLM is not installed (``make
vllm``),
the tests are skipped with a message; in CI they fail. The server is started as ``agentguard judge serve``
starts
one, with extra flags for the CPU.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agentguard.errors import JudgeError
from agentguard.judge.vllm.command import ServeOptions, build_environment, plan_command
from agentguard.judge.vllm.server_metrics import fetch_counters, is_healthy
from agentguard.supervision.process import ChildProcess, find_free_port
from tests.vllm_setup import COMMAND, PYTHON, WEIGHTS, missing

START_S = 600.0


def _dtype() -> str:
    """Return the fast type of this processor: bfloat16 without hardware support takes twice as long."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "float32"
    return "bfloat16" if "amx_bf16" in flags or "avx512_bf16" in flags else "float32"


CPU_TYPE = _dtype()
CPU_FLAGS = ("--dtype", CPU_TYPE, "--max-num-seqs", "8", "--enforce-eager")
# vLLM reserves a core for its engine, which is half of a small machine.
CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
# Agents call tools: without a parser vLLM refuses every request with tools.
_TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


class VllmServer:
    """A server process in its own process group, on a loopback port that the system chose.

    Args:
        options: settings of the served model; the tiny model by default.
        runner: flags of a server that is not a judge, in place of the judge's flags.
    """

    def __init__(self, options: ServeOptions | None = None, *, runner: Sequence[str] | None = None) -> None:
        self.port = 0
        self._options = options or tiny()
        self._runner = runner
        self._log = Path(tempfile.mkdtemp(prefix="agentguard-vllm-")) / "server.log"
        self._served: ChildProcess | None = None

    @property
    def url(self) -> str:
        """Return the URL, including ``/v1``."""
        return f"{self.root}/v1"

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ensure(self) -> None:
        """Start the server unless it runs, and wait until it answers."""
        if self._served is None or not self._served.is_alive or not self.healthy():
            self.stop()
            self._start()

    def healthy(self) -> bool:
        return is_healthy(f"{self.root}/health")

    def metrics(self) -> dict[str, float]:
        """Return every counter and gauge by name, summed over its labels."""
        return dict(fetch_counters(self.root))

    def kill(self) -> None:
        """Send SIGKILL to all of its processes, as the kernel does if memory is exhausted."""
        if self._served is not None:
            self._served.kill()

    def stop(self) -> None:
        """Stop the whole process group, so that no worker keeps memory."""
        if self._served is None:
            return
        self._served.stop(30)
        self._served = None

    def _start(self) -> None:
        self.port = find_free_port("127.0.0.1")
        made = {**build_environment(self._options), **CPU_ENVIRONMENT}
        self._served = ChildProcess(self._command(), environment=made, log=self._log)
        self._served.start()
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._served.is_alive:
            if self.healthy():
                return
            time.sleep(0.5)
        tail = self._served.read_log_tail()
        self.stop()
        raise JudgeError(f"vLLM did not come up within {START_S:.0f} s; the end of its log:\n{tail}")

    def _command(self) -> list[str]:
        if self._runner is None:
            return plan_command(self._options, self.port).argv
        bare = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", self._options.model]
        bare += ["--served-model-name", self._options.served_name, "--host", self._options.host]
        return [*bare, "--port", str(self.port), *self._runner]


def tiny(context: int = 4_096) -> ServeOptions:
    """Return settings of the tiny model on the CPU."""
    return ServeOptions(
        model=str(WEIGHTS),
        python=PYTHON,
        max_model_len=context,
        offline=True,
        extra_args=(*CPU_FLAGS, *_TOOLS),
    )


@pytest.fixture(scope="session")
def vllm_session() -> Iterator[VllmServer]:
    """Return the server of this test session."""
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
    """Return the running server; a test may kill it."""
    vllm_session.ensure()
    return vllm_session
