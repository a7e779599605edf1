"""Budgets of a run, and a watchdog on its steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from agentguard.detect.base import NEVER_BY_DEFAULT, NO_FINDINGS, BaseDetector, Finding
from agentguard.detect.quotes import quote_move
from agentguard.detect.run_content import RunContent
from agentguard.detect.run_view import RunView
from agentguard.options import Options, option
from agentguard.trajectory.model import Source, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetOptions(Options):
    """Options of `BudgetDetector`."""

    steps: int | None = option(None, bounds=(1, 1_000_000), description="agent steps; null for no limit")
    tokens: int | None = option(None, bounds=(1, 10**12), description="prompt and completion tokens")
    cost_usd: float | None = option(None, bounds=(0.0, 1e9), description="US dollars")
    seconds: float | None = option(None, bounds=(0.0, 1e9), description="from the first start to now")


class BudgetDetector(BaseDetector):
    """Detector of an exceeded budget of steps, tokens, money or time."""

    name = "budget"
    requirements = NEVER_BY_DEFAULT
    summary = "more agent steps, tokens, US dollars or seconds than the budget; no findings without a budget"
    codes = ("agent_error:system.step_limit", "agent_error:system.llm_limit", "fault_model:timing")
    default_options = BudgetOptions()
    options: BudgetOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.limits = {
            name: None if value is None else float(value) for name, value in asdict(self.options).items()
        }
        self._unreported_limits = {name for name, limit in self.limits.items() if limit is not None}
        self.observed_sources = tuple(Source) if self._unreported_limits else ()
        self._usage = dict.fromkeys(self.limits, 0.0)
        self._started_at: float | None = None

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Add the cost of the step; report each budget once, at the first step that exceeds it."""
        self._add_usage(step)
        over = [
            name for name in sorted(self._unreported_limits) if self._usage[name] > (self.limits[name] or 0)
        ]
        self._unreported_limits -= set(over)
        return [self._build_budget_finding(step, name, view) for name in over]

    def _add_usage(self, step: Step) -> None:
        used, usage = self._usage, step.usage
        used["steps"] += step.source is Source.AGENT
        if usage is not None:
            used["tokens"] += (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
            used["cost_usd"] += usage.cost_usd or 0.0
        if self._started_at is None:
            self._started_at = step.started_at
        now = step.ended_at if step.ended_at is not None else step.started_at
        if self._started_at is not None and now is not None:
            used["seconds"] = max(used["seconds"], now - self._started_at)

    def _build_budget_finding(self, step: Step, name: str, view: RunView) -> Finding:
        code = {"steps": self.codes[0], "seconds": self.codes[2]}.get(name, self.codes[1])
        limit = self.limits[name] or 0
        unit = name.replace("cost_usd", "US dollars")
        return self.build_finding(
            step,
            0.8,
            f"The run has used {self._usage[name]:g} {unit}; its budget is {limit:g}.",
            correction="The budget is exhausted: finish with the results so far, and report what is missing.",
            evidence=quote_move(view.get_facts(step)),
            codes=(code,),
            budget=name,
            used=self._usage[name],
            limit=limit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDurationWatchdogOptions(Options):
    """Options of `StepDurationWatchdog`."""

    seconds: float = option(600.0, bounds=(0.001, 1e7), description="longest duration of a step")


class StepDurationWatchdog(BaseDetector):
    """Detector of steps that take too long."""

    name = "watchdog"
    summary = "a step whose recorded duration is above the limit"
    codes = ("fault_model:timing", "agentrx:system_failure")
    observed_sources = tuple(Source)
    default_options: ClassVar[StepDurationWatchdogOptions] = StepDurationWatchdogOptions()
    options: StepDurationWatchdogOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.max_seconds = self.options.seconds

    @classmethod
    def can_find(cls, content: RunContent) -> bool:
        """Return True if a recorded duration is above the default limit."""
        return any(
            step.started_at is not None
            and step.ended_at is not None
            and step.ended_at - step.started_at > cls.default_options.seconds
            for step in content.run.steps
        )

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Compare the duration of the step with the limit; without recorded times, yield no findings."""
        if (
            step.started_at is None
            or step.ended_at is None
            or step.ended_at - step.started_at <= self.max_seconds
        ):
            return NO_FINDINGS
        duration_s = step.ended_at - step.started_at
        return (
            self.build_finding(
                step,
                0.4,
                f"The step took {duration_s:,.1f} s; the limit is {self.max_seconds:g} s.",
                correction="This action took too long. Split it into smaller actions, or set a time limit.",
                evidence=quote_move(view.get_facts(step)),
                taken_s=duration_s,
            ),
        )
