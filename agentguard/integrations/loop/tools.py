"""Plain functions as tools: their specification from their signature, and calls carried out by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from agentguard.errors import AgentGuardError, ConfigError
from agentguard.trajectory.model import ToolCall, ToolSpec


class CannotCall(AgentGuardError):
    """A call that reached no tool: an unknown name, or arguments that do not fit. Nothing has happened."""

    code = "cannot_call"


class Tools:
    """Functions by name.

    Args:
        functions: the functions, named by themselves or by the mapping's keys.

    Raises:
        ConfigError: two have one name, or one has no name or signature.
    """

    def __init__(self, functions: Sequence[Callable[..., Any]] | Mapping[str, Callable[..., Any]]) -> None:
        named = functions.items() if isinstance(functions, Mapping) else [(_name(f), f) for f in functions]
        self._functions: dict[str, Callable[..., Any]] = {}
        for name, function in named:
            if name in self._functions:
                raise ConfigError(f"tools: two are called {name!r}")
            self._functions[name] = function
        self.specs = tuple(_spec(name, function) for name, function in self._functions.items())

    def offered(self, withheld: set[str]) -> list[dict[str, Any]]:
        """Specifications in the chat API's shape, without those that are withheld."""
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
            if spec.name not in withheld
        ]

    def call(self, call: ToolCall) -> Any:
        """Carry out a call. Raises CannotCall if nothing could be called, else what the tool raises."""
        function, arguments = self._bound(call)
        return function(**arguments)

    async def acall(self, call: ToolCall) -> Any:
        """As `call`; what the function returns is awaited if it can be."""
        function, arguments = self._bound(call)
        result = function(**arguments)
        return await result if inspect.isawaitable(result) else result

    @staticmethod
    def never_ran(error: Exception) -> bool:
        """Whether an exception says that nothing was called."""
        return isinstance(error, CannotCall)

    def _bound(self, call: ToolCall) -> tuple[Callable[..., Any], dict[str, Any]]:
        function = self._functions.get(call.name)
        if function is None:
            known = ", ".join(sorted(self._functions))
            raise CannotCall(f"there is no tool {call.name!r}; there are: {known}")
        if call.arguments is None and (call.raw_arguments or "").strip():
            raise CannotCall(f"the arguments of {call.name!r} are no JSON object")
        arguments = dict(call.arguments or {})
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            raise CannotCall(f"{call.name!r}: {error}") from None
        return function, arguments


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None)
    if not name or name == "<lambda>":
        raise ConfigError("tools: a function without a name; give a mapping of names to functions")
    return str(name)


def _spec(name: str, function: Callable[..., Any]) -> ToolSpec:
    """Name, documentation and JSON Schema of a function, from its signature by pydantic."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, function))
        schema = adapter.json_schema()
    except (PydanticUserError, NameError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"tool {name!r}: its signature has no JSON Schema: {reason}") from None
    return ToolSpec(name=name, description=inspect.getdoc(function) or "", parameters=schema)
