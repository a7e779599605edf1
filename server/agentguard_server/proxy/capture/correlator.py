"""Run correlation: assignment of captured requests and responses to runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, cast

from agentguard.guard import Guard
from agentguard.intercept.guarded_apis import GUARDED_APIS, build_stream_buffer
from agentguard.intercept.guarded_request import CandidateRequest, GuardedRequest
from agentguard.intercept.passive_interceptor import PassiveInterceptor, PassiveSession
from agentguard.runtime.session import Session
from agentguard.runtime.session_config import SessionConfig
from agentguard.trajectory.model import Trajectory
from agentguard_server.proxy.capture.bundle_writer import RunBundleWriter
from agentguard_server.proxy.capture.history_cache import HistoryCache
from agentguard_server.proxy.capture.protocol import CapturedExchange
from agentguard_server.proxy.capture.run_writer import RunWriter
from agentguard_server.proxy.guard.inline_guarded_request import decode_body
from agentguard_server.proxy.guard.options import GuardOptions

logger = logging.getLogger("agentguard.collector")


def _reject_resend(_: Any) -> Any:
    raise AssertionError("a completed request is not sent again")


_NO_CANDIDATES: Final = CandidateRequest(build_request=_reject_resend, parse_response=_reject_resend)


class RunCorrelator:
    """Correlator that assigns requests to runs and passes the runs to the writer.

    Call its methods inside `RunWriter.unit_of_work`.

    Args:
        guard: guard whose session configuration applies to the runs.
        writer: writer of the runs.
        options: section ``guard``: run correlation and idle timeout.
        bundles: writer of bundles; None for no bundles.
        run_name_suffix: suffix of the IDs of named runs.
    """

    def __init__(
        self,
        guard: Guard,
        writer: RunWriter,
        options: GuardOptions,
        bundles: RunBundleWriter | None = None,
        *,
        run_name_suffix: str = "",
    ) -> None:
        self._session_config = replace(
            cast(SessionConfig, guard.components.session_config),
            acceptance_function=None,
            safety_assessor=None,
            clock=lambda: self._exchange_time,
        )
        self._exchange_time, self._is_named = 0.0, False
        self._guard, self._writer, self._options = guard, writer, options
        self._bundles, self._run_name_suffix = bundles, run_name_suffix
        self._interceptors: dict[str, PassiveInterceptor] = {}
        self._histories = HistoryCache()

    def process(self, captured: CapturedExchange) -> None:
        """Assign a request and its response to a run. Raises an exception if they are not valid."""
        api, scope = GUARDED_APIS.get(captured.api), (captured.tenant, captured.api, captured.run_id)
        request = self._histories.decode(scope, captured.request_body)
        if api is None or request is None or not api.adapter.can_guard(request.body):
            return
        engine = self._interceptors.get(captured.tenant) or self._create_interceptor(captured.tenant)
        has_whole_history = request.body.get("previous_response_id") is None
        keys = engine.build_history_keys(
            api.adapter,
            request.body,
            run_name=captured.run_id,
            known_keys=request.known_keys if has_whole_history else (),
        )
        if has_whole_history:
            self._histories.store(scope, captured.request_body, request, keys)
        self._exchange_time, self._is_named = captured.started_at, bool(captured.run_id)
        exchange = engine.open_request(
            api.adapter,
            request.body,
            run_name=captured.run_id,
            is_retry=captured.is_retry,
            size_bytes=len(captured.request_body),
            keys=keys,
        )
        self._exchange_time = captured.ended_at
        try:
            if (payload := _parse_payload(exchange, captured.response)) is not None:
                exchange.record_answer(payload)
        except EOFError:
            pass  # an incomplete stream; the client has noticed it, too
        finally:
            exchange.settle()
            if self._bundles is not None:
                self._bundles.add_exchange(exchange.session.run.id, captured)

    def end_idle(self, idle_timeout_s: float | None = None) -> int:
        """End the runs that are idle longer than the timeout; return their number."""
        after = self._options.idle_timeout_s if idle_timeout_s is None else idle_timeout_s
        return sum(engine.end_idle(after) for engine in self._interceptors.values())

    def _create_interceptor(self, tenant: str) -> PassiveInterceptor:
        runs = self._options
        made = PassiveInterceptor(
            self._guard,
            agent=runs.agent,
            max_conversations=runs.max_sessions,
            max_conversation_bytes=runs.max_session_bytes,
            run_name_suffix=self._run_name_suffix,
            create_session=self._build_session_factory(tenant),
        )
        self._interceptors[tenant] = made
        return made

    def _build_session_factory(self, tenant: str) -> Callable[[Trajectory], Session]:
        def begin(meta: Trajectory) -> Session:
            # IDs of other runs are random, so that no stored run has them.
            rows = self._writer.create_row_builder(tenant, meta, may_replace=self._is_named)
            return PassiveSession(self._session_config, meta, rows)

        return begin


def _parse_payload(exchange: GuardedRequest, response: bytes) -> dict[str, Any] | None:
    """Return the response as an object; None without a response. Raises EOFError if it is incomplete."""
    if not response:
        return None
    if response.lstrip()[:1] == b"{":
        return decode_body(response)
    hold = build_stream_buffer(exchange, _NO_CANDIDATES, buffer_all=True)
    hold.feed(response)
    return hold.build_answer()
