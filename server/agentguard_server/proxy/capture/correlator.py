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
from agentguard_server.proxy.guard.eligibility import decoded
from agentguard_server.proxy.guard.options import RunsOptions

logger = logging.getLogger("agentguard.keeper")


def _nobody(_: Any) -> Any:
    raise AssertionError("what has passed is never asked again")


_WIRE: Final = CandidateRequest(send=_nobody, received=_nobody)


class RunCorrelator:
    """Joins requests to runs, and hands these on to be kept; call its methods inside `Kept.together`.

    Args:
        guard: whose rules tell who is told of a run that has ended.
        kept: where runs are kept.
        runs: how requests are joined to runs, and when those have ended.
    """

    def __init__(self, guard: Guard, kept: RunWriter, runs: RunsOptions) -> None:
        self._rules = replace(
            cast(SessionConfig, guard.components.session_config),
            acceptance_function=None,
            safety_assessor=None,
        )
        self._guard, self._kept, self._runs = guard, kept, runs
        self._engines: dict[str, PassiveInterceptor] = {}

    def take(self, seen: CapturedExchange) -> None:
        """Take in a request and its answer. Raises whatever is wrong with them."""
        api, body = APIS.get(seen.api), decoded(seen.body)
        if api is None or body is None or not api.dialect.guards(body):
            return
        engine = self._engines.get(seen.tenant) or self._engine(seen.tenant)
        exchange = engine.open(api.dialect, body, run=seen.run, repeat=seen.repeat, weight=len(seen.body))
        try:
            if (payload := _payload(exchange, seen.answer)) is not None:
                exchange.observing(payload)
        except EOFError:
            pass  # it broke off, and the client knows
        finally:
            exchange.settle()

    def end_idle(self, idle_s: float | None = None) -> int:
        """End the runs that nobody goes on with; how many."""
        after = self._runs.idle_s if idle_s is None else idle_s
        return sum(engine.end_idle(after) for engine in self._engines.values())

    def _engine(self, tenant: str) -> PassiveInterceptor:
        runs = self._runs
        made = PassiveInterceptor(
            self._guard,
            agent=runs.agent,
            kept=runs.kept,
            kept_bytes=runs.kept_bytes,
            begin=self._begins(tenant),
        )
        self._engines[tenant] = made
        return made

    def _begins(self, tenant: str) -> Callable[[Trajectory], Session]:
        def begin(meta: Trajectory) -> Session:
            return PassiveSession(self._rules, meta, self._kept.passed(tenant, meta))

        return begin


def _payload(exchange: GuardedRequest, answer: bytes) -> dict[str, Any] | None:
    """The answer as an object; None if there is none. Raises EOFError if it broke off."""
    if not answer:
        return None
    if answer.lstrip()[:1] == b"{":
        return decoded(answer)
    hold = hold_of(exchange, _WIRE, everything=True)
    hold.feed(answer)
    return hold.whole()
