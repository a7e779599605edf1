"""Status of a supervised server, and a loopback HTTP server that reports it."""

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
    """Lifecycle phase of a server."""

    STARTING = "starting"
    READY = "ready"
    SUSPECT = "suspect"
    WAITING = "waiting"
    DRAINING = "draining"
    STOPPED = "stopped"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """Status of a server, as reported by its supervisor.

    Attributes:
        phase: ``suspect`` after a failed heartbeat or known-answer probe, ``waiting`` before a restart.
        url: base URL up to and with ``/v1``; constant across restarts.
        model: the served model.
        pid: process id of the server; None unless it runs.
        restarts: number of restarts.
        reason: reason why the server is not ready, or of its last restart.
        probe: result of the last known-answer probe; see `agentguard.judge.vllm.known_answer_probe`.
        since: begin of the phase, in epoch seconds.
    """

    phase: ServerPhase = ServerPhase.STARTING
    url: str = ""
    model: str = ""
    pid: int | None = None
    restarts: int = 0
    reason: str = ""
    probe: dict[str, Any] = field(default_factory=dict)
    since: float = field(default_factory=time.time)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


class StatusServer:
    """HTTP server that answers any GET with the status as JSON: 200 if the server is ready, else 503.

    Args:
        get_status: called at each request.
        port: port on loopback; 0 selects a free one.
    """

    def __init__(self, get_status: Callable[[], ServerStatus], *, port: int = 0) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status = get_status()
                raw = orjson.dumps(status.as_dict())
                self.send_response(200 if status.phase is ServerPhase.READY else 503)
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
        """URL of the status."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
