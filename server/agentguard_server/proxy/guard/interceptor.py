"""Guards requests as they pass: one engine a tenant, so that no key ever goes on with another's run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from agentguard.backends.base import Response
from agentguard.config.policy import Policy
from agentguard.guard import Guard
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.conversation import Conversation
from agentguard.intercept.history_edits import Edits, edits_of
from agentguard.intercept.interceptor import CAN, Interceptor
from agentguard.intercept.registry import APIS
from agentguard.recover.effect_ledger import EffectStore
from agentguard.recover.strategy import Recovery
from agentguard.runtime.session import Session
from agentguard.trajectory.event_log.recorder import EventSink, RunRecorder
from agentguard.trajectory.model import Source, Step, ToolCall, Trajectory
from agentguard_server.proxy.guard.eligibility import decoded, may_offer_tools, requires_guard, run_name
from agentguard_server.proxy.guard.guarded_request import InlineGuardedRequest, refused
from agentguard_server.proxy.guard.options import RunsOptions, Stream
from agentguard_server.proxy.guard.session_registry import Sessions
from agentguard_server.proxy.hooks import InterceptedRequest, ProxyRequest

_SWEEPS: Final = 4
"""Looks for idle runs in the time after which one counts as idle."""
_LONG: Final = 65_536
"""Bytes of a body that is read in a thread, so that other requests do not wait for it."""

Opened = InterceptedRequest | Response | None


class RunLogFactory(Protocol):
    """Where guarded runs are kept as they happen: `agentguard_server.proxy.capture.client.CollectorClient`."""

    def run(self, tenant: str) -> EventSink:
        """Takes the events of one run of a tenant."""
        ...

    def recovery(self, tenant: str, recovery: Recovery) -> None:
        """Takes a recovery when it begins, and again when its outcome is known."""
        ...


class ConversationStore(Protocol):
    """Where workers find what others did to a run: `agentguard_server.proxy.cluster.SharedSessions`."""

    def keep(
        self, keys: Iterable[bytes], state: Mapping[str, Any], *, tenant: str, run: str, version: int
    ) -> None:
        """Keep the state of a conversation under its keys; never waits and never raises."""
        ...

    async def find(self, keys: Sequence[bytes], *, tenant: str) -> Mapping[str, Any] | None:
        """The state under the first of the keys that has one; never raises."""
        ...

    def book(self, run: str, *, tenant: str) -> EffectStore | None:
        """Where the effects of a run that begins here are kept for others; None if they are not."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardCandidate:
    """A request on its way to be guarded.

    Attributes:
        asked: the request.
        engine: of its tenant.
        dialect: of its API.
        run: name that the client gave, if it is one.
        must: guard it though no tool is offered.
    """

    asked: ProxyRequest = field(kw_only=False)
    engine: Interceptor = field(kw_only=False)
    dialect: ApiAdapter = field(kw_only=False)
    run: str
    must: bool


@dataclass(slots=True)
class GuardCounters:
    """What became of requests that a verdict was wanted for.

    Attributes:
        guarded: requests that were guarded as they passed.
        too_long: those that passed since their body was too long.
        refused: those that were refused since the guard failed on them.
    """

    guarded: int = 0
    too_long: int = 0
    refused: int = 0


class InlineGuard:
    """As `agentguard_server.proxy.hooks.RequestInterceptor`; lives in one event loop.

    Args:
        policy: what is guarded against, and what is done.
        stream: what of a stream is held.
        runs: how runs are guarded.
        log: where they are kept; nowhere if absent.
        tag: added to the names of runs, to tell those of several workers apart.
        shared: where other workers find what was done to a run; each begins with its history if absent.

    Raises:
        ConfigError, UnknownPlugin, ModelFileError: as `Guard.from_policy` does.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        stream: Stream = "hold_tools",
        runs: RunsOptions | None = None,
        log: RunLogFactory | None = None,
        tag: str = "",
        shared: ConversationStore | None = None,
    ) -> None:
        self._policy, self._stream, self._log, self._tag = policy, stream, log, tag
        self._shared = shared
        self.runs = runs or RunsOptions()
        self.sessions = Sessions(self.runs.kept, most_bytes=self.runs.kept_bytes)
        self.counts = GuardCounters()
        self._all = stream == "hold_all" or self.runs.inline == "all"
        self._first = Guard.from_policy(policy)
        self._engines: dict[str, Interceptor] = {}
        self._engine("")
        _warm(self._first)
        self._sweep: asyncio.TimerHandle | None = None

    def open(self, asked: ProxyRequest) -> Opened | asyncio.Future[Opened]:
        """As `Guarding.open`; what is long, or may go on from another worker, is awaited."""
        api = APIS.get(asked.api)
        if api is None or asked.run == "off" or self._stream == "pass":
            return None
        engine = self._engines.get(asked.tenant) or self._engine(asked.tenant)
        run = run_name(asked.run)
        must = self._all or (bool(run) and engine.knows(run))
        going_on = self._shared is not None or bool(len(engine.waiting))
        if not must and not may_offer_tools(asked.body, going_on=going_on):
            return None
        if len(asked.body) > self.runs.most_bytes:
            self.counts.too_long += 1
            return None
        asking = GuardCandidate(asked, engine, api.dialect, run=run, must=must)
        if self._shared is None and len(asked.body) <= _LONG:
            return self._opened(asking)
        return asyncio.ensure_future(self._aside(asking))

    async def _aside(self, asking: GuardCandidate) -> Opened:
        """Open a request whose bodies take long to read, or whose run may have begun elsewhere."""
        edits = None if self._shared is None else await self._elsewhere(asking, self._shared)
        if len(asking.asked.body) <= _LONG:
            return self._opened(asking, edits)
        made = asyncio.ensure_future(asyncio.to_thread(self._opened, asking, edits))
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:  # the client has left; its run is to wait for the next request
            made.add_done_callback(_settled)
            raise

    async def _elsewhere(self, asking: GuardCandidate, shared: ConversationStore) -> Edits | None:
        """What another worker, or another machine, has done to the run; None if it is none of theirs."""
        try:
            body = decoded(asking.asked.body)
            if body is None or not asking.dialect.guards(body):
                return None
            keys = asking.engine.foreign(asking.dialect, body, run=asking.run)
            found = await shared.find(keys, tenant=asking.asked.tenant) if keys else None
            return None if found is None else edits_of(found)
        except Exception as error:  # it begins with its history, as if nobody had known it
            asking.engine.failed(error)
            return None

    def _opened(self, asking: GuardCandidate, edits: Edits | None = None) -> Opened:
        engine, dialect, asked = asking.engine, asking.dialect, asking.asked
        try:
            body = decoded(asked.body)
            if body is None or not dialect.guards(body):
                return None
            known = edits is not None or engine.continues(body)
            if not (asking.must or known or requires_guard(dialect, body)):
                return None
            exchange = engine.open(
                dialect,
                body,
                run=asking.run,
                repeat=_repeated(asked),
                edits=edits,
                weight=len(asked.body),
            )
            return self._guarded(engine, exchange, asked)
        except Exception as error:  # whatever the guard trips over, the request is not to blame
            engine.failed(error)
            if not engine.closed:
                return None
            self.counts.refused += 1
            return refused(asked)

    def end_idle(self) -> int:
        """End the runs that nobody goes on with; how many."""
        return sum(engine.end_idle(self.runs.idle_s) for engine in self._engines.values())

    def close(self) -> None:
        """End all runs: whoever goes on with one later begins another with its history."""
        if self._sweep is not None:
            self._sweep.cancel()
        for engine in self._engines.values():
            engine.end_idle(-1.0)

    def _guarded(self, engine: Interceptor, exchange: Any, asked: ProxyRequest) -> InlineGuardedRequest:
        session, tenant = exchange.session, asked.tenant
        self.sessions.used(tenant, session, len(asked.body))
        self.counts.guarded += 1
        everything = self._stream == "hold_all"
        return InlineGuardedRequest(engine, exchange, asked, everything=everything, settled=self._watch)

    def _watch(self) -> None:
        """See to it that somebody looks for idle runs, as long as there are any."""
        if self._sweep is None:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(self.runs.idle_s / _SWEEPS, self._look)

    def _look(self) -> None:
        self._sweep = None
        self.end_idle()
        if any(len(engine.waiting) for engine in self._engines.values()):
            self._watch()

    def _engine(self, tenant: str) -> Interceptor:
        guard, runs = self._guard(tenant), self.runs
        keep = None if self._shared is None else self._keeps(self._shared, tenant)
        made = Interceptor(
            guard,
            agent=runs.agent,
            kept=runs.kept,
            kept_bytes=runs.kept_bytes,
            begin=self._begins(guard, tenant),
            keep=keep,
        )
        self._engines[tenant] = made
        return made

    def _guard(self, tenant: str) -> Guard:
        """A guard of its own for each tenant; they share what localizes."""
        log = self._log
        if log is None:
            return self._first

        def told(recovery: Recovery) -> None:
            log.recovery(tenant, recovery)

        return Guard.from_policy(self._policy, localizer=self._first.localizer, observers=(told,))

    def _keeps(
        self, shared: ConversationStore, tenant: str
    ) -> Callable[[Conversation, Mapping[str, Any]], None]:
        def keep(of: Conversation, data: Mapping[str, Any]) -> None:
            shared.keep(of.continuation_keys, data, tenant=tenant, run=of.session.id, version=of.version)

        return keep

    def _begins(self, guard: Guard, tenant: str) -> Callable[[Trajectory], Session]:
        def begin(meta: Trajectory) -> Session:
            named = replace(meta, id=f"{meta.id}{self._tag}")
            log = None if self._log is None else self._log.run(tenant)
            book = None if self._shared is None else self._shared.book(named.id, tenant=tenant)
            session = guard.session(named, CAN, recorder=RunRecorder(named, log=log), effect_store=book)
            self.sessions.add(tenant, session)
            return session

        return begin


def _settled(made: asyncio.Future[Opened]) -> None:
    if not made.cancelled() and isinstance(opened := made.result(), InlineGuardedRequest):
        opened.settle()


def _warm(guard: Guard) -> None:
    """Let detectors load and compile what they need now, and not while the first request waits."""
    session = guard.session(Trajectory(id="warm", format="event_log", task="", steps=()), CAN)
    call = ToolCall(id="c", name="warm", arguments={})
    turn = Step(index=0, source=Source.AGENT, agent="assistant", content="Warm up.", tool_calls=(call,))
    session.check_boundary()
    session.propose(turn)
    session.commit(turn)


def _repeated(asked: ProxyRequest) -> bool:
    """Whether a client says that it sends a request again; the SDKs do."""
    return any(name == b"x-stainless-retry-count" and text != b"0" for name, text in asked.headers)
