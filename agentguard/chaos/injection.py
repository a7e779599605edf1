"""Binding that injects one fault into a run of an agent and counts the calls of each site."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from agentguard.bundles.agent_interface import build_stand_in
from agentguard.chaos.faults import MODEL_FAULTS, TOOL_FAULTS, FaultNotApplicable, FaultyCall
from agentguard.errors import AgentGuardError

MODEL_SITE: Final = "model"
MAX_MODEL_CALLS: Final = 1_000


class CallLimitExceeded(AgentGuardError):
    """The agent made more model calls than a campaign permits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlacement:
    """Fault at one call of a site.

    Attributes:
        site: ``model`` or ``tool:NAME``.
        fault: name of the fault.
        call: number of the call of the site in the run, from 0.
    """

    site: str
    fault: str
    call: int

    @property
    def key(self) -> str:
        """Text that identifies the placement in a campaign."""
        return f"{self.site}/{self.fault}/{self.call}"


class InjectionBinding:
    """Binding with the live model and tools and at most one fault.

    Args:
        placement: the fault; None for a run without a fault.
        run_id: ID for the run of the agent.
        effects: names of the tools with effects.
        max_calls: number of model calls after which the run ends with `CallLimitExceeded`.

    Attributes:
        calls: site to the number of calls.
        effects: executed calls of tools with effects, as tool and canonical arguments, with their numbers.
        is_injected: True if the run reached the call and the fault applied to it.
        model_calls_at_fault: number of model calls before the fault.
        recovered_after: number of calls from the fault to the first later success at its site, or None.
        events: site to the kinds of its calls in order: ``ok``, ``repeated`` or the type of the error.
    """

    def __init__(
        self,
        placement: FaultPlacement | None = None,
        *,
        run_id: str = "chaos",
        effects: Callable[[str], bool] = lambda _: False,
        max_calls: int = MAX_MODEL_CALLS,
    ) -> None:
        self.run_id = run_id
        self._placement = placement
        self._has_effect = effects
        self._max_calls = max_calls
        self.calls: Counter[str] = Counter()
        self.effects: Counter[tuple[str, str]] = Counter()
        self.events: dict[str, list[str]] = defaultdict(list)
        self.is_injected = False
        self.model_calls_at_fault = 0
        self.recovered_after: int | None = None
        self._calls_at_fault = 0
        self._results: dict[str, list[tuple[Mapping[str, Any], Any]]] = defaultdict(list)
        self._last_arguments: dict[str, bytes] = {}

    def bind_model(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model with the fault."""

        def execute(arguments: dict[str, Any]) -> Any:
            if self.calls[MODEL_SITE] >= self._max_calls:
                raise CallLimitExceeded(f"the agent made more than {self._max_calls} model calls")
            return self._call(MODEL_SITE, arguments, lambda: function(**arguments))

        return build_stand_in(function, execute)

    def bind_tools(self, functions: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
        """Return the tools with the fault."""
        return [self._bind_tool(function) for function in functions]

    def _bind_tool(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__

        def execute(arguments: dict[str, Any]) -> Any:
            def execute_live() -> Any:
                if self._has_effect(name):
                    self.effects[name, _encode(arguments).decode()] += 1
                return function(**arguments)

            return self._call(f"tool:{name}", arguments, execute_live)

        return build_stand_in(function, execute)

    def _call(self, site: str, arguments: dict[str, Any], execute: Callable[[], Any]) -> Any:
        number, self.calls[site] = self.calls[site], self.calls[site] + 1
        encoded = _encode(arguments)
        is_repeated = self._last_arguments.get(site) == encoded
        self._last_arguments[site] = encoded
        try:
            result = self._execute(site, number, arguments, execute)
        except Exception as error:
            self.events[site].append(type(error).__name__)
            raise
        self.events[site].append("repeated" if is_repeated else "ok")
        self._results[site].append((arguments, result))
        return result

    def _execute(self, site: str, number: int, arguments: dict[str, Any], execute: Callable[[], Any]) -> Any:
        placement = self._placement
        if placement is None or (placement.site, placement.call) != (site, number):
            result = execute()
            if self.is_injected and self.recovered_after is None and placement and placement.site == site:
                self.recovered_after = self.calls.total() - self._calls_at_fault
            return result
        fault = (MODEL_FAULTS if site == MODEL_SITE else TOOL_FAULTS)[placement.fault]
        call = FaultyCall(arguments=arguments, execute=execute, earlier=tuple(self._results[site]))
        self.is_injected = True
        self.model_calls_at_fault = self.calls[MODEL_SITE]
        self._calls_at_fault = self.calls.total()
        try:
            return fault(call)
        except FaultNotApplicable:
            self.is_injected = False
            return execute()


def _encode(arguments: Mapping[str, Any]) -> bytes:
    return orjson.dumps(arguments, default=str, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
