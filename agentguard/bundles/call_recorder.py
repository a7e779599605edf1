"""Recording of a run of an agent into a bundle."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from agentguard.bundles.agent_interface import AgentFunction, build_stand_in, list_effects, require_trajectory
from agentguard.bundles.archive import read_bundle, write_bundle
from agentguard.bundles.bundle import Bundle, RecordedCall
from agentguard.errors import BundleError
from agentguard.guard import Guard, diagnose
from agentguard.intercept.chat_steps import build_assistant_message
from agentguard.localize.serialization import encode_diagnosis
from agentguard.runtime.tool_execution import to_result_text


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

    def bind_model(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls the model and records request and answer."""

        def execute(request: dict[str, Any]) -> Any:
            return self._record(self.model_calls, "model", "", function, request, build_assistant_message)

        return build_stand_in(function, execute)

    def bind_tools(self, functions: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
        """Return functions that call the tools and record arguments and results."""
        return [self._bind_tool(function) for function in functions]

    def _bind_tool(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        effect = self._effects.get(name, "")

        def execute(request: dict[str, Any]) -> Any:
            return self._record(self.tool_calls, name, effect, function, request, to_result_text)

        return build_stand_in(function, execute)

    def _record(
        self,
        calls: list[RecordedCall],
        name: str,
        effect: str,
        function: Callable[..., Any],
        request: dict[str, Any],
        encode: Callable[[Any], Any],
    ) -> Any:
        data = copy_json(request)
        try:
            result = function(**request)
        except Exception as error:
            kind = type(error).__name__
            calls.append(
                RecordedCall(name=name, request=data, error_type=kind, error=str(error), effect=effect)
            )
            raise
        calls.append(RecordedCall(name=name, request=data, result=copy_json(encode(result)), effect=effect))
        return result


def copy_json(value: Any) -> Any:
    """Return a copy of a value as JSON data; values of other types become their text.

    Raises:
        BundleError: a text has lone surrogates, or the value is nested too deeply.
    """
    try:
        return orjson.loads(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS))
    except orjson.JSONEncodeError as error:
        raise BundleError(f"a request or result cannot be recorded as JSON: {error}") from None


def record_run(
    agent: AgentFunction, path: str | os.PathLike[str], *, guard: Guard, method: str = "embedded"
) -> Bundle:
    """Run an agent with its live model and tools, and write the run to a bundle.

    Args:
        agent: function that takes model, tools and run ID from its binding and returns its trajectory.
        path: file of the bundle.
        guard: guard that declares the effects of the tools.
        method: localizer of the diagnosis in the bundle.

    Returns:
        The bundle as it is in the file, without secrets.

    Raises:
        BundleError: the file cannot be written, or a request or result cannot be recorded as JSON.
        ConfigError: the agent does not return a trajectory, or a function is a coroutine function.
    """
    recorder = CallRecorder(list_effects(guard.tools))
    trajectory = require_trajectory(agent(recorder))
    diagnosis = encode_diagnosis(diagnose(trajectory, method=method))
    diagnosis.pop("timing", None)
    bundle = Bundle(
        trajectory=trajectory,
        model_calls=tuple(recorder.model_calls),
        tool_calls=tuple(recorder.tool_calls),
        diagnosis=diagnosis,
        expectations={"verdict": str(diagnosis["verdict"])},
    )
    write_bundle(bundle, path)
    return read_bundle(path)
