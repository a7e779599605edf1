"""Guard check: run scenarios without and with a guard, and compare the runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from pydantic import ValidationError

from agentguard.errors import ConfigError, RunStopped
from agentguard.guard import Guard
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.plan import REPEATED_CALL_TRIGGER
from agentguard.recover.recovery_policy import EFFECT_TRIGGER, RecoveryPolicy
from agentguard.testing.contracts.integrations import (
    TASK,
    AgentDriver,
    ContractRequest,
    RunFeature,
    SeatAnswer,
    list_features,
    list_invocations,
)
from agentguard.testing.guard_check.scenarios import build_scenarios
from agentguard.testing.guard_check.scripted_run import SUB_AGENT_MODEL, ScriptedRun, ScriptedScenario

_MAX_PLAIN_TURNS = 60


class CheckOutcome(StrEnum):
    """Comparison of a guarded run with the same run without the guard."""

    PASSED = "passed"
    """The run passes both times."""
    BROKEN = "broken"
    """The run passes without the guard and not with it."""
    RESCUED = "rescued"
    """The run passes only with the guard."""
    PREVENTED = "harm prevented"
    """The run fails both times, with fewer wrong or repeated effects."""
    STOPPED_EARLY = "stopped early"
    """The run fails both times, with fewer model calls, since the guard stopped it."""
    UNCHANGED = "unchanged"
    HARMED = "harmed"
    """The run fails both times, with more wrong or repeated effects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of one run.

    Attributes:
        passes: whether the answer is true (or the scenario cancelled the run), every effect is right, and the
            run has neither stopped nor failed.
        calls: number of model calls.
        harm: number of wrong and repeated effects.
        guard_messages: number of different messages of the guard that the model received.
        is_stopped: whether the guard stopped the run.
        error: type and text of an exception that ended the run; empty without one.
    """

    passes: bool
    calls: int
    harm: int
    guard_messages: int = 0
    is_stopped: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioComparison:
    """Comparison of both runs of a scenario."""

    scenario: ScriptedScenario
    plain: RunResult
    guarded: RunResult

    @property
    def outcome(self) -> CheckOutcome:
        """Comparison of the two runs."""
        plain, guarded = self.plain, self.guarded
        if plain.passes:
            return CheckOutcome.PASSED if guarded.passes else CheckOutcome.BROKEN
        if guarded.passes:
            return CheckOutcome.RESCUED
        if guarded.harm != plain.harm:
            return CheckOutcome.PREVENTED if guarded.harm < plain.harm else CheckOutcome.HARMED
        if guarded.is_stopped and guarded.calls < plain.calls:
            return CheckOutcome.STOPPED_EARLY
        return CheckOutcome.UNCHANGED


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardCheckReport:
    """Comparisons of all scenarios in one integration.

    Attributes:
        comparisons: one for each scenario that ran.
        not_run: number of scenarios that need a feature that the driver does not declare, by feature.
    """

    comparisons: tuple[ScenarioComparison, ...]
    not_run: Counter[RunFeature] = field(default_factory=Counter)

    def count_outcomes(self) -> Counter[CheckOutcome]:
        """Return the number of scenarios by outcome."""
        return Counter(one.outcome for one in self.comparisons)

    def list_broken(self) -> tuple[ScenarioComparison, ...]:
        """Return the scenarios that pass without the guard only, or that the guard makes more harmful."""
        bad = (CheckOutcome.BROKEN, CheckOutcome.HARMED)
        return tuple(one for one in self.comparisons if one.outcome in bad)

    def list_framework_errors(self) -> list[str]:
        """Return the errors of runs that the framework fails without detectors, each once."""
        return sorted({one.plain.error for one in self.comparisons if one.plain.error})

    def compute_call_growth(self) -> float:
        """Return the growth of model calls over the scenarios that pass without the guard; 0.05 is 5 %."""
        passing = [one for one in self.comparisons if one.plain.passes]
        plain = sum(one.plain.calls for one in passing)
        return sum(one.guarded.calls for one in passing) / plain - 1 if plain else 0.0

    def count_needless_messages(self) -> int:
        """Return the number of the guard's messages in the scenarios that pass without the guard."""
        return sum(one.guarded.guard_messages for one in self.comparisons if one.plain.passes)

    def count_calls_saved(self) -> int:
        """Return the number of model calls that early stops saved."""
        stopped = (one for one in self.comparisons if one.outcome is CheckOutcome.STOPPED_EARLY)
        return sum(one.plain.calls - one.guarded.calls for one in stopped)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        passing = sum(one.plain.passes for one in self.comparisons)
        outcomes = self.count_outcomes()
        return {
            "scenarios": len(self.comparisons),
            "not_run": {feature.value: count for feature, count in sorted(self.not_run.items())},
            "passing_without_guard": passing,
            "failing_without_guard": len(self.comparisons) - passing,
            "failing_in_framework": self.list_framework_errors(),
            "call_growth": round(self.compute_call_growth(), 4),
            "needless_messages": self.count_needless_messages(),
            "calls_saved": self.count_calls_saved(),
            "harmful_effects_without_guard": sum(one.plain.harm for one in self.comparisons),
            "harmful_effects_with_guard": sum(one.guarded.harm for one in self.comparisons),
            "outcomes": {outcome.value: outcomes[outcome] for outcome in CheckOutcome},
            "broken": [
                {
                    "scenario": one.scenario.name,
                    "outcome": one.outcome.value,
                    "plain_calls": one.plain.calls,
                    "guarded_calls": one.guarded.calls,
                    "error": one.guarded.error,
                }
                for one in self.list_broken()
            ],
        }


def run_guard_check(
    driver: AgentDriver, scenarios: Iterable[ScriptedScenario], build_guard: Callable[[], Guard] = Guard
) -> GuardCheckReport:
    """Run scenarios without a guard and in an integration.

    Args:
        driver: function that runs an agent under a guard; see `agentguard.testing.contracts.integrations`.
        scenarios: the scenarios.
        build_guard: function that builds the guard of each run.

    Returns:
        The comparisons, without the scenarios that need a feature that the driver does not declare.
    """
    features = list_features(driver)
    comparisons, not_run = [], Counter[RunFeature]()
    for scenario in scenarios:
        if scenario.feature is not None and scenario.feature not in features:
            not_run[scenario.feature] += 1
        else:
            comparisons.append(_compare_runs(driver, scenario, build_guard))
    return GuardCheckReport(comparisons=tuple(comparisons), not_run=not_run)


def check_driver(driver: AgentDriver) -> None:
    """Check that a driver can run the simplest scenario: one booking, no detectors.

    Raises:
        ConfigError: the run does not pass.
    """
    scenario = next(one for one in build_scenarios() if one.name == "direct/0/declared")
    run = ScriptedRun({"own": []}, scenario=scenario)
    guard = _build_inactive_guard()
    try:
        driver(guard, run)
    except Exception as error:  # an integration or a framework may raise anything
        reason = f"it raises {type(error).__name__}: {error}"
    else:
        result = _build_result(run)
        if result.passes:
            return
        reason = (
            f"it made {result.calls} requests to the model, {sum(run.bookings.values())} bookings, "
            f"and set the answer {run.answer!r}"
        )
    raise ConfigError(
        f"the function does not pass the simplest scenario without detectors: {reason}. It must take a guard "
        "and a ContractRun, call next_answer() for each turn, execute book() and find(), and set answer"
    )


def _compare_runs(
    driver: AgentDriver, scenario: ScriptedScenario, build_guard: Callable[[], Guard]
) -> ScenarioComparison:
    """Run a scenario twice; a run that fails because of the framework counts as failing without the guard."""
    plain, guarded = run_plain(scenario), run_guarded(driver, scenario, build_guard)
    if plain.passes and not guarded.passes:
        inactive = run_guarded(driver, scenario, _build_inactive_guard)
        plain = plain if inactive.passes else inactive
    return ScenarioComparison(scenario=scenario, plain=plain, guarded=guarded)


def _build_inactive_guard() -> Guard:
    """Build a guard that cannot act: without detectors, and without a budget for its other checks."""
    policy = RecoveryPolicy(
        on_fail="hint",
        escalations={EFFECT_TRIGGER: "reprompt", REPEATED_CALL_TRIGGER: "reprompt"},
        budget=RecoveryBudget(rollbacks=0, hints=0),
    )
    return Guard(detectors={}, localizer="first_finding", recover=policy)


def run_plain(scenario: ScriptedScenario) -> RunResult:
    """Run a scenario in a plain loop without a guard; errors of tools become results."""
    run = ScriptedRun({"own": []}, scenario=scenario)
    try:
        run.answer = _run_plain_agent(run, "own")
    except asyncio.CancelledError:
        return _build_result(run, is_cancelled=True)
    return _build_result(run)


def _run_plain_agent(run: ScriptedRun, model: str) -> str:
    """Run an agent until its answer; return an empty text after `_MAX_PLAIN_TURNS`."""
    results: list[str] = []
    texts = [TASK]
    tools: dict[str, Callable[..., str]] = {"find": run.find}
    if model != SUB_AGENT_MODEL:
        tools |= {"book": partial(_book_if_approved, run)}
        if run.feature is RunFeature.SUB_AGENT:
            tools |= {"scout": partial(_run_scout, run)}
    for _ in range(_MAX_PLAIN_TURNS):
        answer = run.next_answer(ContractRequest(model, list(texts), list(results)))
        if isinstance(answer, str):
            if run.feature is not RunFeature.STRUCTURED_OUTPUT or is_seat_answer(answer):
                return answer
            texts.append("The answer is not valid.")
        for name, arguments in list_invocations(answer):
            try:
                tool = tools.get(name)
                results.append(f"Error: there is no tool {name!r}" if tool is None else tool(**arguments))
            except Exception as error:  # the model gets the error as a result
                results.append(f"Error: {type(error).__name__}: {error}")
    return ""


def _run_scout(run: ScriptedRun, where: str) -> str:
    del where
    return _run_plain_agent(run, SUB_AGENT_MODEL)


def _book_if_approved(run: ScriptedRun, seat: int) -> str:
    approved = run.feature is not RunFeature.APPROVAL or run.approve()
    return run.book(seat) if approved else "The person refused the call."


def is_seat_answer(text: str) -> bool:
    """Return whether a text is a JSON document that matches `SeatAnswer`."""
    try:
        SeatAnswer.model_validate_json(text)
    except ValidationError:
        return False
    return True


def run_guarded(
    driver: AgentDriver, scenario: ScriptedScenario, build_guard: Callable[[], Guard] = Guard
) -> RunResult:
    """Run a scenario under a guard in an integration."""
    run = ScriptedRun({"own": []}, scenario=scenario)
    guard = build_guard()
    if scenario.is_declared:
        guard.tool(effect="destructive", repeatable=scenario.is_repeatable)(run.book)
        guard.tool(effect="read")(run.find)
    error = ""
    try:
        driver(guard, run)
    except RunStopped:
        return _build_result(run, is_stopped=True)
    except asyncio.CancelledError:
        return _build_result(run, is_cancelled=True)
    except Exception as raised:  # as in check_driver
        error = f"{type(raised).__name__}: {raised}"[:200]
    is_stopped = any(session.stop_reason is not None for session in run.sessions)
    return _build_result(run, is_stopped=is_stopped, error=error)


def _build_result(
    run: ScriptedRun, *, is_stopped: bool = False, is_cancelled: bool = False, error: str = ""
) -> RunResult:
    claims_booking = "booked" in run.answer and "nothing was" not in run.answer
    is_booked = run.bookings[run.scenario.seat] >= run.scenario.wanted_bookings
    is_true = is_booked if claims_booking else "nothing was changed" in run.answer
    if run.feature is RunFeature.CANCELLATION:
        is_true = is_cancelled
    return RunResult(
        passes=is_true and not run.harmful_bookings and not is_stopped and not error,
        calls=len(run.requests),
        harm=run.harmful_bookings,
        guard_messages=run.guard_message_count,
        is_stopped=is_stopped,
        error=error,
    )
