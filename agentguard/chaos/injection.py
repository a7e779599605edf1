"""Binding that injects one fault into a run of an agent and counts the calls of each site."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from agentguard._sync_async import SharedBody, Sleep, run_sync
from agentguard.bundles.bindings import (
    EnvironmentFunctions,
    RestoreFunction,
    RunBinding,
    SaveFunction,
    bind_function,
)
from agentguard.chaos.faults import (
    JUDGE_FAULTS,
    MODEL_FAULTS,
    STORE_FAULTS,
    TOOL_FAULTS,
    Fault,
    FaultNotApplicable,
    FaultyCall,
)
from agentguard.chaos.model_exchange import ModelExchange, find_adapter
from agentguard.errors import AgentGuardError
from agentguard.judge.base import Judge, JudgeAnswer, Question
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    import httpx2

    from agentguard.store.store import Store

MODEL_SITE: Final = "model"
JUDGE_SITE: Final = "guard:judge"
STORE_SITE: Final = "guard:store"
MAX_MODEL_CALLS: Final = 1_000
_TOOL_PREFIX: Final = "tool:"
_GUARD_PREFIX: Final = "guard:"

_FAULTS_BY_SITE: Final = {MODEL_SITE: MODEL_FAULTS, JUDGE_SITE: JUDGE_FAULTS, STORE_SITE: STORE_FAULTS}

ApplyFault = Callable[[Fault, FaultyCall], Any]
"""Function that returns the result of a call with a fault, or raises."""


def get_faults(site: str) -> Mapping[str, Fault]:
    """Return the faults that a site can have, by name."""
    return _FAULTS_BY_SITE.get(site, TOOL_FAULTS)


def apply_fault(fault: Fault, call: FaultyCall) -> Any:
    """Return the result of a call of a function with a fault, or raise its exception."""
    return fault.apply(call)


class CallLimitExceeded(AgentGuardError):
    """Error of an agent that makes more model calls than a campaign permits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlacement:
    """Fault at calls of a site.

    Attributes:
        site: ``model``, ``tool:NAME``, ``guard:judge`` or ``guard:store``.
        fault: name of the fault.
        calls: numbers of the calls of the site in the run, from 0, in order; more than one is an outage.
    """

    site: str
    fault: str
    calls: tuple[int, ...]

    @property
    def key(self) -> str:
        """Text that identifies the placement in a campaign."""
        return f"{self.site}/{self.fault}/{self.calls[0]}"


class InjectionBinding:
    """Binding with the live model and tools and at most one fault.

    Args:
        placement: the fault; None for a run without a fault.
        run_id: ID for the run of the agent.
        effects: names of the tools with effects.
        max_calls: number of model calls after which the run ends with `CallLimitExceeded`.
        delay_s: seconds of the fault ``slow``.
        source: binding that answers the calls, such as a replay; None for the live model and tools.

    Attributes:
        sessions: sessions of the run.
        calls: number of calls by site.
        effects: executed calls of tools with effects, as tool and canonical arguments, with their numbers.
        is_injected: True if the run reached the call and the fault applied to it.
        model_calls_at_fault: number of model calls before the fault.
        recovered_after: number of calls from the fault to the first later success at its site, or None.
        recovery_seconds: seconds from the fault to this success, or None.
        events: kinds of the calls by site, in order: ``ok``, ``repeated`` or the type of the error.
    """

    def __init__(
        self,
        placement: FaultPlacement | None = None,
        *,
        run_id: str = "chaos",
        effects: Callable[[str], bool] = lambda _: False,
        max_calls: int = MAX_MODEL_CALLS,
        delay_s: float = 60.0,
        source: RunBinding | None = None,
    ) -> None:
        self.run_id = run_id
        self._placement = placement
        self._has_effect = effects
        self._max_calls, self._delay_s, self._source = max_calls, delay_s, source
        self.sessions: list[Session] = []
        self.calls: Counter[str] = Counter()
        self.effects: Counter[tuple[str, str]] = Counter()
        self.events: dict[str, list[str]] = defaultdict(list)
        self.is_injected = False
        self.model_calls_at_fault = 0
        self.recovered_after: int | None = None
        self.recovery_seconds: float | None = None
        self._calls_at_fault = 0
        self._fault_time = 0.0
        self._results: dict[str, list[tuple[Mapping[str, Any], Any]]] = defaultdict(list)
        self._last_arguments: dict[str, bytes] = {}

    def bind_model(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model with the fault."""
        live = function if self._source is None else self._source.bind_model(function)
        return bind_function(function, partial(self.run_call, MODEL_SITE), live)

    def bind_tools(self, functions: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
        """Return the tools with the fault."""
        live = functions if self._source is None else self._source.bind_tools(functions)
        return [
            bind_function(function, partial(self.run_call, f"tool:{function.__name__}"), one)
            for function, one in zip(functions, live, strict=True)
        ]

    def bind_transport(self, inner: httpx2.BaseTransport | None = None) -> httpx2.BaseTransport:
        """Return a transport for the client of the model, with the fault at its exchanges."""
        from agentguard.bundles.http_exchange import BoundTransport

        source = inner if self._source is None else self._source.bind_transport(inner)
        return BoundTransport(self.run_exchange, source)

    def bind_async_transport(
        self, inner: httpx2.AsyncBaseTransport | None = None
    ) -> httpx2.AsyncBaseTransport:
        """Return a transport like `bind_transport`, for an asynchronous client."""
        from agentguard.bundles.http_exchange import AsyncBoundTransport

        source = inner if self._source is None else self._source.bind_async_transport(inner)
        return AsyncBoundTransport(self.run_exchange, source)

    def bind_environment(self, save: SaveFunction, restore: RestoreFunction) -> EnvironmentFunctions:
        """Return the functions that save and restore the environment, without a fault."""
        return (save, restore) if self._source is None else self._source.bind_environment(save, restore)

    def add_session(self, session: Session) -> None:
        """Add a session of the run."""
        self.sessions.append(session)

    def bind_judge(self, judge: Judge) -> Judge:
        """Return the judge for a guard, with the fault."""
        return FaultyJudge(judge, self.run_call)

    def bind_store(self, store: Store) -> Store:
        """Return the store for a guard, with the fault at the calls that wait for the database."""
        return cast("Store", FaultyStore(store, self.run_call))

    def count_calls(self) -> int:
        """Return the number of calls of the model and the tools."""
        return sum(count for site, count in self.calls.items() if not site.startswith(_GUARD_PREFIX))

    def run_exchange(self, name: str, request: dict[str, Any]) -> SharedBody[Any]:
        """Yield a request to a model API for its response, and return the response with the fault."""
        adapter = find_adapter(name)
        if adapter is None or not isinstance(request["body"], dict):
            return (yield request)
        exchange = ModelExchange(adapter, request["body"])
        response = yield from self.run_call(MODEL_SITE, exchange.build_request(), apply=exchange.apply)
        return exchange.encode(response)

    def run_call(
        self,
        site: str,
        request: dict[str, Any],
        *,
        apply: ApplyFault = apply_fault,
        is_executed: bool = False,
    ) -> SharedBody[Any]:
        """Yield a call for its result, and return the result with the fault.

        Args:
            site: site of the call.
            request: arguments of the call.
            apply: function that applies the fault to the call.
            is_executed: True if no fault can prevent the execution of the call.

        Raises:
            CallLimitExceeded: the agent made too many model calls.
        """
        number, self.calls[site] = self.calls[site], self.calls[site] + 1
        if site == MODEL_SITE and number >= self._max_calls:
            raise CallLimitExceeded(f"the agent made more than {self._max_calls} model calls")
        encoded = encode_arguments(request)
        is_repeated = self._last_arguments.get(site) == encoded
        self._last_arguments[site] = encoded
        try:
            result = yield from self._inject(site, number, request, apply, is_executed)
        except BaseException as error:  # a deadline of the agent cancels the call
            self.events[site].append(type(error).__name__)
            raise
        self.events[site].append("repeated" if is_repeated else "ok")
        self._results[site].append((request, result))
        return result

    def _inject(
        self, site: str, number: int, request: dict[str, Any], apply: ApplyFault, is_executed: bool
    ) -> SharedBody[Any]:
        placement = self._placement
        if placement is None or placement.site != site:
            return (yield from self._execute(site, request))
        if number not in placement.calls:
            result = yield from self._execute(site, request)
            if self.is_injected and self.recovered_after is None:
                self.recovered_after = self.count_calls() - self._calls_at_fault
                self.recovery_seconds = round(time.monotonic() - self._fault_time, 3)
            return result
        fault = get_faults(site)[placement.fault]
        is_executed = is_executed or fault.is_executed
        result = (yield from self._execute(site, request)) if is_executed else None
        was_injected, self.is_injected = self.is_injected, True
        if not was_injected:
            self._fault_time = time.monotonic()
            self.model_calls_at_fault = self.calls[MODEL_SITE]
            self._calls_at_fault = self.count_calls()
        if fault.is_delayed:
            yield Sleep(self._delay_s)
        call = FaultyCall(arguments=request, result=result, earlier=tuple(self._results[site]))
        try:
            return apply(fault, call)
        except FaultNotApplicable:
            self.is_injected = was_injected
            return result if is_executed else (yield from self._execute(site, request))

    def _execute(self, site: str, request: dict[str, Any]) -> SharedBody[Any]:
        tool = site.removeprefix(_TOOL_PREFIX)
        if site.startswith(_TOOL_PREFIX) and self._has_effect(tool):
            self.effects[tool, encode_arguments(request).decode()] += 1
        return (yield request)


def encode_arguments(arguments: Mapping[str, Any]) -> bytes:
    """Return arguments as canonical JSON; values of other types become their text."""
    return orjson.dumps(arguments, default=str, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


_DURABLE_CALLS: Final = frozenset({"claim", "settle", "list_effects"})

RunCall = Callable[[str, dict[str, Any]], SharedBody[Any]]
"""Function that runs a call of a site with the fault of a campaign."""


class FaultyJudge:
    """Judge whose answers may have a fault; the wrapped judge has the other members.

    Args:
        judge: the judge.
        run_call: function that runs a call with the fault.
    """

    def __init__(self, judge: Judge, run_call: RunCall) -> None:
        self._judge, self._run_call = judge, run_call

    def __getattr__(self, name: str) -> Any:
        """Return another member of the judge."""
        return getattr(self._judge, name)

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Return the answers of the judge, with the fault."""
        call = self._run_call(JUDGE_SITE, {"questions": [question.id for question in questions]})
        answers: tuple[JudgeAnswer, ...] = run_sync(call, lambda _: self._judge.decide(transcript, questions))
        return answers


class FaultyStore:
    """Store whose claims and results of effects may have a fault; the wrapped store has the other members.

    Args:
        store: the store.
        run_call: function that runs a call with the fault.
    """

    def __init__(self, store: Any, run_call: RunCall) -> None:
        self._store, self._run_call = store, run_call

    def __getattr__(self, name: str) -> Any:
        """Return a member of the store, with the fault if the guard waits for the database in it."""
        member = getattr(self._store, name)
        if name not in _DURABLE_CALLS:
            return member

        def execute(*args: Any, **named: Any) -> Any:
            call = self._run_call(STORE_SITE, {"operation": name})
            return run_sync(call, lambda _: member(*args, **named))

        return execute
