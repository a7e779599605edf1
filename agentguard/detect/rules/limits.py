"""Budgets of a run, and a watchdog on its steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentguard.detect.base import SILENT, Finding
from agentguard.detect.options import Option
from agentguard.detect.quotes import cite_move
from agentguard.detect.rule import NOTHING, Rule
from agentguard.detect.view import RunView
from agentguard.trajectory.model import Source, Step


class Budget(Rule):
    """A budget of steps, tokens, money or time that the run has used up."""

    name = "budget"
    needs = SILENT
    sees = "more agent steps, tokens, US dollars or seconds than the run was given; silent where none is set"
    codes = ("agent_error:system.step_limit", "agent_error:system.llm_limit", "fault_model:timing")
    declared = (
        Option(
            name="steps",
            shape="int",
            default=None,
            low=1,
            high=1_000_000,
            text="agent steps; null for no limit",
        ),
        Option(
            name="tokens", shape="int", default=None, low=1, high=10**12, text="prompt and completion tokens"
        ),
        Option(name="cost_usd", shape="number", default=None, low=0, high=1e9, text="US dollars"),
        Option(
            name="seconds", shape="number", default=None, low=0, high=1e9, text="from the first start to now"
        ),
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.limits = {option.name: self.options.limit(option.name) for option in self.declared}
        self._open = {name for name, limit in self.limits.items() if limit is not None}
        self.watches = tuple(Source) if self._open else ()
        self._used = dict.fromkeys(self.limits, 0.0)
        self._began: float | None = None

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Add up what the step cost; report each budget once, when it is first exceeded."""
        self._add(step)
        over = [name for name in sorted(self._open) if self._used[name] > (self.limits[name] or 0)]
        self._open -= set(over)
        return [self._exceeded(step, name, view) for name in over]

    def _add(self, step: Step) -> None:
        used, usage = self._used, step.usage
        used["steps"] += step.source is Source.AGENT
        if usage is not None:
            used["tokens"] += (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
            used["cost_usd"] += usage.cost_usd or 0.0
        if self._began is None:
            self._began = step.started_at
        now = step.ended_at if step.ended_at is not None else step.started_at
        if self._began is not None and now is not None:
            used["seconds"] = max(used["seconds"], now - self._began)

    def _exceeded(self, step: Step, name: str, view: RunView) -> Finding:
        code = {"steps": self.codes[0], "seconds": self.codes[2]}.get(name, self.codes[1])
        limit = self.limits[name] or 0
        unit = name.replace("cost_usd", "US dollars")
        return self.finding(
            step,
            0.8,
            f"The run has used {self._used[name]:g} {unit}, more than the {limit:g} it was given.",
            correction="The budget is used up: finish now with what you have, and say what is missing.",
            evidence=cite_move(view.facts(step)),
            codes=(code,),
            budget=name,
            used=self._used[name],
            limit=limit,
        )


class Watchdog(Rule):
    """A step that took too long."""

    name = "watchdog"
    sees = "a step whose recorded duration is above the limit"
    codes = ("fault_model:timing", "agentrx:system_failure")
    watches = tuple(Source)
    declared = (
        Option(
            name="seconds",
            shape="number",
            default=600.0,
            low=0.001,
            high=1e7,
            text="longest duration of a step",
        ),
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seconds = self.options.number("seconds")

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare the step's duration with the limit; silent where times are not recorded."""
        if (
            step.started_at is None
            or step.ended_at is None
            or step.ended_at - step.started_at <= self.seconds
        ):
            return NOTHING
        taken = step.ended_at - step.started_at
        return (
            self.finding(
                step,
                0.4,
                f"The step took {taken:,.1f} s, more than the {self.seconds:g} s it may take.",
                correction="This took too long. Split it into smaller actions, or give it a time limit.",
                evidence=cite_move(view.facts(step)),
                taken_s=taken,
            ),
        )
