"""What a guarded run goes by, whichever framework it runs in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agentguard.detect.base import Finding
from agentguard.detect.run import Watcher
from agentguard.judge.safety import Assessment
from agentguard.localize.base import Diagnosis, Localizer
from agentguard.recover.base import Recovery, RepairFunction
from agentguard.recover.budget import Budget
from agentguard.recover.planner import Planner
from agentguard.recover.protect import Protect
from agentguard.recover.verify import Verification
from agentguard.trajectory.model import Trajectory

ACCEPTANCE = "acceptance"
"""The trigger's name where the acceptance test refused the end of a run; a ladder may be given under it."""

Accept = Callable[[Trajectory], bool | str]
"""An acceptance test: True accepts the run, False or a reason refuses it."""


Safety = Callable[[Trajectory], Assessment | None]
"""Assesses the last message of a run that wants to end: `agentguard.judge.safety.ResponseSafety`."""


class Credit(Protocol):
    """Lets the schemata of earlier failures speak: `agentguard.live.learning.Learning.credit`."""

    def __call__(
        self, run: Trajectory, diagnosis: Diagnosis, findings: Sequence[Finding], *, rank: bool
    ) -> Diagnosis:
        """The diagnosis with who spoke for its hypotheses; with ``rank`` also ranked by what they say."""
        ...


AtEnd = Callable[[Trajectory, Sequence[Finding]], None]
"""Told of a run that has ended, and what was found on its live line."""

Observer = Callable[[Recovery], None]
"""Told of each recovery when it begins and when its outcome is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
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
        on_error: ``"open"``: a run goes on when a part of the guard fails; ``"closed"``: it is stopped.
        observers: told of recoveries.
        at_end: told of the run once it has ended.
        protect: turns on which candidates vote, though nothing was found.
        repair: a user's own repair.
        credit: what the schemata of earlier failures say of a diagnosis, if there are any.
    """

    planner: Planner
    watcher: Callable[[Trajectory], Watcher]
    localizer: Localizer | None = None
    budget: Budget = field(default_factory=Budget)
    verification: Verification = field(default_factory=Verification)
    threshold: float = 0.5
    afterwards: Localizer | None = None
    accept: Accept | None = None
    safety: Safety | None = None
    on_error: Literal["open", "closed"] = "open"
    observers: tuple[Observer, ...] = ()
    at_end: tuple[AtEnd, ...] = ()
    protect: Protect | None = None
    repair: RepairFunction | None = None
    credit: Credit | None = None

    @property
    def waits(self) -> bool:
        """Whether the end of a run may wait for somebody, e.g. a judge."""
        return self.safety is not None or bool(getattr(self.accept, "waits", False))
