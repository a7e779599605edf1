"""Binding that answers the calls of an agent from a bundle."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agentguard._sync_async import SharedBody
from agentguard.bundles.bindings import (
    EnvironmentFunctions,
    RestoreFunction,
    SaveFunction,
    bind_function,
)
from agentguard.bundles.bundle import Bundle, RecordedCall, encode_json
from agentguard.bundles.call_recorder import copy_json
from agentguard.bundles.captured_run import encode_chat_response
from agentguard.bundles.replay_scope import ReplayMode, ReplayScope
from agentguard.bundles.run_difference import count_common_items, find_field
from agentguard.errors import ReplayMismatch
from agentguard.runtime.session import Session
from agentguard.trajectory.redaction import Redactor

if TYPE_CHECKING:
    import httpx2

_MODEL: Final = "model"


class CallReplayer:
    """Binding that answers each request with its recorded result.

    Equal requests get their results in recorded order. After the first unknown request, all calls fail.

    Args:
        bundle: the bundle.
        scope: calls that are live.
        repeat_results: return the result of a tool call again if the agent repeats the call more often.
    """

    def __init__(self, bundle: Bundle, scope: ReplayScope, *, repeat_results: bool = False) -> None:
        self.run_id = bundle.trajectory.id
        self.sessions: list[Session] = []
        self._scope = scope
        self._snapshots = bundle.snapshots
        self._is_ordered = scope.mode is ReplayMode.SCRIPTED or not bundle.has_requests
        self._model_call_count = self._tool_call_count = 0
        self._model_calls = _Recordings(bundle.model_calls)
        self._tool_calls = _Recordings(bundle.tool_calls, is_repeatable=repeat_results)
        self._redactor = Redactor(patterns=bundle.redaction_patterns)
        self._mismatch: ReplayMismatch | None = None

    def bind_model(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that returns recorded answers."""
        live = function if self._scope.has_live_model else None
        return bind_function(function, partial(self._answer_model, _MODEL), live)

    def bind_tools(self, functions: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
        """Return functions that return recorded results."""
        return [self._bind_tool(function, function.__name__) for function in functions]

    def bind_transport(self, inner: httpx2.BaseTransport | None = None) -> httpx2.BaseTransport:
        """Return a transport that returns recorded responses."""
        from agentguard.bundles.http_exchange import BoundTransport

        return BoundTransport(self._answer_model, inner if self._scope.has_live_model else None)

    def bind_async_transport(
        self, inner: httpx2.AsyncBaseTransport | None = None
    ) -> httpx2.AsyncBaseTransport:
        """Return a transport like `bind_transport`, for an asynchronous client."""
        from agentguard.bundles.http_exchange import AsyncBoundTransport

        return AsyncBoundTransport(self._answer_model, inner if self._scope.has_live_model else None)

    def bind_environment(self, save: SaveFunction, restore: RestoreFunction) -> EnvironmentFunctions:
        """Return a function that returns the recorded states, and one that restores nothing."""
        del save, restore
        return self._find_state, lambda _: None

    def add_session(self, session: Session) -> None:
        """Set the session of the run."""
        self.sessions.append(session)

    def raise_mismatch(self) -> None:
        """Raise the error of the first unknown request, if there was one."""
        if self._mismatch is not None:
            raise self._mismatch

    def count_unused_calls(self) -> int:
        """Return the number of recorded calls that were not repeated, without those of live tools."""
        tool_calls = [call for call in self._tool_calls.unused if not self._scope.is_live_tool(call.name)]
        return len(self._model_calls.unused) + len(tool_calls)

    def _find_state(self) -> Any:
        """Return the last state that was recorded at this place or before it; None without snapshots."""
        earlier = [
            one.state
            for one in self._snapshots
            if one.model_calls <= self._model_call_count and one.tool_calls <= self._tool_call_count
        ]
        return earlier[-1] if earlier else None

    def _bind_tool(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        live = function if self._scope.is_live_tool(name) else None
        return bind_function(function, partial(self._answer_tool, name), live)

    def _answer_model(self, name: str, request: dict[str, Any]) -> SharedBody[Any]:
        self.raise_mismatch()
        number, self._model_call_count = self._model_call_count, self._model_call_count + 1
        if self._scope.is_live_model_call(number):
            return (yield request)
        if number == self._scope.edited_call:
            return self._scope.edited_answer
        if self._is_ordered:
            return self._take_next(name, request)
        return self._take(self._model_calls, name, request)

    def _answer_tool(self, name: str, request: dict[str, Any]) -> SharedBody[Any]:
        self.raise_mismatch()
        self._tool_call_count += 1
        if self._scope.is_live_tool(name) and self._scope.has_begun(self._model_call_count):
            return (yield request)
        return self._take(self._tool_calls, name, request)

    def _take_next(self, name: str, request: dict[str, Any]) -> Any:
        if not self._model_calls.unused:
            self._mismatch = ReplayMismatch(f"{name}: the agent makes more model calls than the bundle has")
            raise self._mismatch
        call = self._model_calls.unused.pop(0)
        result = _return_result(call)
        is_message = call.name == _MODEL and name != _MODEL
        return encode_chat_response(name, request, result) if is_message else result

    def _take(self, recordings: _Recordings, name: str, request: dict[str, Any]) -> Any:
        data = self._redactor.redact_data(copy_json(request))
        call = recordings.take(name, data)
        if call is None:
            self._mismatch = recordings.build_mismatch(name, data)
            raise self._mismatch
        return _return_result(call)


class _Recordings:
    """Recorded calls of the model or of the tools; each is returned once, unless they are repeatable."""

    def __init__(self, calls: Sequence[RecordedCall], *, is_repeatable: bool = False) -> None:
        self.calls, self.unused, self._is_repeatable = tuple(calls), list(calls), is_repeatable

    def take(self, name: str, data: dict[str, Any]) -> RecordedCall | None:
        """Return the first unused recording of a request, or the last one if it is repeatable, or None."""
        for position, call in enumerate(self.unused):
            if call.name == name and call.request == data:
                return self.unused.pop(position)
        if not self._is_repeatable:
            return None
        same = [call for call in self.calls if call.name == name and call.request == data]
        return same[-1] if same else None

    def build_mismatch(self, name: str, data: dict[str, Any]) -> ReplayMismatch:
        """Return the error of an unknown request, with the nearest recording."""
        same = [(number, call) for number, call in enumerate(self.calls) if call.name == name]
        if not same:
            return ReplayMismatch(f"{name}: the bundle has no call of this function")
        encoded = encode_json(data)
        number, nearest = max(same, key=lambda one: count_common_items(encode_json(one[1].request), encoded))
        path = find_field(nearest.request, data)
        if path is None:
            return ReplayMismatch(
                f"{name}: the agent repeats recording {number} more often than the recorded run"
            )
        return ReplayMismatch(f"{name}: the request differs from the nearest recording {number} in {path}")


def _return_result(call: RecordedCall) -> Any:
    if not call.error_type:
        return call.result
    kind = _find_error_class(call)
    try:
        error = kind(call.error)
    except TypeError:  # such as UnicodeDecodeError, which needs five arguments
        error = type(call.error_type, (Exception,), {})(call.error)
    raise error


def _find_error_class(call: RecordedCall) -> type[Exception]:
    kind = getattr(builtins, call.error_type, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind
    if "/" in call.name:
        from agentguard.bundles.http_exchange import find_error_class

        if (transport_error := find_error_class(call.error_type)) is not None:
            return transport_error
    return type(call.error_type, (Exception,), {})
