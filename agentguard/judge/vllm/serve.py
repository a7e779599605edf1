"""Model server: the vLLM process with its supervisor and a status server on loopback."""

from __future__ import annotations

import re
import signal
import tempfile
import threading
import urllib.error
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from agentguard.errors import JudgeError
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import EndpointOptions
from agentguard.judge.vllm.command import ServedTask, ServeOptions, build_environment, plan_command
from agentguard.judge.vllm.http import open_url
from agentguard.judge.vllm.probe import ProbeResult, probe_chat, probe_pooling
from agentguard.judge.vllm.status_server import ServerStatus, StatusServer
from agentguard.judge.vllm.supervisor import VllmSupervisor, WatchOptions
from agentguard.supervision.process import ChildProcess, find_free_port

PROBE_TIMEOUT_S: Final = 30.0
"""Deadline of one probe question; the first use of a new set of labels took 15 s on a small machine."""

_HEARTBEAT_TIMEOUT_S: Final = 5.0
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
            other machines without a key.
        JudgeError: the server cannot be started.
        MissingExtra: the openai package is not installed.
    """
    port = options.port or find_free_port(options.host)
    host = f"[{options.host}]" if ":" in options.host else options.host
    root = f"http://{'127.0.0.1' if host in ('0.0.0.0', '[::]') else host}:{port}"  # noqa: S104
    kept = log or Path(tempfile.mkdtemp(prefix="agentguard-judge-")) / "server.log"
    command = plan_command(options, port)
    process = ChildProcess(command.argv, environment=build_environment(options), log=kept)
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
        supervisor.set_status_callback(lambda state: on_status(state, server.url))
    try:
        with _SignalHandler(supervisor.request_stop):
            return supervisor.run()
    finally:
        server.close()
        endpoint.close()


def is_healthy(url: str) -> bool:
    """Return whether a GET is answered with 200 in time."""
    try:
        with open_url(url, timeout_s=_HEARTBEAT_TIMEOUT_S) as reply:
            return int(reply.status) == 200
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _run_probe(endpoint: JudgeEndpoint, task: ServedTask) -> ProbeResult:
    asked = (
        probe_chat(endpoint, PROBE_TIMEOUT_S)
        if task == "chat"
        else probe_pooling(endpoint, task, PROBE_TIMEOUT_S)
    )
    return endpoint.loop.run(asked)


class _SignalHandler:
    """Stops the supervisor at SIGTERM and SIGINT and restores the previous handlers; main thread only."""

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


_METRIC_LINE: Final = re.compile(r"^(vllm:\w+)(?:\{[^}]*\})? ([-+.\deE]+)$", re.MULTILINE)
_PROGRESS_COUNTERS: Final = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:iteration_tokens_total_count",
)
"""Counters that grow while the engine works: tokens of requests, and engine steps."""

_MAX_BYTES: Final = 8_000_000
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWork:
    """Counters of a server, since its start or between two readings.

    Attributes:
        prompt_tokens: prompt tokens of all requests.
        cached_tokens: prompt tokens that came from the prefix cache.
        generated_tokens: tokens that were generated.
        cache_queries, cache_hits: tokens that were looked up in the prefix cache, and found.
    """

    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    generated_tokens: float = 0.0
    cache_queries: float = 0.0
    cache_hits: float = 0.0

    @property
    def computed_tokens(self) -> float:
        """Prompt tokens that the server had to compute."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def hit_rate(self) -> float:
        """Share of the looked-up tokens that were found; 0 without look-ups."""
        return self.cache_hits / self.cache_queries if self.cache_queries else 0.0

    def __sub__(self, before: ServerWork) -> ServerWork:
        return ServerWork(**{name: getattr(self, name) - getattr(before, name) for name in self.__slots__})


def fetch_counters(root: str) -> Mapping[str, float]:
    """Fetch every ``vllm:`` counter and gauge by name, summed over its labels.

    Args:
        root: URL of the server without ``/v1``.

    Raises:
        JudgeError: the server has no metrics page, or cannot be reached.
    """
    try:
        with open_url(f"{root}/metrics", timeout_s=_TIMEOUT_S) as answer:
            text = answer.read(_MAX_BYTES).decode(errors="replace")
    except urllib.error.HTTPError as error:
        raise JudgeError(
            f"{root}/metrics answers {error.code}; only the metrics of vLLM can be read"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise JudgeError(f"{root}/metrics cannot be read: {reason}") from None
    return sum_counters(text)


def sum_counters(text: str) -> Mapping[str, float]:
    """Sum the counters of a metrics page over their labels; NaN and infinities are skipped."""
    sums: dict[str, float] = {}
    for name, value in _METRIC_LINE.findall(text):
        try:
            sums[name] = sums.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return sums


def fetch_work(root: str) -> ServerWork:
    """Fetch the server's counters since its start. Raises JudgeError as `fetch_counters` does."""
    held = fetch_counters(root)
    return ServerWork(
        prompt_tokens=held.get("vllm:prompt_tokens_total", 0.0),
        cached_tokens=held.get("vllm:prompt_tokens_cached_total", 0.0),
        generated_tokens=held.get("vllm:generation_tokens_total", 0.0),
        cache_queries=held.get("vllm:prefix_cache_queries_total", 0.0),
        cache_hits=held.get("vllm:prefix_cache_hits_total", 0.0),
    )


def fetch_progress(root: str) -> float | None:
    """Fetch a number that grows while the engine works; None if the server does not report it."""
    try:
        counters = fetch_counters(root)
    except JudgeError:
        return None
    known = [counters[name] for name in _PROGRESS_COUNTERS if name in counters]
    return sum(known) if known else None
