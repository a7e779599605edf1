"""Acceptance rule about the tool calls of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentguard.detect.result_classification import classify_result
from agentguard.errors import ConfigError
from agentguard.recover.acceptance.base import BaseRule
from agentguard.trajectory.model import Step, ToolCall, Trajectory


class ToolCallRule(BaseRule):
    """Rule that the run has a number of successful calls of a tool.

    A call is successful if it has a result that does not report an error.

    Args:
        tool: name of the tool.
        arguments: arguments that a call must have to count; others may be added.
        minimum: smallest number of calls.
        maximum: largest number of calls; None for no limit.

    Raises:
        ConfigError: the limits are not whole numbers with 0 <= minimum <= maximum.
    """

    def __init__(
        self,
        tool: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        minimum: int = 1,
        maximum: int | None = None,
        name: str = "",
    ) -> None:
        self.name = name or f"calls {tool}"
        limits = [minimum] if maximum is None else [minimum, maximum]
        if any(type(one) is not int for one in limits) or not 0 <= limits[0] <= limits[-1]:
            raise ConfigError(
                f"acceptance rule {self.name!r}: expected whole numbers with 0 <= minimum <= maximum"
            )
        self._tool, self._arguments = tool, dict(arguments or {})
        self._minimum, self._maximum = minimum, maximum

    def find_violation(self, output: str, run: Trajectory) -> str:  # noqa: ARG002
        """Return a violation if there are too few or too many successful calls."""
        count = sum(
            self._matches(call) and _is_successful(call, position, step)
            for step in run.steps
            for position, call in enumerate(step.tool_calls)
        )
        if count < self._minimum:
            return f"The tool {self._tool} was called successfully {count} times, not {self._minimum}."
        if self._maximum is not None and count > self._maximum:
            return f"The tool {self._tool} was called {count} times, more than {self._maximum}."
        return ""

    def _matches(self, call: ToolCall) -> bool:
        given = call.arguments or {}
        return call.name == self._tool and all(
            name in given and given[name] == value for name, value in self._arguments.items()
        )


def _is_successful(call: ToolCall, position: int, step: Step) -> bool:
    results = [one for one in step.observations if one.call_id == call.id]
    if not results:
        results = [one for one in step.observations[position : position + 1] if one.call_id is None]
    return bool(results) and not any(
        classify_result(one.content.lower(), flag=one.is_error).is_error for one in results
    )
