"""Binding of an agent's model and tools to a recording or to a replay."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, get_type_hints

from agentguard import _sync_async
from agentguard.errors import ConfigError
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    import httpx2


SaveFunction = Callable[[], Any]
RestoreFunction = Callable[[Any], None]
EnvironmentFunctions = tuple[SaveFunction, RestoreFunction]


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


class RunBinding(CallBinding, Protocol):
    """Binding of a recording or a replay, which also binds the HTTP client of a framework."""

    def bind_transport(self, inner: httpx2.BaseTransport | None = None) -> httpx2.BaseTransport:
        """Return the transport for the client of the model; ``inner`` sends the live requests."""
        ...

    def bind_async_transport(
        self, inner: httpx2.AsyncBaseTransport | None = None
    ) -> httpx2.AsyncBaseTransport:
        """Return a transport like `bind_transport`, for an asynchronous client."""
        ...

    def bind_environment(self, save: SaveFunction, restore: RestoreFunction) -> EnvironmentFunctions:
        """Return the functions that save and restore the environment of the tools; see `Guard.run`.

        A recording keeps the saved states, which must be JSON data. A replay returns these states and
        restores nothing.
        """
        ...

    def add_session(self, session: Session) -> None:
        """Set the session of the run: the callback ``on_run`` of an integration."""
        ...


RecordableAgent = Callable[[RunBinding], Trajectory | Awaitable[Trajectory | None] | None]
"""Agent that also binds clients or is a coroutine function; without a result, its session has the run."""

CallBody = Callable[[dict[str, Any]], _sync_async.SharedBody[Any]]
"""Body of a call with the given request; it yields once for each call of the live function."""


def call_agent(
    agent: RecordableAgent,
    binding: RunBinding,
    sessions: Sequence[Session],
    *,
    run_coroutine: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run,
) -> Trajectory:
    """Run an agent, in a new event loop if it is a coroutine function, and return its run.

    Args:
        agent: the agent.
        binding: its binding.
        sessions: sessions that the binding receives; the last one has the run of an agent without a result.
        run_coroutine: function that runs the agent in a new event loop.

    Raises:
        ConfigError: the agent has neither a result nor a session, or an event loop runs already.
    """
    result = agent(binding)
    if inspect.iscoroutine(result):
        try:
            result = run_coroutine(result)
        except RuntimeError:
            if inspect.getcoroutinestate(result) != inspect.CORO_CREATED:
                raise
            result.close()
            raise ConfigError("bundle: an event loop runs already; call this function in a thread") from None
    return require_trajectory(sessions[-1].run if result is None and sessions else result)


def bind_function(
    function: Callable[..., Any], body: CallBody, live: Callable[..., Any] | None
) -> Callable[..., Any]:
    """Return a stand-in that runs a body; it is a coroutine function if ``function`` is one.

    Args:
        function: function with the name and the signature.
        body: body of a call.
        live: function for the calls that the body yields; None if it yields none.
    """
    if not inspect.iscoroutinefunction(function):

        def stand_in(*args: Any, **named: Any) -> Any:
            request = _bind_arguments(signature, args, named)
            return _sync_async.run_sync(body(request), lambda _: _require_live(live)(**request))

        signature = _copy_interface(function, stand_in)
        return stand_in

    async def astand_in(*args: Any, **named: Any) -> Any:
        request = _bind_arguments(signature, args, named)
        return await _sync_async.run_async(body(request), lambda _: _require_live(live)(**request))

    signature = _copy_interface(function, astand_in)
    return astand_in


def _require_live(live: Callable[..., Any] | None) -> Callable[..., Any]:
    assert live is not None
    return live


def _copy_interface(function: Callable[..., Any], stand_in: Callable[..., Any]) -> inspect.Signature:
    """Give a stand-in the name, docstring and annotations of a function; return the signature."""
    signature = inspect.signature(function, eval_str=True)
    stand_in.__name__ = getattr(function, "__name__", type(function).__name__)
    stand_in.__doc__ = inspect.getdoc(function)
    # Frameworks read the schema of a tool from its annotations and its signature.
    stand_in.__annotations__ = get_type_hints(function) if inspect.isroutine(function) else {}
    vars(stand_in)["__signature__"] = signature
    return signature


def _bind_arguments(
    signature: inspect.Signature, args: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    bound = signature.bind(*args, **named)
    bound.apply_defaults()
    return dict(bound.arguments)


def require_trajectory(result: Any) -> Trajectory:
    """Return the result of an agent. Raises ConfigError if it is not a trajectory."""
    if not isinstance(result, Trajectory):
        raise ConfigError(f"bundle: the agent returned {type(result).__name__}, not its Trajectory")
    return result


def list_effects(effects: Mapping[str, Any]) -> dict[str, str]:
    """Return the effect class of each tool by name."""
    return {name: str(one.effect.value) for name, one in effects.items()}
