"""Serving a model: the process, its supervisor, and its state on a loopback port, put together."""

from __future__ import annotations

import signal
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from agentguard.judge.endpoint import Endpoint
from agentguard.judge.serve.canary import Canary, ask
from agentguard.judge.serve.canary_pooling import ask_pooling
from agentguard.judge.serve.command import Served, ServeOptions, command, environment
from agentguard.judge.serve.process import ServerProcess, free_port
from agentguard.judge.serve.state import State, StateServer
from agentguard.judge.serve.supervisor import Supervisor, WatchOptions
from agentguard.judge.wire import EndpointOptions

CANARY_S: Final = 30.0
"""Deadline of one canary question; the first use of a new set of labels took 15 s on a small machine."""

_HEARTBEAT_S: Final = 5.0


def serve(
    options: ServeOptions,
    watch: WatchOptions | None = None,
    *,
    state_port: int = 0,
    log: Path | None = None,
    told: Callable[[State, str], None] | None = None,
) -> State:
    """Serve a model until SIGTERM or SIGINT, and return the last state.

    Args:
        options: what is served.
        watch: how it is watched.
        state_port: loopback port that tells the state as JSON; 0 takes a free one.
        log: where the server's output goes; a new file in the folder for temporary files if None.
        told: called with each new state and the address that tells it.

    Raises:
        ConfigError: there is no vLLM, or an option is wrong.
        JudgeError: the server cannot be started.
        MissingExtra: the openai package is not installed.
    """
    port = options.port or free_port(options.host)
    host = f"[{options.host}]" if ":" in options.host else options.host
    root = f"http://{'127.0.0.1' if host in ('0.0.0.0', '[::]') else host}:{port}"  # noqa: S104
    kept = log or Path(tempfile.mkdtemp(prefix="agentguard-judge-")) / "server.log"
    process = ServerProcess(command(options, port), environment(options), kept)
    endpoint = Endpoint(
        f"{root}/v1",
        model=options.served_name,
        api_key=options.api_key,
        options=EndpointOptions(deadline_s=CANARY_S, dialect="vllm"),
    )
    supervisor = Supervisor(
        process,
        State(url=f"{root}/v1", model=options.model),
        heartbeat=lambda: answers(f"{root}/health"),
        canary=lambda: _canary(endpoint, options.task),
        options=watch,
    )
    server = StateServer(lambda: supervisor.state, port=state_port)
    if told is not None:
        supervisor.tell(lambda state: told(state, server.url))
    try:
        with _Signals(supervisor.end):
            return supervisor.run()
    finally:
        server.close()
        endpoint.close()


def answers(url: str) -> bool:
    """Whether a GET is answered with 200 in time."""
    try:
        with urllib.request.urlopen(url, timeout=_HEARTBEAT_S) as reply:  # noqa: S310  (http, our own server)
            return int(reply.status) == 200
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _canary(endpoint: Endpoint, task: Served) -> Canary:
    asked = ask(endpoint, CANARY_S) if task == "chat" else ask_pooling(endpoint, task, CANARY_S)
    return endpoint.loop.run(asked)


class _Signals:
    """Ends the supervisor at SIGTERM and SIGINT, and puts back what was there; in the main thread alone."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._before: dict[int, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._caught)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _caught(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._end()
