"""Replay of a bundle: the agent's code runs again with recorded model answers and tool results."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentguard.bundles.agent_interface import AgentFunction, build_stand_in, require_trajectory
from agentguard.bundles.bundle import Bundle, RecordedCall, build_event_log, encode_json
from agentguard.bundles.call_recorder import copy_json
from agentguard.bundles.divergence import Divergence, find_divergence, find_field
from agentguard.errors import ConfigError, ReplayMismatch
from agentguard.trajectory.model import Record, Step, Trajectory
from agentguard.trajectory.redaction import Redactor


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Outcome of a replay.

    Attributes:
        trajectory: the replayed run, without secrets.
        is_equal: whether its event log has the same bytes as the recorded one.
        divergence: first step that differs; None if all steps are equal.
        unused_calls: number of recorded calls that the agent did not repeat.
    """

    trajectory: Trajectory
    is_equal: bool
    divergence: Divergence | None
    unused_calls: int


def replay_bundle(
    bundle: Bundle, agent: AgentFunction, *, mode: Literal["sealed"] = "sealed"
) -> ReplayResult:
    """Run an agent with the recorded calls of a bundle.

    The binding of the agent has no reference to a live model or tool.

    Args:
        bundle: the bundle.
        agent: the function that `record_run` recorded.
        mode: ``sealed`` replays model and tools.

    Raises:
        ReplayMismatch: the agent sent a request that is not in the bundle.
        ConfigError: the mode is unknown, or the agent does not return a trajectory.
    """
    if mode != "sealed":
        raise ConfigError(f"replay: the mode {mode!r} is unknown; the only mode is 'sealed'")
    replayer = CallReplayer(bundle)
    try:
        run = require_trajectory(agent(replayer))
    except Exception:
        replayer.raise_mismatch()
        raise
    # A guard converts the exception of a tool to a message for the agent, so the run may end normally.
    replayer.raise_mismatch()
    run = Redactor().redact(Record(trajectory=run)).record.trajectory
    redacted = _set_recorded_times(run, bundle.trajectory)
    return ReplayResult(
        trajectory=redacted,
        is_equal=build_event_log(redacted) == build_event_log(bundle.trajectory),
        divergence=find_divergence(bundle.trajectory, redacted),
        unused_calls=replayer.count_unused_calls(),
    )


def _set_recorded_times(run: Trajectory, recorded: Trajectory) -> Trajectory:
    """Return a run with the recorded times of its steps: the clock is an input that the bundle holds."""
    times = {branch.id: branch.steps for branch in recorded.branches}
    branches = tuple(
        replace(branch, steps=_set_step_times(branch.steps, times.get(branch.id, ())))
        for branch in run.branches
    )
    return replace(run, steps=_set_step_times(run.steps, recorded.steps), branches=branches)


def _set_step_times(steps: Sequence[Step], recorded: Sequence[Step]) -> tuple[Step, ...]:
    timed = (
        replace(step, started_at=one.started_at, ended_at=one.ended_at)
        for step, one in zip(steps, recorded, strict=False)
    )
    return (*timed, *steps[len(recorded) :])


class CallReplayer:
    """Binding that answers each request with its recorded result.

    Equal requests get their results in recorded order. After the first unknown request, all calls fail.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.run_id = bundle.trajectory.id
        self._model_calls = _Recordings(bundle.model_calls)
        self._tool_calls = _Recordings(bundle.tool_calls)
        self._redactor = Redactor()
        self._mismatch: ReplayMismatch | None = None

    def bind_model(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that returns recorded answers."""
        return build_stand_in(function, lambda request: self._answer(self._model_calls, "model", request))

    def bind_tools(self, functions: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
        """Return functions that return recorded results."""
        return [self._bind_tool(function, function.__name__) for function in functions]

    def raise_mismatch(self) -> None:
        """Raise the error of the first unknown request, if there was one."""
        if self._mismatch is not None:
            raise self._mismatch

    def count_unused_calls(self) -> int:
        """Return the number of recorded calls that were not repeated."""
        return len(self._model_calls.unused) + len(self._tool_calls.unused)

    def _bind_tool(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        return build_stand_in(function, lambda request: self._answer(self._tool_calls, name, request))

    def _answer(self, recordings: _Recordings, name: str, request: dict[str, Any]) -> Any:
        self.raise_mismatch()
        data = self._redactor.redact_data(copy_json(request))
        call = recordings.take(name, data)
        if call is None:
            self._mismatch = recordings.build_mismatch(name, data)
            raise self._mismatch
        return _return_result(call)


class _Recordings:
    """Recorded calls of the model or of the tools; each is returned once."""

    def __init__(self, calls: Sequence[RecordedCall]) -> None:
        self.calls, self.unused = tuple(calls), list(calls)

    def take(self, name: str, data: dict[str, Any]) -> RecordedCall | None:
        """Return the first unused recording of a request, or None."""
        for position, call in enumerate(self.unused):
            if call.name == name and call.request == data:
                return self.unused.pop(position)
        return None

    def build_mismatch(self, name: str, data: dict[str, Any]) -> ReplayMismatch:
        """Return the error of an unknown request, with the nearest recording."""
        same = [(number, call) for number, call in enumerate(self.calls) if call.name == name]
        if not same:
            return ReplayMismatch(f"{name}: the bundle has no call of it")
        number, nearest = max(same, key=lambda one: _count_common_bytes(one[1].request, data))
        path = find_field(nearest.request, data)
        if path is None:
            return ReplayMismatch(f"{name}: the agent repeats recording {number} more often than it was made")
        return ReplayMismatch(f"{name}: the request differs from the nearest recording {number} in {path}")


def _count_common_bytes(first: Any, second: Any) -> int:
    pairs = zip(encode_json(first), encode_json(second), strict=False)
    return next((count for count, (one, other) in enumerate(pairs) if one != other), len(encode_json(first)))


def _return_result(call: RecordedCall) -> Any:
    if not call.error_type:
        return call.result
    kind = getattr(builtins, call.error_type, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = type(call.error_type, (Exception,), {})
    try:
        error = kind(call.error)
    except TypeError:  # such as UnicodeDecodeError, which needs five arguments
        error = type(call.error_type, (Exception,), {})(call.error)
    raise error
