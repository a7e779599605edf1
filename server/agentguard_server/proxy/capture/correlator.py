"""Looks at what has passed: requests and their answers, joined to runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, cast

from agentguard.guard import Guard
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.passive import PassiveInterceptor
from agentguard.intercept.registry import APIS, hold_of
from agentguard.intercept.types import CandidateRequest
from agentguard.runtime.passive_session import PassiveSession
from agentguard.runtime.session import Session
from agentguard.runtime.session_config import SessionConfig
from agentguard.trajectory.model import Trajectory
from agentguard_server.proxy.capture.protocol import CapturedExchange
from agentguard_server.proxy.capture.run_writer import RunWriter
from agentguard_server.proxy.guard.eligibility import decode_body
from agentguard_server.proxy.guard.options import RunsOptions

logger = logging.getLogger("agentguard.keeper")


def _reject_resend(_: Any) -> Any:
    raise AssertionError("what has passed is never asked again")


_NO_CANDIDATES: Final = CandidateRequest(send=_reject_resend, received=_reject_resend)


class RunCorrelator:
    """Joins requests to runs, and hands these on to be kept; call its methods inside `Kept.together`.

    Args:
        guard: whose rules tell who is told of a run that has ended.
        kept: where runs are kept.
        runs: how requests are joined to runs, and when those have ended.
    """

    def __init__(self, guard: Guard, writer: RunWriter, options: RunsOptions) -> None:
        self._session_config = replace(
            cast(SessionConfig, guard.components.session_config),
            acceptance_function=None,
            safety_assessor=None,
        )
        self._guard, self._writer, self._options = guard, writer, options
        self._interceptors: dict[str, PassiveInterceptor] = {}

    def process(self, captured: CapturedExchange) -> None:
        """Take in a request and its answer. Raises whatever is wrong with them."""
        api, body = APIS.get(captured.api), decode_body(captured.request_body)
        if api is None or body is None or not api.dialect.guards(body):
            return
        engine = self._interceptors.get(captured.tenant) or self._create_interceptor(captured.tenant)
        exchange = engine.open(
            api.dialect,
            body,
            run=captured.run_id,
            repeat=captured.is_retry,
            weight=len(captured.request_body),
        )
        try:
            if (payload := _parse_payload(exchange, captured.response)) is not None:
                exchange.observing(payload)
        except EOFError:
            pass  # it broke off, and the client knows
        finally:
            exchange.settle()

    def end_idle(self, idle_timeout_s: float | None = None) -> int:
        """End the runs that nobody goes on with; how many."""
        after = self._options.idle_timeout_s if idle_timeout_s is None else idle_timeout_s
        return sum(engine.end_idle(after) for engine in self._interceptors.values())

    def _create_interceptor(self, tenant: str) -> PassiveInterceptor:
        runs = self._options
        made = PassiveInterceptor(
            self._guard,
            agent=runs.agent,
            kept=runs.max_sessions,
            kept_bytes=runs.max_session_bytes,
            begin=self._build_session_factory(tenant),
        )
        self._interceptors[tenant] = made
        return made

    def _build_session_factory(self, tenant: str) -> Callable[[Trajectory], Session]:
        def begin(meta: Trajectory) -> Session:
            return PassiveSession(self._session_config, meta, self._writer.create_row_builder(tenant, meta))

        return begin


def _parse_payload(exchange: GuardedRequest, response: bytes) -> dict[str, Any] | None:
    """The answer as an object; None if there is none. Raises EOFError if it broke off."""
    if not response:
        return None
    if response.lstrip()[:1] == b"{":
        return decode_body(response)
    hold = hold_of(exchange, _NO_CANDIDATES, everything=True)
    hold.feed(response)
    return hold.whole()
