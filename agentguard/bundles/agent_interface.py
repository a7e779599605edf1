"""Binding of an agent's model and tools to a recording or to a replay."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, get_type_hints

from agentguard.errors import ConfigError
from agentguard.trajectory.model import Trajectory

Execute = Callable[[dict[str, Any]], Any]
"""Function that executes a call with the given arguments."""


class CallBinding(Protocol):
    """Source of the model and the tools for one run of an agent.

    Attributes:
        run_id: ID that the agent gives to its run.
    """

    run_id: str

    def bind_model(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model function for this run; it has the signature of ``function``."""
        ...

    def bind_tools(self, functions: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
        """Return the tools for this run, with the names and signatures of ``functions``."""
        ...


AgentFunction = Callable[[CallBinding], Trajectory]
"""Agent that takes its model and tools from a binding and returns its run."""


def build_stand_in(function: Callable[..., Any], execute: Execute) -> Callable[..., Any]:
    """Return a function with the name, signature and docstring of another one, but without a reference to it.

    Raises:
        ConfigError: ``function`` is a coroutine function.
    """
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"bundle: {name} is a coroutine function; a recording needs a plain function")
    signature = inspect.signature(function, eval_str=True)

    def stand_in(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        return execute(dict(bound.arguments))

    stand_in.__name__, stand_in.__doc__ = name, inspect.getdoc(function)
    # pydantic reads the schema of a tool from its annotations and its signature.
    stand_in.__annotations__ = get_type_hints(function) if inspect.isroutine(function) else {}
    vars(stand_in)["__signature__"] = signature
    return stand_in


def require_trajectory(result: Any) -> Trajectory:
    """Return the result of an agent. Raises ConfigError if it is not a trajectory."""
    if not isinstance(result, Trajectory):
        raise ConfigError(f"bundle: the agent returned {type(result).__name__}, not its Trajectory")
    return result


def list_effects(effects: Mapping[str, Any]) -> dict[str, str]:
    """Return the effect class of each tool by name."""
    return {name: str(one.effect.value) for name, one in effects.items()}
