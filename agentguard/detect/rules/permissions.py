"""What the user declares of tools: the order in which they may be called, and who may call them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentguard.detect.base import SILENT, Finding
from agentguard.detect.options import Option
from agentguard.detect.quotes import cite
from agentguard.detect.rule import NOTHING, Rule
from agentguard.detect.view import RunView
from agentguard.trajectory.model import Source, Step


class ControlFlow(Rule):
    """A tool called before those that must come first."""

    name = "control_flow"
    needs = SILENT
    sees = "a tool called before a tool that must have succeeded first; silent where no order is declared"
    codes = (
        "agent_error:planning.constraint_ignorance",
        "agentrx:instruction_adherence_failure",
        "mast:disobey_task_specification",
    )
    declared = (
        Option(
            name="requires", shape="mapping", default={}, text="tool to the tool or tools that come before it"
        ),
        Option(
            name="order",
            shape="list",
            default=(),
            text="tools in the order in which they may be called first",
        ),
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.before: dict[str, set[str]] = {}
        for tool, needed in self.options.mapping("requires").items():
            self.before.setdefault(tool, set()).update(_names(self, "requires", needed))
        order = _names(self, "order", self.options.items("order"))
        for i, tool in enumerate(order):
            self.before.setdefault(tool, set()).update(order[:i])
        self._done: set[str] = set()
        self._wanted = {name for names in self.before.values() for name in names}
        self.watches = tuple(Source) if self.before else ()

    def foresee(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare each call with what has succeeded before it."""
        del view
        return [
            self._early(step, i, call.name, sorted(missing))
            for i, call in enumerate(step.tool_calls)
            if (missing := self.before.get(call.name, set()) - self._done - {call.name})
        ]

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """As `foresee`; then note what has succeeded now."""
        found = self.foresee(step, view)
        failed = {result.tool for result in view.facts(step).results if result.trouble is not None}
        self._done |= {call.name for call in step.tool_calls if call.name not in failed} & self._wanted
        return found

    def _early(self, step: Step, index: int, tool: str, missing: list[str]) -> Finding:
        first = ", ".join(missing)
        return self.finding(
            step,
            0.85,
            f"{step.agent} called {tool} before {first}.",
            correction=f"Call {first} first, read the result, and only then call {tool}.",
            evidence=cite(step, f"tool_calls[{index}]"),
            tool=tool,
            missing=missing,
        )


class Capability(Rule):
    """A tool that this agent may not use."""

    name = "capability"
    needs = SILENT
    sees = "a tool call by an agent that may not use that tool; silent where nothing is declared"
    codes = ("mast:disobey_role_specification", "agentrx:instruction_adherence_failure")
    declared = (
        Option(
            name="allowed", shape="mapping", default={}, text='agent, or "*", to the only tools it may use'
        ),
        Option(name="denied", shape="mapping", default={}, text='agent, or "*", to tools it may not use'),
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.allowed = {
            k: set(_names(self, "allowed", v)) for k, v in self.options.mapping("allowed").items()
        }
        self.denied = {k: set(_names(self, "denied", v)) for k, v in self.options.mapping("denied").items()}
        self.watches = tuple(Source) if self.allowed or self.denied else ()

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Check each call; a list for the agent outranks the one for all."""
        if not step.tool_calls:
            return NOTHING
        allowed = self.allowed.get(step.agent, self.allowed.get("*"))
        denied = self.denied.get(step.agent, set()) | self.denied.get("*", set())
        return [
            self._forbidden(step, i, call.name, len(view.tools))
            for i, call in enumerate(step.tool_calls)
            if call.name in denied or (allowed is not None and call.name not in allowed)
        ]

    foresee = observe
    foresees_all = True

    def _forbidden(self, step: Step, index: int, tool: str, offered: int) -> Finding:
        return self.finding(
            step,
            0.85,
            f"{step.agent} called {tool}, which it may not use.",
            correction=f"You may not call {tool}. Use a tool you may use, or hand over to one who may.",
            evidence=cite(step, f"tool_calls[{index}]"),
            tool=tool,
            offered=offered,
        )


def _names(rule: Rule, option: str, value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise rule.options.wrong(option, "must name tools: a text or a list of texts")
    return list(names)
