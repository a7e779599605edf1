"""Declared rules for tool calls: the order of tools, and the tools that each agent may call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentguard.detect.base import NEVER_BY_DEFAULT, NO_FINDINGS, BaseDetector, Finding
from agentguard.detect.quotes import quote_span
from agentguard.detect.run_view import RunView
from agentguard.options import Options, option
from agentguard.trajectory.model import Source, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlFlowOptions(Options):
    """Options of `ControlFlow`."""

    requires: Mapping[str, Any] = option(
        default_factory=dict, description="required earlier tool or tools, by tool"
    )
    order: tuple[Any, ...] = option((), description="tools in the order of their first calls")


class ControlFlow(BaseDetector):
    """Detector of a tool call before its prerequisites."""

    name = "control_flow"
    requirements = NEVER_BY_DEFAULT
    summary = "a call of a tool before a required tool has succeeded; no findings without a declared order"
    codes = (
        "agent_error:planning.constraint_ignorance",
        "agentrx:instruction_adherence_failure",
        "mast:disobey_task_specification",
    )
    default_options = ControlFlowOptions()
    options: ControlFlowOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.prerequisites: dict[str, set[str]] = {}
        for tool, prerequisites in self.options.requires.items():
            self.prerequisites.setdefault(tool, set()).update(_parse_names(self, "requires", prerequisites))
        order = _parse_names(self, "order", self.options.order)
        for i, tool in enumerate(order):
            self.prerequisites.setdefault(tool, set()).update(order[:i])
        self._succeeded_tools: set[str] = set()
        self._prerequisite_tools = {name for names in self.prerequisites.values() for name in names}
        self.observed_sources = tuple(Source) if self.prerequisites else ()

    def check_proposed(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare each call with the tools that succeeded before it."""
        del view
        return [
            self._build_order_finding(step, i, call.name, sorted(missing))
            for i, call in enumerate(step.tool_calls)
            if (missing := self.prerequisites.get(call.name, set()) - self._succeeded_tools - {call.name})
        ]

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Check the calls; then record the tools that succeeded."""
        findings = self.check_proposed(step, view)
        failed_tools = {result.tool for result in view.get_facts(step).results if result.error is not None}
        self._succeeded_tools |= {
            call.name for call in step.tool_calls if call.name not in failed_tools
        } & self._prerequisite_tools
        return findings

    def _build_order_finding(self, step: Step, index: int, tool: str, missing: list[str]) -> Finding:
        first = ", ".join(missing)
        return self.build_finding(
            step,
            0.85,
            f"{step.agent} called {tool} before {first}.",
            correction=f"Call {first} first, read the result, and only then call {tool}.",
            evidence=quote_span(step, f"tool_calls[{index}]"),
            tool=tool,
            missing=missing,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPermissionOptions(Options):
    """Options of `ToolPermission`."""

    allowed: Mapping[str, Any] = option(
        default_factory=dict, description='the only permitted tools, by agent; "*" means all agents'
    )
    denied: Mapping[str, Any] = option(
        default_factory=dict, description='forbidden tools, by agent; "*" means all agents'
    )


class ToolPermission(BaseDetector):
    """Detector of a tool call that the agent is not allowed to make."""

    name = "capability"
    requirements = NEVER_BY_DEFAULT
    summary = "a call of a tool that the agent may not use; no findings without declared permissions"
    codes = ("mast:disobey_role_specification", "agentrx:instruction_adherence_failure")
    default_options = ToolPermissionOptions()
    options: ToolPermissionOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.allowed = {k: set(_parse_names(self, "allowed", v)) for k, v in self.options.allowed.items()}
        self.denied = {k: set(_parse_names(self, "denied", v)) for k, v in self.options.denied.items()}
        self.observed_sources = tuple(Source) if self.allowed or self.denied else ()

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Check each call; a list for the agent takes precedence over the list for all agents."""
        if not step.tool_calls:
            return NO_FINDINGS
        allowed = self.allowed.get(step.agent, self.allowed.get("*"))
        denied = self.denied.get(step.agent, set()) | self.denied.get("*", set())
        return [
            self._build_permission_finding(step, i, call.name, len(view.tools))
            for i, call in enumerate(step.tool_calls)
            if call.name in denied or (allowed is not None and call.name not in allowed)
        ]

    check_proposed = observe
    is_stateless = True

    def _build_permission_finding(self, step: Step, index: int, tool: str, offered: int) -> Finding:
        return self.build_finding(
            step,
            0.85,
            f"{step.agent} called {tool}, which it may not use.",
            correction=f"You may not call {tool}. Use a permitted tool, or hand over to a permitted agent.",
            evidence=quote_span(step, f"tool_calls[{index}]"),
            tool=tool,
            offered=offered,
        )


def _parse_names(rule: BaseDetector, option: str, value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise rule.build_option_error(option, "must be the name of a tool or a list of names")
    return list(names)
