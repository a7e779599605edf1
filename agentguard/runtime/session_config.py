"""Configuration of guarded runs, independent of the framework."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, Protocol

from agentguard.config.prices import PriceTable
from agentguard.detect.base import Finding
from agentguard.detect.runner import IncrementalRunner
from agentguard.judge.response_safety import SafetyAssessment
from agentguard.localize.base import Localizer
from agentguard.recover.acceptance.base import AcceptanceEvaluator
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.escalation_planner import EscalationPlanner
from agentguard.recover.outcome_verification import OutcomeVerification
from agentguard.recover.plan import Recovery
from agentguard.recover.selective_redundancy import SelectiveRedundancy
from agentguard.recover.strategy import RepairFunction
from agentguard.resilience.clock import MONOTONIC
from agentguard.resilience.retry import RetryBudget, RetryBudgetOptions
from agentguard.runtime.live_judge import LiveJudge
from agentguard.runtime.run_diagnosis import DiagnosisAnnotator, RunDiagnosis
from agentguard.trajectory.model import Trajectory

_RESERVE: Final = 10.0


class SharedRetryBudget:
    """Retry budget of all runs of a guard: at most ten retries, and each success adds a share; thread-safe.

    A limit of each run is not sufficient: the retries of many runs together can overload a slow server.

    Args:
        ratio: retries that a success adds.
    """

    def __init__(self, ratio: float) -> None:
        options = RetryBudgetOptions(ratio=ratio, reserve=_RESERVE, per_second=0.0, burst=_RESERVE)
        self._budget = RetryBudget(options, MONOTONIC)
        self._lock = threading.Lock()

    def deposit(self) -> None:
        """Add the share of a success."""
        with self._lock:
            self._budget.deposit()

    def withdraw(self) -> bool:
        """Take a retry from the budget; return False if the budget is empty."""
        with self._lock:
            return self._budget.withdraw()


class SafetyAssessor(Protocol):
    """Assessment of a run's final message, for example `agentguard.judge.response_safety.ResponseSafety`."""

    def __call__(self, run: Trajectory) -> SafetyAssessment | None:
        """Rate the agent's last message; return None if the agent wrote no message."""
        ...

    def close(self) -> None:
        """Close the judges; a later question opens them again."""
        ...


RunEndObserver = Callable[[Trajectory, Sequence[Finding]], None]
"""Callback for the end of a run; it receives the run and the findings on its current branch."""

RecoveryObserver = Callable[[Recovery], None]
"""Callback for a recovery: called at its begin, and when its outcome is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """Configuration of sessions; one object may serve many runs.

    Attributes:
        planner: planner that chooses the recovery.
        build_detector_runner: factory of the detectors of one run; its argument is the run without steps.
        localizer: localizer of a live run, called after a finding; None uses the findings alone.
        recovery_budget: limits of the recoveries of one run.
        verification: verification of recovery outcomes.
        finding_threshold: probability from which a finding triggers a recovery.
        live_judge: judge that classifies new steps while the agent runs.
        effect_threshold: probability from which a finding stops a call of an undeclared or destructive tool.
        run_diagnosis: diagnosis of whole runs; it may block on a judge.
        acceptance_function: acceptance test of a run that is about to end.
        safety_assessor: assessment of the final message of a run that is about to end.
        on_guard_error: ``"fail_open"`` continues the run if a part of the guard fails; ``"fail_closed"``
            stops it.
        observers: callbacks for recoveries.
        run_end_observers: callbacks for the end of a run.
        redundancy: selection of turns on which candidates vote although no detector has a finding.
        repair_function: repair function of the user.
        annotate_diagnosis: function that adds matching schemata of earlier failures to a diagnosis.
        clock: function that returns epoch seconds, for the times of steps.
        tool_timeout_s: seconds after which a tool is interrupted, unless its declaration has another timeout;
            None for no limit.
        read_retry_budget: budget of the retried reads of all runs.
        acceptance_retry_budget: budget of the refused ends of all runs whose last tools failed.
        prices: price table for the costs of steps that record no cost.
    """

    planner: EscalationPlanner
    build_detector_runner: Callable[[Trajectory], IncrementalRunner]
    localizer: Localizer | None = None
    recovery_budget: RecoveryBudget = field(default_factory=RecoveryBudget)
    verification: OutcomeVerification = field(default_factory=OutcomeVerification)
    finding_threshold: float = 0.5
    effect_threshold: float = 0.3
    run_diagnosis: RunDiagnosis | None = None
    live_judge: LiveJudge | None = None
    acceptance_function: AcceptanceEvaluator | None = None
    safety_assessor: SafetyAssessor | None = None
    on_guard_error: Literal["fail_open", "fail_closed"] = "fail_open"
    observers: tuple[RecoveryObserver, ...] = ()
    run_end_observers: tuple[RunEndObserver, ...] = ()
    redundancy: SelectiveRedundancy | None = None
    repair_function: RepairFunction | None = None
    annotate_diagnosis: DiagnosisAnnotator | None = None
    clock: Callable[[], float] = time.time
    read_retry_budget: SharedRetryBudget = field(
        default_factory=partial(SharedRetryBudget, 0.1), compare=False
    )
    acceptance_retry_budget: SharedRetryBudget = field(
        default_factory=partial(SharedRetryBudget, 1.0), compare=False
    )
    tool_timeout_s: float | None = None
    prices: PriceTable = field(default_factory=dict)

    @property
    def may_block(self) -> bool:
        """Return whether the end of a run may block, for example on a judge."""
        return self.safety_assessor is not None or (
            self.acceptance_function is not None and self.acceptance_function.may_block
        )
