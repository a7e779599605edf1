"""Between the proxy, which moves bytes, and what stands beside it: who guards a run, and who is told.

The proxy calls these in this order for each request of a model API; anything else just passes through::

    guarded = guarding.open(asked)       None: nothing to guard. It costs next to nothing to be told that.
    guarded.final                        the guard answers by itself, nothing is sent
    guarded.body                         what is sent upstream, sticky view and all; the client's own if None
    answer = await guarded.judge(answer, ask)          a whole answer: what the client gets
    hold = guarded.hold()                              a stream: bytes in, bytes that may be shown out
    guarded.settle()                     once, whatever became of the request
    recorder.record(exchange)            afterwards, in any case: never waits, never raises
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from agentguard.backends.base import Headers, Response, StreamingResponse

ApiName = str
"""``chat``, ``completions``, ``embeddings``, ``responses``, ``messages``; empty for what passes through."""


@dataclass(slots=True, kw_only=True)
class ProxyRequest:
    """A request of a client, read whole. Not to be changed.

    Not frozen, and nor is `Recorded`: they are made for each request, and that would take three times as
    long.

    Attributes:
        api: which API it is of.
        method: of HTTP.
        target: path and query as the client sent them.
        headers: names in lower case; the client's key is not among them.
        body: as it came.
        stream: whether it asks for a stream.
        model: that it names.
        tenant: whose key it came with; empty where there are no keys.
        run: the run that the client names; empty if it names none, ``off`` leaves the request unguarded.
        id: of this request, in logs, headers and spans.
        started: clock time at which its head came, in seconds.
    """

    api: ApiName
    method: str
    target: str
    headers: Headers
    body: bytes
    stream: bool
    model: str
    tenant: str
    run_id: str
    request_id: str
    started_at: float


@dataclass(slots=True, kw_only=True)
class GuardOutcome:
    """Actions of the guard in one request. Treat it as immutable.

    Attributes:
        run_id: ID of the run.
        step: number of steps in the run.
        findings: code and first step of the run's last findings, in order; each code once.
        recoveries: strategy and target step of the recoveries in this request, in order.
        stopped: True if the guard stopped the run.
        stream_mode: ``buffer_tool_calls`` or ``buffer_all``; empty if the client requested no stream.
    """

    run_id: str
    step: int
    findings: tuple[tuple[str, int], ...] = ()
    recoveries: tuple[tuple[str, int], ...] = ()
    stopped: bool = False
    stream_mode: str = ""


ModelCaller = Callable[[bytes, bool], Awaitable[Response | StreamingResponse]]
"""Ask the model again, or for another candidate: a body, and whether a stream is wanted."""


class StreamBuffer(Protocol):
    """Holds back of a stream what the client may not see yet; one a request, whatever is asked again."""

    def feed(self, data: bytes) -> bytes:
        """Take in whole events of the current answer; returns what the client may have now."""
        ...

    async def finish(self, call_model: ModelCaller) -> tuple[bytes, bool]:
        """The current answer is over: judge it.

        Returns:
            What the client gets now, and whether `Guarded.body` is to be asked for and its answer fed, too.

        Raises:
            EOFError: the answer is not whole; nothing of what was held may be shown.
        """
        ...

    def format_error_event(self, message: str) -> bytes:
        """What ends the client's stream when asking again failed: one typed error of its API."""
        ...


class InterceptedRequest(Protocol):
    """One request of a guarded run."""

    @property
    def local_response(self) -> Response | None:
        """The guard's own answer, in the form that was asked for; nothing is sent then."""
        ...

    @property
    def body(self) -> bytes | None:
        """The body to send; None where it is the client's own."""
        ...

    @property
    def outcome(self) -> GuardOutcome:
        """Return the actions of the guard so far. Safe to call at any time."""
        ...

    async def judge(self, response: Response, call_model: ModelCaller) -> Response:
        """What the client gets for a whole answer; asks again as often as the guard wants it."""
        ...

    def create_stream_buffer(self) -> StreamBuffer:
        """What holds a stream back."""
        ...

    def settle(self) -> None:
        """Let the run wait for its next request. May be called twice; never raises."""
        ...


@dataclass(slots=True)
class GuardCounters:
    """Numbers of requests that the guard has seen.

    Attributes:
        guarded: requests that the guard judged.
        too_long: requests that it skipped because of their long bodies.
        refused: requests that it refused after an internal error.
    """

    guarded: int = 0
    too_long: int = 0
    refused: int = 0


class SessionSummaries(Protocol):
    """Summaries of the guarded runs of one worker, without their texts."""

    def __len__(self) -> int:
        """Return the number of runs."""
        ...

    def list_summaries(self, tenant: str | None = None, *, limit: int = 100) -> list[dict[str, Any]]:
        """Return runs of a tenant, or of all tenants for None; the most recently used first."""
        ...

    def list_recent(self, *, tenant_limit: int, limit: int) -> list[dict[str, Any]]:
        """Return the most recently used runs: at most ``tenant_limit`` of each tenant."""
        ...

    def describe(self, id: str, tenant: str | None = None) -> dict[str, Any] | None:
        """Return a run with its steps, findings and recoveries; None if the worker does not have it."""
        ...


class RequestInterceptor(Protocol):
    """Who guards; `None` of it makes a pure gateway."""

    @property
    def counts(self) -> GuardCounters:
        """Return the numbers of requests."""
        ...

    @property
    def sessions(self) -> SessionSummaries:
        """Return the guarded runs."""
        ...

    def intercept(
        self, request: ProxyRequest
    ) -> InterceptedRequest | Response | Future[InterceptedRequest | Response | None] | None:
        """Begin with a request: None if it is not guarded, an answer if it is refused. Never raises.

        A future where it takes longer: a long body, a run that may have begun in another process.
        """
        ...


@dataclass(slots=True, kw_only=True)
class CompletedRequest:
    """One request and what came of it, for those who are told afterwards. Not to be changed.

    Attributes:
        asked: the request.
        sent: the body that was sent, where it was not the client's.
        status: what the client got; 499 if it left before.
        answer: the answer's bytes as the client got them, cut at the capture's limit; events if a stream.
        complete: whether the client got all of it.
        replica: who answered; empty if nobody did.
        error: code of the error; empty if there was none.
        guard_outcome: actions of the guard; None if the request was not guarded.
        notes: what became of it on its way: attempts, hedges, failover, votes.
        first_s: seconds from the head of the request to the first byte of the answer, None if there was none.
        seconds: to its end.
    """

    request: ProxyRequest
    sent_body: bytes | None
    status: int
    response_body: bytes
    is_complete: bool
    replica: str
    error_code: str
    guard_outcome: GuardOutcome | None
    notes: tuple[tuple[str, str], ...]
    time_to_first_byte_s: float | None
    duration_s: float


class RequestObserver(Protocol):
    """Who is told of each request: capture, metrics, spans, logs. Each sees all of them, in order."""

    def record(self, completed: CompletedRequest) -> None:
        """Take note. Never waits and never raises; what is lost is counted."""
        ...
