"""Recording of a run of an agent into a bundle."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from agentguard._sync_async import SharedBody
from agentguard.bundles.archive import read_bundle, write_bundle
from agentguard.bundles.bindings import (
    EnvironmentFunctions,
    RecordableAgent,
    RestoreFunction,
    RunBinding,
    SaveFunction,
    bind_function,
    call_agent,
    list_effects,
)
from agentguard.bundles.bundle import (
    Bundle,
    RecordedCall,
    RecordedEffect,
    RecordedSnapshot,
    encode_bundle_diagnosis,
)
from agentguard.errors import BundleError, ConfigError
from agentguard.guard import Guard, diagnose
from agentguard.intercept.chat_branch import build_assistant_message
from agentguard.recover.snapshots.serializers import get_codec
from agentguard.runtime.session import Session
from agentguard.runtime.tool_execution import to_result_text
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    import httpx2


class CallRecorder:
    """Binding that calls the live model and tools and records each call.

    Args:
        effects: effect class of each tool by name.
    """

    def __init__(self, effects: Mapping[str, str]) -> None:
        self.run_id = f"run-{uuid.uuid4().hex[:12]}"
        self._effects = effects
        self.model_calls: list[RecordedCall] = []
        self.tool_calls: list[RecordedCall] = []
        self.snapshots: list[RecordedSnapshot] = []
        self.sessions: list[Session] = []

    def bind_model(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls the model and records request and answer."""
        body = partial(self._record, self.model_calls, "model", "", build_assistant_message)
        return bind_function(function, body, function)

    def bind_tools(self, functions: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
        """Return functions that call the tools and record arguments and results."""
        return [self._bind_tool(function) for function in functions]

    def bind_transport(self, inner: httpx2.BaseTransport | None = None) -> httpx2.BaseTransport:
        """Return a transport that sends the requests and records the exchanges."""
        from agentguard.bundles.http_exchange import BoundTransport

        return BoundTransport(self._record_exchange, inner)

    def bind_async_transport(
        self, inner: httpx2.AsyncBaseTransport | None = None
    ) -> httpx2.AsyncBaseTransport:
        """Return a transport like `bind_transport`, for an asynchronous client."""
        from agentguard.bundles.http_exchange import AsyncBoundTransport

        return AsyncBoundTransport(self._record_exchange, inner)

    def bind_environment(self, save: SaveFunction, restore: RestoreFunction) -> EnvironmentFunctions:
        """Return functions that save and restore the environment, and record each saved state."""

        def save_and_record() -> Any:
            state = save()
            self.snapshots.append(
                RecordedSnapshot(
                    model_calls=len(self.model_calls),
                    tool_calls=len(self.tool_calls),
                    state=_copy_state(state),
                )
            )
            return state

        return save_and_record, restore

    def add_session(self, session: Session) -> None:
        """Set the session of the run."""
        self.sessions.append(session)

    def _bind_tool(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        body = partial(self._record, self.tool_calls, name, self._effects.get(name, ""), to_result_text)
        return bind_function(function, body, function)

    def _record_exchange(self, name: str, request: dict[str, Any]) -> SharedBody[Any]:
        return self._record(self.model_calls, name, "", copy_json, request)

    def _record(
        self,
        calls: list[RecordedCall],
        name: str,
        effect: str,
        encode: Callable[[Any], Any],
        request: dict[str, Any],
    ) -> SharedBody[Any]:
        data = copy_json(request)
        try:
            result = yield request
        except Exception as error:
            kind = type(error).__name__
            calls.append(
                RecordedCall(name=name, request=data, error_type=kind, error=str(error), effect=effect)
            )
            raise
        calls.append(RecordedCall(name=name, request=data, result=copy_json(encode(result)), effect=effect))
        return result


class BindingRecorder(CallRecorder):
    """Binding that records the calls of another binding, such as a replay.

    Args:
        source: binding that answers the calls.
        effects: effect class of each tool by name.
    """

    def __init__(self, source: RunBinding, effects: Mapping[str, str]) -> None:
        super().__init__(effects)
        self.run_id = source.run_id
        self._source = source

    def bind_model(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model of the source, with recording."""
        return super().bind_model(self._source.bind_model(function))

    def bind_tools(self, functions: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
        """Return the tools of the source, with recording."""
        return super().bind_tools(self._source.bind_tools(functions))

    def bind_transport(self, inner: httpx2.BaseTransport | None = None) -> httpx2.BaseTransport:
        """Return the transport of the source, with recording."""
        return super().bind_transport(self._source.bind_transport(inner))

    def bind_async_transport(
        self, inner: httpx2.AsyncBaseTransport | None = None
    ) -> httpx2.AsyncBaseTransport:
        """Return a transport like `bind_transport`, for an asynchronous client."""
        return super().bind_async_transport(self._source.bind_async_transport(inner))

    def bind_environment(self, save: SaveFunction, restore: RestoreFunction) -> EnvironmentFunctions:
        """Return the functions of the source, with recording."""
        return super().bind_environment(*self._source.bind_environment(save, restore))

    def add_session(self, session: Session) -> None:
        """Set the session of the run, also for the source."""
        super().add_session(session)
        self._source.add_session(session)


def copy_json(value: Any) -> Any:
    """Return a copy of a value as JSON data; values of other types become their text.

    Raises:
        BundleError: a text has lone surrogates, or the value is nested too deeply.
    """
    try:
        return orjson.loads(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS))
    except orjson.JSONEncodeError as error:
        raise BundleError(f"a request or result cannot be recorded as JSON: {error}") from None


def _copy_state(state: Any) -> Any:
    """Return a copy of a state. Raises BundleError if it is not JSON data."""
    try:
        if isinstance(state, bytes | bytearray | memoryview):
            raise ConfigError("a state of bytes is not JSON data")
        return orjson.loads(get_codec("json").encode(state)[1:])
    except ConfigError as error:
        reason = f"a bundle has states of JSON data only: {error}; or pass save and restore unbound"
        raise BundleError(reason) from None


def list_session_effects(sessions: Sequence[Session]) -> tuple[RecordedEffect, ...]:
    """Return the ledger of the last session, in the order of the first claims; empty without a session."""
    if not sessions:
        return ()
    ledger = sessions[-1].ledger
    return tuple(
        RecordedEffect(
            tool=effect.tool,
            arguments=copy_json(effect.arguments),
            step=effect.step,
            effect=ledger.get_tool_effect(effect.tool).effect.value,
            state=effect.state.value,
        )
        for effect in ledger.effects()
    )


def record_run(
    agent: RecordableAgent, path: str | os.PathLike[str], *, guard: Guard, method: str = "embedded"
) -> Bundle:
    """Run an agent with its live model and tools, and write the run to a bundle.

    Args:
        agent: function or coroutine function that takes model, tools and run ID from its binding. It returns
            its trajectory, or gives the session of its run to `RunBinding.add_session`.
        path: file of the bundle.
        guard: guard that declares the effects of the tools.
        method: localizer of the diagnosis in the bundle.

    Returns:
        The bundle as it is in the file, without secrets.

    Raises:
        BundleError: the file cannot be written, or a request or result cannot be recorded as JSON.
        ConfigError: the agent has no trajectory, or it is a coroutine function inside an event loop.
        Exception: the agent raised it. If the binding has its session, the run is in the file.
    """
    recorder = CallRecorder(list_effects(guard.tools))
    try:
        trajectory = call_agent(agent, recorder, recorder.sessions)
    except Exception as error:
        if recorder.sessions:
            run = recorder.sessions[-1].run
            write_bundle(build_bundle(recorder, run, method=method, error_type=type(error).__name__), path)
        raise
    write_bundle(build_bundle(recorder, trajectory, method=method), path)
    return read_bundle(path)


def build_bundle(
    recorder: CallRecorder, trajectory: Trajectory, *, method: str = "embedded", error_type: str = ""
) -> Bundle:
    """Return the bundle of a recorded run with its diagnosis.

    Args:
        recorder: binding of the run.
        trajectory: the run.
        method: localizer of the diagnosis.
        error_type: class of the exception with which the agent ended the run; empty without one.
    """
    diagnosis = encode_bundle_diagnosis(diagnose(trajectory, method=method))
    return Bundle(
        trajectory=trajectory,
        model_calls=tuple(recorder.model_calls),
        tool_calls=tuple(recorder.tool_calls),
        effects=list_session_effects(recorder.sessions),
        snapshots=tuple(recorder.snapshots),
        diagnosis=diagnosis,
        expectations={"verdict": str(diagnosis["verdict"])} | ({"error": error_type} if error_type else {}),
    )
