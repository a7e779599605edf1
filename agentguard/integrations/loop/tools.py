"""Tools from plain functions: specifications from their signatures, and calls by name."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from agentguard.errors import AgentGuardError, ConfigError
from agentguard.recover.effect_ledger import EffectClaim
from agentguard.runtime.session import Session
from agentguard.runtime.tool_execution import arun_tool, run_tool, to_result_text
from agentguard.runtime.tool_timeout import ToolTimeout
from agentguard.trajectory.model import Observation, ToolCall, ToolSpec


class ToolNotCallable(AgentGuardError):
    """Error of a call of an unknown tool, or with invalid arguments; no function was called."""

    code = "cannot_call"


class ToolFunctions:
    """Tools of a loop: functions by name, with their specifications.

    Args:
        functions: the functions; the keys of a mapping are their names.

    Raises:
        ConfigError: two functions have the same name, or one has no name or signature.
    """

    def __init__(self, functions: Sequence[Callable[..., Any]] | Mapping[str, Callable[..., Any]]) -> None:
        functions_by_name = (
            functions.items()
            if isinstance(functions, Mapping)
            else [(_get_function_name(f), f) for f in functions]
        )
        self._functions: dict[str, Callable[..., Any]] = {}
        for name, function in functions_by_name:
            if name in self._functions:
                raise ConfigError(f"tools: two functions have the name {name!r}")
            self._functions[name] = function
        self.specs = tuple(_build_tool_spec(name, function) for name, function in self._functions.items())

    def build_definitions(self, disabled_tools: set[str]) -> list[dict[str, Any]]:
        """Return the specifications of the enabled tools in the format of the chat API."""
        return [
            {
                "type": "function",
                "function": {
                    "name": spec.name,
                    "description": spec.description,
                    "parameters": spec.parameters,
                },
            }
            for spec in self.specs
            if spec.name not in disabled_tools
        ]

    def call(self, call: ToolCall) -> Any:
        """Execute a call. Raises ToolNotCallable or the exception of the function."""
        function, arguments = self._bind(call)
        return function(**arguments)

    async def acall(self, call: ToolCall) -> Any:
        """Execute a call like `call`; await the result if it is awaitable."""
        function, arguments = self._bind(call)
        result = function(**arguments)
        return await result if inspect.isawaitable(result) else result

    def _bind(self, call: ToolCall) -> tuple[Callable[..., Any], dict[str, Any]]:
        function = self._functions.get(call.name)
        if function is None:
            known = ", ".join(sorted(self._functions))
            raise ToolNotCallable(f"there is no tool {call.name!r}; there are: {known}")
        if call.arguments is None and (call.raw_arguments or "").strip():
            raise ToolNotCallable(f"the arguments of {call.name!r} are not a JSON object")
        arguments = dict(call.arguments or {})
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            raise ToolNotCallable(f"{call.name!r}: {error}") from None
        return function, arguments


def _get_function_name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None)
    if not name or name == "<lambda>":
        raise ConfigError("tools: a function has no name; pass a mapping of names to functions")
    return str(name)


def _build_tool_spec(name: str, function: Callable[..., Any]) -> ToolSpec:
    """Build a specification from the docstring and the signature of a function."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, function))
        schema = adapter.json_schema()
    except (PydanticUserError, NameError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"tool {name!r}: its signature has no JSON Schema: {reason}") from None
    return ToolSpec(name=name, description=inspect.getdoc(function) or "", parameters=schema)


def execute_calls(session: Session, tools: ToolFunctions, calls: Sequence[ToolCall]) -> list[Observation]:
    """Execute the calls in order; an exception of a tool becomes an observation with ``is_error``."""
    observations = []
    for call, claim in _claim_calls(session, calls):
        try:
            result = run_tool(session, claim, lambda call=call: tools.call(call))  # type: ignore[misc]
            observations.append(_build_observation(call, to_result_text(result)))
        except Exception as error:  # a tool may raise anything; the agent gets it as text
            observations.append(_build_error_observation(session, call, claim, error))
    return observations


async def aexecute_calls(
    session: Session, tools: ToolFunctions, calls: Sequence[ToolCall]
) -> list[Observation]:
    """Execute the calls concurrently, otherwise like `execute_calls`; tools may be coroutine functions."""

    async def observe(call: ToolCall, claim: EffectClaim) -> Observation:
        try:
            return _build_observation(
                call, to_result_text(await arun_tool(session, claim, lambda: tools.acall(call)))
            )
        except Exception as error:  # as in `execute_calls`
            return _build_error_observation(session, call, claim, error)

    claims = _claim_calls(session, calls)
    return await asyncio.gather(*(observe(call, claim) for call, claim in claims))


def _claim_calls(session: Session, calls: Sequence[ToolCall]) -> list[tuple[ToolCall, EffectClaim]]:
    """Claim all calls of the turn in the ledger before any of them runs."""
    return [(call, session.begin_tool(call.name, call.arguments or {})) for call in calls]


def _build_error_observation(
    session: Session, call: ToolCall, claim: EffectClaim, error: Exception
) -> Observation:
    if isinstance(error, ToolNotCallable):
        session.end_tool(claim, "", is_refused=True)
    if isinstance(error, ToolTimeout):
        return _build_observation(call, str(error), is_error=True)
    return _build_observation(call, f"Error: {type(error).__name__}: {error}", is_error=True)


def _build_observation(call: ToolCall, text: str, *, is_error: bool | None = None) -> Observation:
    return Observation(content=text, call_id=call.id, tool=call.name, is_error=is_error)
