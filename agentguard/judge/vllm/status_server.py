"""What a supervisor knows of its server, and a small loopback server that tells it to anybody who asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson


class ServerPhase(StrEnum):
    """Where a server is in its life."""

    STARTING = "starting"
    READY = "ready"
    SUSPECT = "suspect"
    WAITING = "waiting"
    DRAINING = "draining"
    STOPPED = "stopped"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """A server, as its supervisor knows it.

    Attributes:
        phase: where it is; ``suspect`` has missed a heartbeat or a canary, ``waiting`` will be started again.
        url: where it answers, up to and with ``/v1``; the same after every restart.
        model: what it serves.
        pid: its process, if it runs.
        restarts: how often it was started again.
        reason: why it is not ready, or why it was last started again.
        canary: its last answers; see `agentguard.judge.vllm.probe`.
        since: when the phase began, epoch seconds.
    """

    phase: ServerPhase = ServerPhase.STARTING
    url: str = ""
    model: str = ""
    pid: int | None = None
    restarts: int = 0
    reason: str = ""
    canary: dict[str, Any] = field(default_factory=dict)
    since: float = field(default_factory=time.time)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


class StatusServer:
    """Answers any GET with the state as JSON, 200 while the server is ready and 503 otherwise.

    Args:
        state: asked at each request.
        port: on loopback; 0 takes a free one.
    """

    def __init__(self, get_status: Callable[[], ServerStatus], *, port: int = 0) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                told = get_status()
                raw = orjson.dumps(told.as_dict())
                self.send_response(200 if told.phase is ServerPhase.READY else 503)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args: object) -> None:
                del args

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
