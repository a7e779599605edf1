"""Program as the agent of a campaign: it needs only the URL of its model endpoint, and no code."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, cast

from agentguard._sync_async import SharedBody, run_sync
from agentguard.bundles import RunBinding
from agentguard.chaos.injection import MODEL_SITE, InjectionBinding
from agentguard.chaos.model_exchange import ModelExchange, find_adapter
from agentguard.errors import AgentGuardError, ConfigError, FormatError, MissingExtra
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.conversation import BranchStep, ConversationBranch, Item
from agentguard.testing.fake_backend import FakeBackend
from agentguard.trajectory.model import Source, Step, Trajectory

try:
    import httpx2

    from agentguard.bundles.http_exchange import BoundTransport
except ImportError as error:
    raise MissingExtra("a campaign on a program", "chat") from error

_MAX_ERROR_CHARS: Final = 200


class ProgramFailed(Exception):
    """Error of a program that ends with an exit status other than 0, or not in time."""


class ProgramAgent:
    """Agent that runs a program against an endpoint with faults, and returns its conversation.

    Args:
        command: program and arguments.
        upstream: base URL of the endpoint that answers, such as a proxy; None for a fake endpoint.
        environment: variables of the program; ``{url}`` is replaced by the URL of the endpoint with faults.
        port: port of the endpoint with faults; 0 lets the system choose.
        timeout_s: seconds after which the program is stopped.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        upstream: str | None,
        environment: Mapping[str, str],
        port: int = 0,
        timeout_s: float = 120.0,
    ) -> None:
        self._command, self._upstream, self._environment = tuple(command), upstream, dict(environment)
        self._port, self._timeout_s = port, timeout_s

    def __call__(self, binding: RunBinding) -> Trajectory:
        """Run the program.

        Raises:
            ProgramFailed: the exit status is not 0, or the program did not end in time.
            ConfigError: the program cannot be started, or it sent no request.
        """
        assert isinstance(binding, InjectionBinding)
        traffic = ProgramTraffic(binding)
        with ExitStack() as stack:
            upstream = self._upstream or stack.enter_context(FakeBackend()).url
            url = stack.enter_context(serve_traffic(traffic, upstream, port=self._port))
            self._run(url)
        return traffic.build_trajectory(binding.run_id)

    def _run(self, url: str) -> None:
        variables = {name: value.replace("{url}", url) for name, value in self._environment.items()}
        try:
            done = subprocess.run(  # noqa: S603 - the campaign file names the program
                self._command,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"the program did not end within {self._timeout_s:g} s") from None
        except OSError as error:
            raise ConfigError(
                f"target.command: {self._command[0]} cannot be started: {error.strerror}"
            ) from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            reason = lines[-1][:_MAX_ERROR_CHARS] if lines else "no text on stderr"
            raise ProgramFailed(f"exit status {done.returncode}: {reason}")


_AGENT: Final = "program"
_HOP_HEADERS: Final = frozenset(
    {"host", "content-length", "connection", "accept-encoding", "transfer-encoding", "keep-alive"}
)


class ProgramTraffic:
    """Requests of one run of a program, with faults at the model and at the results of tools.

    The next request has the result of a tool, after the program has executed it. So a fault that prevents the
    execution of a tool replaces its result. Each result changes once; later requests repeat the change.

    Args:
        binding: binding with the fault.
    """

    def __init__(self, binding: InjectionBinding) -> None:
        self._binding = binding
        self._results: dict[tuple[str, int], str] = {}
        self._last: tuple[ApiAdapter, dict[str, Any], Any] | None = None
        self._lock = threading.RLock()

    def run_exchange(self, name: str, request: dict[str, Any]) -> SharedBody[Any]:
        """Yield a request for its response, both with the fault of the binding."""
        adapter, body = find_adapter(name), request["body"]
        if adapter is None or not isinstance(body, dict):
            return (yield request)
        with self._lock:
            body = self._replace_results(adapter, body)
        exchange = ModelExchange(adapter, body)
        call = self._binding.run_call(MODEL_SITE, exchange.build_request(), apply=exchange.apply)
        response = yield from call
        if response["status"] == 200:
            self._last = (adapter, body, response["body"])
        return exchange.encode(response)

    def build_trajectory(self, run_id: str) -> Trajectory:
        """Return the conversation of the last answered request.

        Raises:
            ConfigError: the program has sent no request to a known API.
        """
        if self._last is None:
            raise ConfigError("the program sent no answered request to the endpoint of the campaign")
        adapter, body, payload = self._last
        answer = adapter.extract_answer_items(payload) if isinstance(payload, Mapping) else None
        items = [*adapter.extract_items(body), *(answer or ())]
        steps = [step for _, _, step in _iterate_steps(adapter, items)]
        task = next((step.content for step in steps if step.source is Source.USER), "")
        numbered = tuple(replace(step, index=index) for index, step in enumerate(steps))
        return Trajectory(id=run_id, format="event_log", task=task, steps=numbered)

    def _replace_results(self, adapter: ApiAdapter, body: dict[str, Any]) -> dict[str, Any]:
        items = adapter.extract_items(body)
        changed = list(items)
        counts: Counter[str] = Counter()
        for start, end, step in _iterate_steps(adapter, items):
            places = [place for place in range(start, end) if adapter.is_result(items[place])]
            calls = {call.id: call for call in step.tool_calls}
            for place, observation in zip(places, step.observations, strict=False):
                call = calls.get(observation.call_id or "")
                if call is None or not isinstance(call.arguments, Mapping):
                    continue
                key = (call.id, counts[call.id])
                counts[call.id] += 1
                if key not in self._results:
                    self._results[key] = self._run_tool(call.name, call.arguments, observation.content)
                if self._results[key] != observation.content:
                    changed[place] = adapter.replace_result_text(items[place], self._results[key])
        if changed == items:
            return body
        branch = ConversationBranch()
        branch.add_step(BranchStep(items=cast(list[int | Item], changed)))
        root = body.get("previous_response_id")
        return adapter.build_body(body, branch, items, root_response_id=root)

    def _run_tool(self, name: str, arguments: Mapping[str, Any], result: str) -> str:
        """Return the result of a tool with the fault."""
        call = self._binding.run_call(f"tool:{name}", dict(arguments), is_executed=True)
        try:
            return str(run_sync(call, lambda _: result))
        except Exception as error:
            return f"Error: {error}"


def _iterate_steps(adapter: ApiAdapter, items: list[Item]) -> Iterator[tuple[int, int, Step]]:
    """Yield start, end and step of each valid turn."""
    for start, end in adapter.split_turns(items, 0):
        try:
            yield start, end, adapter.build_step(items[start:end], _AGENT)
        except FormatError:
            continue


@contextmanager
def serve_traffic(traffic: ProgramTraffic, upstream: str, *, port: int = 0) -> Iterator[str]:
    """Serve an endpoint on this machine inside the ``with`` block, and yield its URL without ``/v1``.

    Args:
        traffic: handler of the exchanges.
        upstream: base URL of the endpoint that answers, with or without ``/v1``.
        port: port of 127.0.0.1; 0 lets the system choose.

    Raises:
        ConfigError: the port cannot be used.
    """
    transport = BoundTransport(traffic.run_exchange, httpx2.HTTPTransport())

    base = upstream.rstrip("/").removesuffix("/v1")
    handler = type("EndpointHandler", (_EndpointHandler,), {"transport": transport, "upstream": base})
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise ConfigError(f"target.port: {port} cannot be used: {error.strerror}") from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        transport.close()


class _EndpointHandler(BaseHTTPRequestHandler):
    """Handler of one connection."""

    protocol_version = "HTTP/1.1"
    transport: httpx2.BaseTransport
    upstream: str

    def do_POST(self) -> None:
        """Forward a request."""
        self._forward()

    def do_GET(self) -> None:
        """Forward a request."""
        self._forward()

    def log_message(self, format: str, *args: Any) -> None:
        """Write no access log."""

    def _forward(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = [(name, value) for name, value in self.headers.items() if name.lower() not in _HOP_HEADERS]
        url = f"{self.upstream}{self.path}"
        try:
            response = self.transport.handle_request(
                httpx2.Request(self.command, url, headers=headers, content=content)
            )
        except httpx2.TransportError:
            # The program sees a closed connection, as after a real network error.
            self.close_connection = True
            return
        except AgentGuardError as error:
            self.send_error(HTTPStatus.BAD_GATEWAY, explain=str(error))
            return
        body = response.read()
        self.send_response(response.status_code)
        for name, value in response.headers.items():
            if name.lower() not in _HOP_HEADERS and name.lower() != "content-encoding":
                self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
