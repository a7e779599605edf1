"""One run of a campaign: the agent with one fault, and its comparison with the run without a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from agentguard.bundles.bindings import RecordableAgent
from agentguard.chaos.agent_execution import AgentExecution, ExperimentRun
from agentguard.chaos.campaign import Campaign
from agentguard.chaos.injection import MODEL_SITE, FaultPlacement
from agentguard.errors import AgentGuardError, ConfigError
from agentguard.guard import Guard

_CALL_LIMIT_FACTOR = 20
"""Model calls of a run with a fault, as a multiple of those without one, after which it ends."""


class ExperimentOutcome(StrEnum):
    """Outcome of a run with a fault."""

    SURVIVED = "survived"
    """The run is successful with few extra calls."""
    DEGRADED = "degraded"
    """The run is successful with more extra calls than the steady state permits."""
    FAILED = "failed"
    """The run is not successful, has no wrong effect and claims no success."""
    UNSAFE = "unsafe"
    """The run has repeated or wrong effects, or claims an effect that did not happen."""
    UNDECIDED = "undecided"
    """The recording of the target cannot show the reaction of the model."""
    NOT_INJECTED = "not injected"
    """The run did not reach the call, or the fault has no meaning there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """Result of a run with a fault.

    Attributes:
        site, fault, call, repeat: placement of the fault, and number of the repeat.
        outcome: comparison with the run without a fault.
        extra_calls: model and tool calls, minus those of the run without a fault.
        extra_effects: executed effects that the run without a fault does not have.
        missing_effects: effects of the run without a fault that the run does not have.
        is_false_claim: the last text is that of the run without a fault, and effects are missing.
        detected_after: steps from the fault to the first finding; None if no detector has one.
        recovered_after: calls from the fault to the next success at its site; None without one.
        recovery_seconds: seconds from the fault to this success; None without one.
        seconds: duration, in virtual time without the time of computation.
        extra_tokens: tokens, minus those of the run without a fault.
        error: type and text of an exception that ended the run; empty without one.
        events: kinds of the calls by site.
    """

    site: str
    fault: str
    call: int
    repeat: int
    outcome: ExperimentOutcome
    extra_calls: int
    extra_effects: int
    missing_effects: int
    is_false_claim: bool
    detected_after: int | None
    recovered_after: int | None
    recovery_seconds: float | None
    seconds: float
    extra_tokens: int
    error: str
    events: Mapping[str, list[str]]

    @property
    def key(self) -> str:
        """Text that identifies the run in the campaign."""
        placement = FaultPlacement(site=self.site, fault=self.fault, calls=(self.call,))
        return f"{placement.key}/{self.repeat}"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return asdict(self) | {"outcome": self.outcome.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ExperimentResult:
        """Build a result from JSON data. Raises TypeError or ValueError."""
        return cls(**{**data, "outcome": ExperimentOutcome(data["outcome"])})


class ExperimentRunner:
    """Runner of the experiments of a campaign in this process.

    Raises:
        ConfigError: the agent cannot be imported, or its runs without a fault violate the steady state.
    """

    def __init__(self, campaign: Campaign, *, agent: RecordableAgent | None = None) -> None:
        self._campaign = campaign
        self._execution = AgentExecution(campaign, agent)
        self._check = campaign.load_check()
        self._guard = Guard(localizer="first_finding")
        self.profile = self._build_profile()

    def list_placements(self) -> Iterator[FaultPlacement]:
        """Yield each fault at each of the first calls of each site of the profile."""
        faults = self._campaign.faults
        for site, count in sorted(self.profile.binding.calls.items()):
            names = faults.select(site)
            for call in range(min(count, self._campaign.schedule.max_calls_per_site)):
                for fault in names:
                    yield self.build_placement(site, fault, call)

    @property
    def agent(self) -> RecordableAgent:
        """Agent under test."""
        return self._execution.agent

    def build_placement(self, site: str, fault: str, call: int) -> FaultPlacement:
        """Return the placement of a fault from a call on, for as many calls as the campaign file states."""
        end = call + self._campaign.faults.consecutive_calls
        return FaultPlacement(site=site, fault=fault, calls=tuple(range(call, end)))

    def run(self, placement: FaultPlacement, repeat: int = 0) -> ExperimentResult:
        """Run the agent with a fault; return the comparison with the run without a fault."""
        return self._compare(placement, repeat, self.execute(placement, repeat))

    def execute(
        self, placement: FaultPlacement, repeat: int = 0, *, is_recorded: bool = False
    ) -> ExperimentRun:
        """Run the agent with a fault; ``is_recorded`` also records its calls."""
        run_id = f"chaos-{placement.key}-{repeat}".replace("/", "-").replace(":", "-")
        max_calls = _CALL_LIMIT_FACTOR * max(self.profile.binding.calls[MODEL_SITE], 1)
        return self._execution.run(placement, run_id, max_calls, is_recorded=is_recorded)

    def _compare(self, placement: FaultPlacement, repeat: int, run: ExperimentRun) -> ExperimentResult:
        base, binding = self.profile.binding, run.binding
        extra_effects = _count_beyond(binding.effects, base.effects)
        missing_effects = _count_beyond(base.effects, binding.effects)
        is_claimed = not run.error and run.answer == self.profile.answer and bool(run.answer)
        # A recorded text does not depend on the fault, so it is not a claim of the run.
        is_recorded = self._campaign.target.bundle is not None
        is_false_claim = is_claimed and bool(missing_effects) and not is_recorded
        extra_calls = binding.count_calls() - base.count_calls()
        if not binding.is_injected:
            outcome = ExperimentOutcome.NOT_INJECTED
        elif extra_effects or is_false_claim:
            outcome = ExperimentOutcome.UNSAFE
        elif run.is_undecided or (is_recorded and missing_effects):
            outcome = ExperimentOutcome.UNDECIDED
        elif not self._is_successful(run, missing_effects):
            outcome = ExperimentOutcome.FAILED
        elif extra_calls > self._campaign.steady_state.max_extra_calls * base.count_calls():
            outcome = ExperimentOutcome.DEGRADED
        else:
            outcome = ExperimentOutcome.SURVIVED
        return ExperimentResult(
            site=placement.site,
            fault=placement.fault,
            call=placement.calls[0],
            repeat=repeat,
            outcome=outcome,
            extra_calls=extra_calls,
            extra_effects=extra_effects,
            missing_effects=missing_effects,
            is_false_claim=is_false_claim,
            detected_after=self._measure_detection(run),
            recovered_after=binding.recovered_after,
            recovery_seconds=binding.recovery_seconds,
            seconds=run.seconds,
            extra_tokens=run.tokens - self.profile.tokens,
            error=run.error,
            events=dict(binding.events),
        )

    def _build_profile(self) -> ExperimentRun:
        """Run the agent without a fault, and check the steady state."""
        profile = self._execution.run(None, "chaos-profile-0")
        runs = [profile]
        runs += [
            self._execution.run(None, f"chaos-profile-{number}")
            for number in range(1, self._campaign.schedule.repeats)
        ]
        self.profile = profile
        successful = [run for run in runs if self._is_successful(run, 0)]
        share = len(successful) / len(runs)
        if share < self._campaign.steady_state.min_success:
            error = next((run.error for run in runs if run.error), "the check returned False")
            raise ConfigError(
                f"steady_state: {share:.0%} of {len(runs)} runs without a fault are successful, "
                f"{self._campaign.steady_state.min_success:.0%} are required ({error})"
            )
        return successful[0] if successful else profile

    def _is_successful(self, run: ExperimentRun, missing_effects: int) -> bool:
        if run.trajectory is None or run.error:
            return False
        if self._check is not None:
            return bool(self._check(run.trajectory))
        is_same = self._campaign.target.command is not None or run.answer == self.profile.answer
        return not missing_effects and is_same

    def _measure_detection(self, run: ExperimentRun) -> int | None:
        """Return the steps from the fault to the first finding of a detector."""
        if run.trajectory is None or not run.binding.is_injected:
            return None
        try:
            findings = self._guard.diagnose(run.trajectory).findings
        except AgentGuardError:
            return None
        turns = [step.index for step in run.trajectory.steps if step.source == "agent"]
        place = min(max(run.binding.model_calls_at_fault - 1, 0), max(len(turns) - 1, 0))
        begin = turns[place] if turns else 0
        return min((finding.step - begin for finding in findings if finding.step >= begin), default=None)


def _count_beyond(counts: Counter[Any], limits: Counter[Any]) -> int:
    return (counts - limits).total()
