"""State of a guarded run: its record, its findings and its recoveries.

`agentguard.runtime.session.Session` adds the events to it. The parts of a session (pending turn, repeated
reads, end of the run) use this state, so that none of them depends on the session. Only these parts use the
names that begin with an underscore.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from agentguard.detect.base import DetectorFailure, Finding
from agentguard.judge.response_safety import SafetyAssessment
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.recover.actions import SendMessage, Stop
from agentguard.recover.budget import BudgetAccount
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryPlan, RecoveryTier
from agentguard.recover.planner import DIAGNOSIS_TRIGGER
from agentguard.recover.strategy import RecoveryContext
from agentguard.runtime.live_diagnosis import build_live_diagnosis, rank_candidates
from agentguard.runtime.session_config import SessionConfig
from agentguard.trajectory.event_log.recorder import RunRecorder
from agentguard.trajectory.model import Source, Step, ToolSpec, Trajectory


class StepTimer:
    """Wall time between the events of one run, including the time of model calls and tools."""

    def __init__(self) -> None:
        self._durations: list[float] = []
        self._last_event = time.perf_counter()

    def record_step(self, index: int) -> None:
        """Record the time of step ``index``; discard the times that were recorded from this index on."""
        now = time.perf_counter()
        del self._durations[index:]
        self._durations += [0.0] * (
            index - len(self._durations)
        )  # in a resumed run, the time of the earlier steps is unknown
        self._durations.append(now - self._last_event)
        self._last_event = now

    def discard_steps(self, steps: Sequence[Step]) -> float:
        """Return the seconds of discarded steps; a proposed step took the time since the last event."""
        now = time.perf_counter()
        proposed = any(step.index >= len(self._durations) for step in steps)
        seconds = sum(self._durations[step.index] for step in steps if step.index < len(self._durations))
        if proposed:
            seconds += now - self._last_event
            self._last_event = now
        return seconds


class RunState:
    """State of one guarded run; the base of a session, without its events.

    Args:
        config: configuration of the session.
        meta: the run without steps: id, task, tools, system prompts.
        capabilities: abilities of the integration.
        ledger: effect ledger of the run; by default a ledger without declared tools.
        recorder: recorder of the steps; by default one in memory. If it has steps, the run continues from
            them.
    """

    def __init__(
        self,
        config: SessionConfig,
        meta: Trajectory,
        capabilities: Capabilities,
        *,
        ledger: EffectLedger | None = None,
        recorder: RunRecorder | None = None,
    ) -> None:
        self.config, self.capabilities, self.id = config, capabilities, meta.id
        self.ledger = ledger if ledger is not None else EffectLedger()
        self.recorder = recorder if recorder is not None else RunRecorder(meta)
        self.account = BudgetAccount(config.recovery_budget)
        self.recoveries: list[Recovery] = []
        self.failures: list[DetectorFailure] = []
        self.findings: list[Finding] = []
        self.stop_reason: str | None = None
        self.assessment: SafetyAssessment | None = None
        """Safety assessment of the final message; None if none was made."""
        self.has_ended = False
        self.overhead_s = 0.0
        self.unit_of_work: Callable[[], AbstractContextManager[Any]] | None = None
        """Context manager factory: the store commits all writes of one event together."""
        self.restorable_steps: Callable[[], tuple[int, ...]] | None = None
        """Function that lists the steps to which a rollback can restore the state; None if it can for all."""
        self._lock = threading.RLock()
        self._pending_trigger: Finding | None = None
        self._pending_messages: list[str] = []
        self._added_tools: tuple[ToolSpec, ...] = ()
        self._detector_runner = config.build_detector_runner(meta)
        self._step_timer = StepTimer()
        if len(self.recorder):
            self._rerun_detectors()
        self.ledger.replay(self.run.steps)

    @property
    def run(self) -> Trajectory:
        """The run as recorded so far, with its abandoned branches."""
        return self.recorder.trajectory

    def __len__(self) -> int:
        """Return the number of steps on the current branch."""
        return len(self.recorder)

    @property
    def pending_messages(self) -> tuple[str, ...]:
        """Messages to the agent since the last step, sent or still to be sent."""
        return tuple(self._pending_messages)

    def _queue_trigger(self, trigger: Finding | None) -> None:
        """Keep the most probable finding for the next boundary.

        A boundary handles one finding only, since its recovery may make the others obsolete.
        """
        if trigger is not None and (
            self._pending_trigger is None or trigger.probability > self._pending_trigger.probability
        ):
            self._pending_trigger = trigger

    def _build_plan(self, trigger: Finding) -> RecoveryPlan | None:
        run = self.run
        return self._select_plan(self._diagnose(run, trigger), run, trigger.detector, is_committed=True)

    def _select_plan(
        self,
        diagnosis: Diagnosis,
        run: Trajectory,
        trigger: str,
        *,
        is_committed: bool,
        trigger_probability: float | None = None,
    ) -> RecoveryPlan | None:
        diagnosis = self._apply_schema_feedback(run, diagnosis, rerank=False)
        situation = RecoveryContext(
            run=run,
            diagnosis=diagnosis,
            capabilities=self.capabilities,
            account=self.account,
            ledger=self.ledger,
            past_recoveries=tuple(self.recoveries),
            is_committed=is_committed,
            repair_function=self.config.repair_function,
            restorable_steps=None if self.restorable_steps is None else self.restorable_steps(),
        )
        plan = self.config.planner.plan(situation, trigger, trigger_probability=trigger_probability).plan
        spoke = () if plan is None else diagnosis.hypotheses[plan.hypothesis].schemata
        return replace(plan, schemata=spoke) if plan is not None and spoke else plan

    def _diagnose(self, run: Trajectory, trigger: Finding) -> Diagnosis:
        """Diagnose the run: combine the finding with the localizer's hypotheses, in the order to try them."""
        ranked: tuple[Hypothesis, ...] = ()
        if self.config.localizer is not None:
            located = self.config.localizer.locate(run, self.findings)
            ranked = self._apply_schema_feedback(run, located, rerank=True).hypotheses
        return build_live_diagnosis(
            run.id, rank_candidates(trigger, ranked, self.recoveries, run.steps), self.findings
        )

    def _apply_schema_feedback(self, run: Trajectory, diagnosis: Diagnosis, *, rerank: bool) -> Diagnosis:
        credit = self.config.annotate_diagnosis
        if credit is None:
            return diagnosis
        said: Diagnosis | None = self._run_safely(
            lambda: credit(run, diagnosis, self.findings, rerank=rerank)
        )
        return said or diagnosis

    def _apply_messages(self, plan: RecoveryPlan) -> None:
        for action in plan.actions:
            if isinstance(action, Stop):
                self.stop_reason = action.reason
            elif isinstance(action, SendMessage):
                self._pending_messages.append(action.text)

    def _record_recovery(
        self,
        plan: RecoveryPlan,
        trigger: str,
        *,
        discarded_steps: tuple[Step, ...],
        outcome: RecoveryOutcome = RecoveryOutcome.PENDING,
        cost: Mapping[str, float] | None = None,
    ) -> None:
        """Record the recovery and charge the cost of the steps that it discards."""
        spent = [step.usage for step in discarded_steps if step.usage is not None]
        tokens = sum((usage.prompt_tokens or 0) + (usage.completion_tokens or 0) for usage in spent)
        calls = sum(step.source is Source.AGENT for step in discarded_steps)
        seconds = self._step_timer.discard_steps(discarded_steps)
        self.account.charge(tokens=tokens, calls=calls, seconds=seconds)
        lost = {
            "steps": float(len(discarded_steps)),
            "tokens": float(tokens),
            "calls": float(calls),
            "seconds": seconds,
        }
        recovery = Recovery(
            run=self.id,
            id=self.recoveries[-1].id + 1 if self.recoveries else 0,
            plan=plan,
            trigger=trigger or DIAGNOSIS_TRIGGER,
            at_step=len(self) + (1 if plan.tier is RecoveryTier.REJECT and plan.undone else 0),
            outcome=outcome,
            cost={**lost, **(cost or {})},
            schemata=plan.schemata,
            spent=self.account.usage,
        )
        self.recoveries.append(recovery)
        self._notify_observers(recovery)

    def _update_outcomes(self, *, accepted: bool | None = None, is_final: bool = False) -> None:
        for place, recovery in enumerate(self.recoveries):
            if recovery.outcome is not RecoveryOutcome.PENDING:
                continue
            steps = recovery.at_step + self.config.verification.window if is_final else len(self)
            outcome = self.config.verification.determine_outcome(
                recovery, self.findings, branch_length=steps, is_accepted=accepted
            )
            if outcome is not RecoveryOutcome.PENDING:
                self.recoveries[place] = replace(recovery, outcome=outcome, spent=self.account.usage)
                self._notify_observers(self.recoveries[place])

    def _notify_observers(self, recovery: Recovery) -> None:
        for observer in self.config.observers:
            self._run_safely(lambda observer=observer: observer(recovery))  # type: ignore[misc]

    def _rerun_detectors(self) -> None:
        """Run new detectors over the current branch and replace the findings."""
        run = self.run
        tools = (*run.tools, *self._added_tools)
        self._detector_runner = self.config.build_detector_runner(
            replace(run, steps=(), branches=(), tools=tools)
        )
        self.findings = []
        for step in run.steps:
            self.findings += self._run_safely(lambda step=step: self._detector_runner.observe(step)) or ()  # type: ignore[misc]

    def _run_safely(self, operation: Callable[[], Any]) -> Any:
        """Run a part of the guard; if it raises, record the failure and, if fail-closed, stop the run."""
        try:
            return operation()
        except Exception as error:  # detectors, localizers, acceptance tests and observers may raise anything
            failure = DetectorFailure(detector="guard", step=len(self), error=type(error).__name__)
            self.failures.append(failure)
            if self.config.on_guard_error == "fail_closed" and self.stop_reason is None:
                self.stop_reason = f"a part of the guard failed with {type(error).__name__}"
            return None

    def _acquire_timed(self) -> _TimedLock:
        return _TimedLock(self)


class _TimedLock:
    """Context manager that holds the lock of a run's state and adds the time to its overhead."""

    __slots__ = ("_start_time", "_state", "_unit_of_work")

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._start_time = 0.0
        self._unit_of_work = state.unit_of_work() if state.unit_of_work is not None else None

    def __enter__(self) -> None:
        self._state._lock.acquire()
        self._start_time = time.perf_counter()
        if self._unit_of_work is not None:
            self._unit_of_work.__enter__()

    def __exit__(self, *_: object) -> None:
        if self._unit_of_work is not None:
            self._unit_of_work.__exit__(None, None, None)
        self._state.overhead_s += time.perf_counter() - self._start_time
        self._state._lock.release()
