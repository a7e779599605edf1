"""Model server: the vLLM process with its supervisor and a status server on loopback."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import EndpointOptions
from agentguard.judge.vllm.command import ServedTask, ServeOptions, build_environment, plan_command
from agentguard.judge.vllm.known_answer_probe import ProbeResult, probe_chat, probe_pooling
from agentguard.judge.vllm.server_metrics import fetch_progress, is_healthy
from agentguard.judge.vllm.status_server import ServerStatus, StatusServer
from agentguard.judge.vllm.supervisor import VllmSupervisor, WatchOptions
from agentguard.supervision.process import ChildProcess, find_free_port

PROBE_TIMEOUT_S: Final = 30.0
"""Deadline of one probe question; the first use of a new set of labels took 15 s on a small machine."""

_PROBE_PRIORITY: Final = -1_000
"""Priority of the probe in vLLM's queue; lower values are served first, and requests have 0 by default."""


def serve_model(
    options: ServeOptions,
    watch_options: WatchOptions | None = None,
    *,
    state_port: int = 0,
    log: Path | None = None,
    on_status: Callable[[ServerStatus, str], None] | None = None,
) -> ServerStatus:
    """Serve a model until SIGTERM or SIGINT; return the last status.

    Args:
        options: model and settings of the server.
        watch_options: health check and restart settings.
        state_port: loopback port of the status server; 0 selects a free one.
        log: file for the server's output; None creates one in the folder for temporary files.
        on_status: called with each new status and the URL of the status server.

    Raises:
        ConfigError: vLLM is not installed or too old, an option is invalid, or the server would listen for
            other machines without requiring a key.
        JudgeError: the server cannot be started.
        MissingExtra: the openai package is not installed.
    """
    port = options.port or find_free_port(options.host)
    host = f"[{options.host}]" if ":" in options.host else options.host
    root = f"http://{'127.0.0.1' if host in ('0.0.0.0', '[::]') else host}:{port}"  # noqa: S104
    log_path = log or Path(tempfile.mkdtemp(prefix="agentguard-judge-")) / "server.log"
    command = plan_command(options, port)
    process = ChildProcess(command.argv, environment=build_environment(options), log=log_path)
    endpoint = JudgeEndpoint(
        f"{root}/v1",
        model=options.served_name,
        api_key=options.api_key,
        options=EndpointOptions(
            deadline_s=PROBE_TIMEOUT_S,
            dialect="vllm",
            extra_body={"priority": _PROBE_PRIORITY} if command.has_flag("--scheduling-policy") else {},
        ),
    )
    supervisor = VllmSupervisor(
        process,
        ServerStatus(url=f"{root}/v1", model=options.model),
        heartbeat=lambda: is_healthy(f"{root}/health"),
        probe=lambda: _run_probe(endpoint, options.task),
        read_progress=lambda: fetch_progress(root),
        options=watch_options,
    )
    server = StatusServer(lambda: supervisor.status, port=state_port)
    if on_status is not None:
        supervisor.set_status_callback(lambda status: on_status(status, server.url))
    try:
        with _SignalHandler(supervisor.request_stop):
            return supervisor.run()
    finally:
        server.close()
        endpoint.close()


def _run_probe(endpoint: JudgeEndpoint, task: ServedTask) -> ProbeResult:
    probe = (
        probe_chat(endpoint, PROBE_TIMEOUT_S)
        if task == "chat"
        else probe_pooling(endpoint, task, PROBE_TIMEOUT_S)
    )
    return endpoint.loop.run(probe)


class _SignalHandler:
    """Context that handles SIGTERM and SIGINT, and restores the previous handlers; main thread only."""

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self._on_signal = on_signal
        self._previous_handlers: dict[int, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous_handlers[number] = signal.signal(number, self._handle_signal)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._on_signal()
