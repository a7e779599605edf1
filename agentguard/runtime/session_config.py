"""What a guarded run goes by, whichever framework it runs in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agentguard.detect.base import Finding
from agentguard.detect.runner import IncrementalRunner
from agentguard.judge.response_safety import SafetyAssessment
from agentguard.localize.base import Diagnosis, Localizer
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.outcome_verification import OutcomeVerification
from agentguard.recover.plan import Recovery
from agentguard.recover.planner import RecoveryPlanner
from agentguard.recover.selective_redundancy import SelectiveRedundancy
from agentguard.recover.strategy import RepairFunction
from agentguard.trajectory.model import Trajectory

ACCEPTANCE_TRIGGER = "acceptance"
"""The trigger's name where the acceptance test refused the end of a run; a ladder may be given under it."""

AcceptanceFunction = Callable[[Trajectory], bool | str]
"""An acceptance test: True accepts the run, False or a reason refuses it."""


SafetyAssessor = Callable[[Trajectory], SafetyAssessment | None]
"""Assesses the last message of a run that wants to end: `agentguard.judge.response_safety.ResponseSafety`."""


class DiagnosisAnnotator(Protocol):
    """Lets the schemata of earlier failures speak:
    `agentguard.runtime.schema_feedback.SchemaFeedback.credit`.
    """

    def __call__(
        self, run: Trajectory, diagnosis: Diagnosis, findings: Sequence[Finding], *, rerank: bool
    ) -> Diagnosis:
        """The diagnosis with who spoke for its hypotheses; with ``rank`` also ranked by what they say."""
        ...


RunEndObserver = Callable[[Trajectory, Sequence[Finding]], None]
"""Told of a run that has ended, and what was found on its live line."""

RecoveryObserver = Callable[[Recovery], None]
"""Told of each recovery when it begins and when its outcome is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """What a session goes by; one serves many runs.

    Attributes:
        planner: chooses what to do.
        watcher: makes the detectors of one run, given the run without its steps.
        localizer: ranks the steps once something was found; None trusts the findings alone.
        budget: what recoveries of one run may cost.
        verification: how their outcome is judged.
        threshold: probability from which a finding sets off a recovery.
        afterwards: ranks the steps of a recorded run, where that is another one: it may ask a judge and wait.
        accept: the acceptance test of a run that wants to end, if there is one.
        safety: assesses what a run that wants to end says, if that is asked for.
        on_error: ``"fail_open"``: a run goes on when a part of the guard fails; ``"fail_closed"``: it is
            stopped.
        observers: told of recoveries.
        at_end: told of the run once it has ended.
        protect: turns on which candidates vote, though nothing was found.
        repair: a user's own repair.
        credit: what the schemata of earlier failures say of a diagnosis, if there are any.
    """

    planner: RecoveryPlanner
    build_detector_runner: Callable[[Trajectory], IncrementalRunner]
    localizer: Localizer | None = None
    recovery_budget: RecoveryBudget = field(default_factory=RecoveryBudget)
    verification: OutcomeVerification = field(default_factory=OutcomeVerification)
    finding_threshold: float = 0.5
    offline_localizer: Localizer | None = None
    acceptance_function: AcceptanceFunction | None = None
    safety_assessor: SafetyAssessor | None = None
    on_guard_error: Literal["fail_open", "fail_closed"] = "fail_open"
    observers: tuple[RecoveryObserver, ...] = ()
    run_end_observers: tuple[RunEndObserver, ...] = ()
    redundancy: SelectiveRedundancy | None = None
    repair_function: RepairFunction | None = None
    annotate_diagnosis: DiagnosisAnnotator | None = None

    @property
    def may_block(self) -> bool:
        """Whether the end of a run may wait for somebody, e.g. a judge."""
        return self.safety_assessor is not None or bool(getattr(self.acceptance_function, "may_block", False))
