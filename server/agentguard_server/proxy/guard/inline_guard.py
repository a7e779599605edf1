"""Inline guard of the proxy: one `Interceptor` per tenant, so that no key continues another tenant's run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from agentguard.backends.base import Response
from agentguard.guard import Guard
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.conversation import Conversation
from agentguard.intercept.guarded_apis import GUARDED_APIS
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.history_edits import HistoryEdits, parse_edits
from agentguard.intercept.interceptor import CAPABILITIES, Interceptor
from agentguard.recover.acceptance.acceptance_record import record_acceptance
from agentguard.recover.effect_store import EffectStore
from agentguard.recover.plan import Recovery
from agentguard.runtime.session import Session
from agentguard.store.db.rows import AcceptanceRow, Row
from agentguard.trajectory.event_log.recorder import EventSink, RunRecorder
from agentguard.trajectory.model import Source, Step, ToolCall, Trajectory
from agentguard_server.proxy.guard.inline_guarded_request import (
    InlineGuardedRequest,
    build_guard_failure_response,
    decode_body,
    parse_run_id,
    requires_guard,
)
from agentguard_server.proxy.guard.options import GuardOptions
from agentguard_server.proxy.guard.session_registry import SessionRegistry
from agentguard_server.proxy.hooks import GuardCounters, InterceptedRequest, ProxyRequest
from agentguard_server.proxy.http.headers import is_retry

_SWEEPS_PER_TIMEOUT: Final = 4
"""Number of sweeps for idle runs per idle timeout."""
_TOOLS_FIELD: Final = b'"tools"'
_TOOL_HISTORY_MARKS: Final = (b'"tool_', b"_call", b"previous_response_id")
"""Byte strings that occur in a body whose history has tool calls or is stored at the endpoint."""
_MAX_INLINE_BODY_BYTES: Final = 65_536
"""Size above which a thread parses the body, so that other requests do not wait."""

InterceptResult = InterceptedRequest | Response | None


class RunLogFactory(Protocol):
    """Recorder of guarded runs: `agentguard_server.proxy.capture.recorder.CollectorClient`."""

    def open_run_log(self, tenant: str) -> EventSink:
        """Return a sink for the events of one run of a tenant."""
        ...

    def record_recovery(self, tenant: str, recovery: Recovery) -> None:
        """Record a recovery when it begins, and again when its outcome is known."""
        ...

    def record_acceptance(self, tenant: str, row: AcceptanceRow) -> None:
        """Record a verdict of the acceptance test."""
        ...


class _TenantAcceptances:
    """Acceptance verdicts of one tenant, which it sends to the recorder of guarded runs."""

    def __init__(self, log: RunLogFactory, tenant: str) -> None:
        self._log, self._tenant = log, tenant

    def write(self, *rows: Row) -> None:
        for row in rows:
            if isinstance(row, AcceptanceRow):
                self._log.record_acceptance(self._tenant, row)


class ConversationStore(Protocol):
    """Store of conversations that workers share.

    Implemented by `agentguard_server.proxy.cluster.conversation_store.SharedConversationStore`.
    """

    def save(
        self, keys: Iterable[bytes], state: Mapping[str, Any], *, tenant: str, run: str, version: int
    ) -> None:
        """Save the state of a conversation under its keys. Never waits or raises."""
        ...

    async def load(self, keys: Sequence[bytes], *, tenant: str) -> Mapping[str, Any] | None:
        """Return the state of the first key that has one; None if no key has one. Never raises."""
        ...

    def create_effect_store(self, run: str, *, tenant: str) -> EffectStore | None:
        """Return a store that shares the effects of a new run; None if effects are not shared."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardCandidate:
    """Request that the guard may handle.

    Attributes:
        request: the request.
        interceptor: interceptor of the tenant.
        adapter: adapter of the API.
        run_id: run that the client names; empty if it names none or the name is not valid.
        is_required: True to guard the request also if it offers no tools.
    """

    request: ProxyRequest = field(kw_only=False)
    interceptor: Interceptor = field(kw_only=False)
    adapter: ApiAdapter = field(kw_only=False)
    run_id: str
    is_required: bool


class InlineGuard:
    """Implementation of `agentguard_server.proxy.hooks.RequestInterceptor` for one event loop.

    Args:
        options: section ``guard`` of the configuration.
        run_log_factory: recorder of guarded runs; by default runs are not recorded.
        run_name_suffix: suffix of the IDs of named runs, which distinguishes the runs of several processes.
        conversations: store through which workers continue each other's runs. By default a worker knows
            only the history in the request.

    Raises:
        ConfigError, UnknownPlugin, ModelFileError: see `Guard.from_policy`.
    """

    def __init__(
        self,
        options: GuardOptions,
        *,
        run_log_factory: RunLogFactory | None = None,
        run_name_suffix: str = "",
        conversations: ConversationStore | None = None,
    ) -> None:
        self._policy = options.load_policy()
        self._run_log_factory, self._run_name_suffix = run_log_factory, run_name_suffix
        self._conversations = conversations
        self.options = options
        self.sessions = SessionRegistry(self.options.max_sessions, max_bytes=self.options.max_session_bytes)
        self.counts = GuardCounters()
        self._guards_all = options.stream_mode == "buffer_all" or options.mode == "always"
        self._default_guard = Guard.from_policy(self._policy)
        self._interceptors: dict[str, Interceptor] = {}
        self._guards: dict[str, Guard] = {}
        self._create_interceptor("")
        _warm_up(self._default_guard)
        self._sweep_timer: asyncio.TimerHandle | None = None

    def intercept(self, request: ProxyRequest) -> InterceptResult | asyncio.Future[InterceptResult]:
        """Open a guarded request; see `RequestInterceptor.intercept`."""
        api = GUARDED_APIS.get(request.api)
        if api is None or request.run_id == "off" or self.options.stream_mode == "observe":
            return None
        interceptor = self._interceptors.get(request.tenant) or self._create_interceptor(request.tenant)
        run_id = parse_run_id(request.run_id) if request.run_id else ""
        is_required = self._guards_all or (bool(run_id) and interceptor.has_run(run_id))
        if not is_required and _TOOLS_FIELD not in request.body:
            if not any(mark in request.body for mark in _TOOL_HISTORY_MARKS):
                return None
            if self._conversations is None and not len(interceptor.conversations):
                return None  # a request without tools can only continue a run
        if len(request.body) > self.options.max_body_bytes:
            self.counts.too_long += 1
            return None
        candidate = GuardCandidate(request, interceptor, api.adapter, run_id=run_id, is_required=is_required)
        if self._conversations is None and len(request.body) <= _MAX_INLINE_BODY_BYTES:
            return self._intercept_now(candidate)
        return asyncio.ensure_future(self._intercept_deferred(candidate))

    async def _intercept_deferred(self, candidate: GuardCandidate) -> InterceptResult:
        """Open a request with a long body, or one whose run another worker may have begun."""
        edits = (
            None
            if self._conversations is None
            else await self._load_remote_edits(candidate, self._conversations)
        )
        if len(candidate.request.body) <= _MAX_INLINE_BODY_BYTES:
            return self._intercept_now(candidate, edits)
        result = asyncio.ensure_future(asyncio.to_thread(self._intercept_now, candidate, edits))
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:  # the client disconnected, but the run must accept its next request
            result.add_done_callback(_settle_abandoned)
            raise

    async def _load_remote_edits(
        self, candidate: GuardCandidate, conversations: ConversationStore
    ) -> HistoryEdits | None:
        """Return the history edits of another worker; None if no other worker has the run."""
        try:
            body = decode_body(candidate.request.body)
            if body is None or not candidate.adapter.can_guard(body):
                return None
            keys = candidate.interceptor.list_foreign_keys(candidate.adapter, body, run_name=candidate.run_id)
            state = await conversations.load(keys, tenant=candidate.request.tenant) if keys else None
            return None if state is None else parse_edits(state)
        except Exception as error:  # continue with the history in the request
            candidate.interceptor.record_failure(error)
            return None

    def _intercept_now(self, candidate: GuardCandidate, edits: HistoryEdits | None = None) -> InterceptResult:
        interceptor, adapter, request = candidate.interceptor, candidate.adapter, candidate.request
        try:
            body = decode_body(request.body)
            if body is None or not adapter.can_guard(body):
                self.counts.unsupported += candidate.is_required or bool(body and body.get("tools"))
                return None
            is_known = edits is not None or interceptor.continues_conversation(body)
            if not (candidate.is_required or is_known or requires_guard(adapter, body)):
                return None
            guarded = interceptor.open_request(
                adapter,
                body,
                run_name=candidate.run_id,
                is_retry=is_retry(request.headers),
                edits=edits,
                size_bytes=len(request.body),
            )
            return self._build_intercepted(interceptor, guarded, request)
        except Exception as error:  # an error of the guard is not an error of the request
            interceptor.record_failure(error)
            if not interceptor.fails_closed:
                return None
            self.counts.refused += 1
            return build_guard_failure_response(request)

    def end_idle(self) -> int:
        """End the runs that are idle longer than the timeout; return their number."""
        return sum(one.end_idle(self.options.idle_timeout_s) for one in self._interceptors.values())

    def close(self) -> None:
        """End all runs and close the judges; a later request with the same history begins another run."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for interceptor in self._interceptors.values():
            interceptor.end_idle(-1.0)
        for guard in self._guards.values():
            guard.close()

    def _build_intercepted(
        self, interceptor: Interceptor, guarded: GuardedRequest, request: ProxyRequest
    ) -> InlineGuardedRequest:
        self.sessions.touch(request.tenant, guarded.session, len(request.body))
        if guarded.is_unjoined:
            self.counts.unjoined += 1
        else:
            self.counts.guarded += 1
        return InlineGuardedRequest(
            interceptor,
            guarded,
            request,
            buffers_text=self.options.stream_mode == "buffer_all",
            on_settled=self._schedule_sweep,
        )

    def _schedule_sweep(self) -> None:
        """Schedule the next sweep for idle runs, unless one is scheduled."""
        if self._sweep_timer is None:
            loop = asyncio.get_running_loop()
            self._sweep_timer = loop.call_later(
                self.options.idle_timeout_s / _SWEEPS_PER_TIMEOUT, self._sweep_idle_runs
            )

    def _sweep_idle_runs(self) -> None:
        self._sweep_timer = None
        self.end_idle()
        if any(len(one.conversations) for one in self._interceptors.values()):
            self._schedule_sweep()

    def _create_interceptor(self, tenant: str) -> Interceptor:
        guard, options = self._create_guard(tenant), self.options
        self._guards[tenant] = guard
        interceptor = self._interceptors[tenant] = Interceptor(
            guard,
            agent=options.agent,
            max_conversations=options.max_sessions,
            max_conversation_bytes=options.max_session_bytes,
            run_name_suffix=self._run_name_suffix,
            create_session=self._build_session_factory(guard, tenant),
            save_edits=None
            if self._conversations is None
            else self._build_edit_saver(self._conversations, tenant),
        )
        return interceptor

    def _create_guard(self, tenant: str) -> Guard:
        """Create the tenant's guard; all guards share one localizer, and no two tenants share schemata."""
        log, shared = self._run_log_factory, self._default_guard.components
        schemata = None if shared.schemata is None else shared.schemata.for_tenant(tenant)
        if log is None and schemata is shared.schemata:
            return self._default_guard

        def observe_recovery(recovery: Recovery) -> None:
            if log is not None:
                log.record_recovery(tenant, recovery)

        accept = shared.accept
        return Guard.from_policy(
            self._policy,
            localizer=self._default_guard.localizer,
            schemata=schemata or False,
            observers=(observe_recovery,),
            accept=accept if log is None else record_acceptance(accept, _TenantAcceptances(log, tenant)),
        )

    def _build_edit_saver(
        self, conversations: ConversationStore, tenant: str
    ) -> Callable[[Conversation, Mapping[str, Any]], None]:
        def save_edits(conversation: Conversation, data: Mapping[str, Any]) -> None:
            conversations.save(
                conversation.continuation_keys,
                data,
                tenant=tenant,
                run=conversation.session.id,
                version=conversation.version,
            )

        return save_edits

    def _build_session_factory(self, guard: Guard, tenant: str) -> Callable[[Trajectory], Session]:
        def create_session(meta: Trajectory) -> Session:
            factory, conversations = self._run_log_factory, self._conversations
            run_log = None if factory is None else factory.open_run_log(tenant)
            session = guard.session(
                meta,
                CAPABILITIES,
                recorder=RunRecorder(meta, log=run_log),
                effect_store=None
                if conversations is None
                else conversations.create_effect_store(meta.id, tenant=tenant),
            )
            self.sessions.add(tenant, session)
            return session

        return create_session


def _settle_abandoned(future: asyncio.Future[InterceptResult]) -> None:
    if not future.cancelled() and isinstance(opened := future.result(), InlineGuardedRequest):
        opened.settle()


def _warm_up(guard: Guard) -> None:
    """Run the detectors once, so that the first request does not wait for their initialisation."""
    with guard.override(live_judge=None):  # the judge is not asked about this run
        session = guard.session(Trajectory(id="warm", format="event_log", task="", steps=()), CAPABILITIES)
    call = ToolCall(id="c", name="warm", arguments={})
    turn = Step(index=0, source=Source.AGENT, agent="assistant", content="Warm up.", tool_calls=(call,))
    session.check_boundary()
    session.propose(turn)
    session.commit(turn)
