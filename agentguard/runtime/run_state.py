"""State of a guarded run: its steps, findings and recoveries.

`agentguard.runtime.session.Session` adds the events. The parts of a session (`PendingTurn`,
`ReadRetry`, `live_diagnosis`, `run_end`, `plan_application`) take this state as a parameter and keep no
reference to it. A reference cycle would keep a finished run in memory until the garbage collector runs.

The caller holds the lock (`RunState.acquire_lock`) around the methods that change the state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, ParamSpec, TypeVar

from agentguard.detect.base import DetectorFailure, Finding, most_severe
from agentguard.detect.runner import IncrementalRunner
from agentguard.judge.response_safety import SafetyAssessment
from agentguard.recover.actions import SendMessage, Stop
from agentguard.recover.budget import BudgetAccount
from agentguard.recover.call_repair import annotate_step
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.recover.escalation_planner import DIAGNOSIS_TRIGGER
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryPlan, RecoveryTier
from agentguard.runtime.session_config import SessionConfig
from agentguard.trajectory.costs import price_step
from agentguard.trajectory.event_log.recorder import RunRecorder
from agentguard.trajectory.model import Source, Step, ToolSpec, Trajectory

_MAX_REPLAYED_STEPS: Final = 32
"""Length of a run up to which its detectors are released: a replay takes 60 µs a step."""

_Result = TypeVar("_Result")
_Params = ParamSpec("_Params")


class StepTimer:
    """Timer of the steps of one run. The time of a step includes model calls and tools."""

    def __init__(self) -> None:
        self._durations: list[float] = []
        self._last_event = time.perf_counter()

    def record_step(self, index: int) -> None:
        """Record the end of step ``index``; discard the times of this step and later ones."""
        now = time.perf_counter()
        del self._durations[index:]
        # In a resumed run, the times of the earlier steps are unknown.
        self._durations += [0.0] * (index - len(self._durations))
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
        """Safety assessment of the final message; None without an assessment."""
        self.has_ended = False
        self.has_earlier_turns = False
        """True if the conversation has earlier turns that are not in the run."""
        self.end_triggers: set[str] = set()
        """Triggers of the checks that refused an end of the run; the next end repeats these checks."""
        self.overhead_s = 0.0
        self.unit_of_work: Callable[[], AbstractContextManager[Any]] | None = None
        """Factory of a context manager in which the store gathers the writes of one event into one commit."""
        self.restorable_steps: Callable[[], tuple[int, ...]] | None = None
        """Function that lists the steps whose state a rollback can restore; None if it can restore all."""
        self._lock = threading.RLock()
        self._pending_trigger: Finding | None = None
        self._pending_messages: list[str] = []
        self._added_tools: tuple[ToolSpec, ...] = ()
        self._tool_names = {tool.name for tool in self.run.tools}
        self._detector_runner: IncrementalRunner | None = config.build_detector_runner(meta)
        self.live_run = None if config.live_judge is None else config.live_judge.open_run(self.recorder)
        """Classification of the steps by a judge; None without a live judge."""
        self._step_timer = StepTimer()
        self._turn_started_at: float | None = None
        if len(self.recorder):
            self.replay_detectors()
        self.ledger.add_schemas(meta.tools)
        self.ledger.replay(self.run.steps)

    @property
    def run(self) -> Trajectory:
        """Recorded run so far, with its abandoned branches."""
        return self.recorder.trajectory

    def __len__(self) -> int:
        """Return the number of steps on the current branch."""
        return len(self.recorder)

    @property
    def pending_messages(self) -> tuple[str, ...]:
        """Messages to the agent since the last step, including those that are not sent yet."""
        return tuple(self._pending_messages)

    @property
    def pending_trigger(self) -> Finding | None:
        """Finding that the next boundary handles, if there is one."""
        return self._pending_trigger

    def acquire_lock(self) -> AbstractContextManager[None]:
        """Return a context manager that holds the lock and adds the time to `overhead_s`.

        It is also one `unit_of_work`.
        """
        return _TimedLock(self)

    def run_safely(
        self, operation: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Result | None:
        """Call a part of the guard; if it raises, record the failure and return None.

        With ``on_guard_error="fail_closed"`` the failure also stops the run.
        """
        try:
            return operation(*args, **kwargs)
        except Exception as error:  # detectors, localizers, acceptance tests and observers may raise anything
            failure = DetectorFailure(detector="guard", step=len(self), error=type(error).__name__)
            self.failures.append(failure)
            if self.config.on_guard_error == "fail_closed" and self.stop_reason is None:
                self.stop_reason = f"a part of the guard failed with {type(error).__name__}"
            return None

    def declare_tools(self, tools: Iterable[ToolSpec]) -> None:
        """Declare further tools, so that detectors accept their calls."""
        new = tuple(tool for tool in tools if tool.name not in self._tool_names)
        if new and self._tool_names:  # without recorded tools, detectors accept every tool name
            self._added_tools += new
            self._tool_names |= {tool.name for tool in new}
            self.ledger.add_schemas(new)
            self.replay_detectors()

    def is_unknown_tool(self, tool: str) -> bool:
        """Return whether a tool is not offered; without recorded tools, every name counts as offered."""
        return bool(self._tool_names) and tool not in self._tool_names

    def record_step(self, turn: Step) -> tuple[Step, Sequence[Finding]]:
        """Append a committed turn to the run; return the recorded step and the findings on it.

        Update the outcomes of the recoveries, and queue the most severe finding for the next boundary.
        """
        step = self.recorder.add(price_step(turn, prices) if (prices := self.config.prices) else turn)
        self._step_timer.record_step(step.index)
        found = self._observe(step)
        self.findings += found
        self.update_outcomes()
        self.queue_trigger(most_severe(found, self.config.finding_threshold))
        if self.live_run is not None:
            self.live_run.submit(step)
        return step, found

    def start_turn(self, at: float | None = None) -> None:
        """Set the start of the next turn, by default to now; `stamp_times` uses it."""
        self._turn_started_at = self.config.clock() if at is None else at

    def stamp_times(self, turn: Step) -> Step:
        """Return an agent's turn with its start and end; turns of others, or without a start, as they are."""
        if turn.source is not Source.AGENT or self._turn_started_at is None:
            return turn
        started_at, self._turn_started_at = self._turn_started_at, None
        return turn.with_times(started_at, self.config.clock())

    def check_proposed(self, turn: Step) -> Sequence[Finding]:
        """Return the findings on a turn whose tools have not run; its index is the number of steps."""
        return self.run_safely(self._get_detector_runner().check_proposed, turn) or ()

    def finish_detectors(self) -> Sequence[Finding]:
        """Report the end of the run to the detectors; return their last findings.

        If the run continues, call `replay_detectors`.
        """
        return self.run_safely(self._get_detector_runner().finish) or ()

    def replay_detectors(self) -> None:
        """Run new detectors over the current branch; their findings replace all earlier ones."""
        self._detector_runner = self._build_detector_runner()
        self.findings = []
        for step in self.run.steps:
            self.findings += self._observe(step)

    def release_detectors(self) -> None:
        """Release the detectors of a short run that waits for its next event, which replays the run.

        Detectors have more than half of the memory of such a run. After a failure of a detector they are
        kept, because a replay would not have the failure.
        """
        with self._lock:
            runner = self._detector_runner
            if runner is not None and not runner.failures and len(self) <= _MAX_REPLAYED_STEPS:
                self._detector_runner = None

    def _get_detector_runner(self, length: int | None = None) -> IncrementalRunner:
        """Return the detectors; after a release, new ones that have observed the first ``length`` steps."""
        if self._detector_runner is None:
            self._detector_runner = runner = self._build_detector_runner()
            for step in self.run.steps[:length]:
                runner.observe(step)
        return self._detector_runner

    def _build_detector_runner(self) -> IncrementalRunner:
        tools = (*self.run.tools, *self._added_tools)
        return self.config.build_detector_runner(replace(self.run, steps=(), branches=(), tools=tools))

    def queue_messages(self, texts: Iterable[str]) -> None:
        """Append texts to `pending_messages`."""
        self._pending_messages += texts

    def annotate_messages(self, turn: Step) -> Step:
        """Return the step with the `pending_messages` as an annotation; clear them."""
        messages, self._pending_messages = self._pending_messages, []
        return annotate_step(turn, {"told": messages}) if messages else turn

    def queue_trigger(self, trigger: Finding | None) -> None:
        """Queue a finding for the next boundary, unless a more probable one is queued.

        A boundary handles one finding, since its recovery may make the others obsolete.
        """
        if trigger is not None and (
            self._pending_trigger is None or trigger.probability > self._pending_trigger.probability
        ):
            self._pending_trigger = trigger

    def queue_judge_findings(self) -> None:
        """Add the answers of the live judge to the findings, and queue the most probable one."""
        if self.live_run is not None and self.live_run.has_findings:
            found = self.live_run.take_findings(self.run.steps)
            self.findings += found
            self.queue_trigger(most_severe(found, 0.0))

    def clear_trigger(self) -> None:
        """Discard the `pending_trigger`."""
        self._pending_trigger = None

    def apply_messages(self, plan: RecoveryPlan) -> None:
        """Queue the messages of a plan; set `stop_reason` if the plan stops the run."""
        for action in plan.actions:
            if isinstance(action, Stop):
                self.stop_reason = action.reason
            elif isinstance(action, SendMessage):
                self._pending_messages.append(action.text)

    def record_recovery(
        self,
        plan: RecoveryPlan,
        trigger: str,
        *,
        discarded_steps: tuple[Step, ...],
        outcome: RecoveryOutcome = RecoveryOutcome.PENDING,
        cost: Mapping[str, float] | None = None,
    ) -> None:
        """Record a recovery, charge the cost of the steps that it discards, and notify the observers.

        Args:
            plan: plan of the recovery.
            trigger: name of the detector whose finding triggered it; empty for a diagnosis.
            discarded_steps: steps that the plan discards.
            outcome: outcome, if it is already known.
            cost: further entries of `Recovery.cost`.
        """
        usages = [step.usage for step in discarded_steps if step.usage is not None]
        tokens = sum((usage.prompt_tokens or 0) + (usage.completion_tokens or 0) for usage in usages)
        calls = sum(step.source is Source.AGENT for step in discarded_steps)
        seconds = self._step_timer.discard_steps(discarded_steps)
        self.account.charge(tokens=tokens, calls=calls, seconds=seconds)
        discarded = {
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
            cost={**discarded, **(cost or {})},
            schemata=plan.schemata,
            spent=self.account.usage,
        )
        self.recoveries.append(recovery)
        self._notify_observers(recovery)

    def update_recovery(self, index: int, recovery: Recovery) -> None:
        """Replace the recovery at ``index`` of `recoveries` and notify the observers."""
        self.recoveries[index] = recovery
        self._notify_observers(recovery)

    def update_outcomes(self, *, accepted: bool | None = None, is_final: bool = False) -> None:
        """Determine the outcomes of the pending recoveries from the findings and the steps.

        Args:
            accepted: result of the acceptance test; None without a result.
            is_final: whether the run has ended, so that no further step changes an outcome.
        """
        pending = [
            (index, recovery)
            for index, recovery in enumerate(self.recoveries)
            if recovery.outcome is RecoveryOutcome.PENDING
        ]
        if not pending:
            return
        run = self.run
        for index, recovery in pending:
            is_accepted = accepted
            if is_final and accepted is None and recovery.trigger in self.end_triggers:
                is_accepted = True  # the check that refused an earlier end has passed at this one
            outcome = self.config.verification.determine_outcome(
                recovery, self.findings, run, is_final=is_final, is_accepted=is_accepted
            )
            if outcome is not RecoveryOutcome.PENDING:
                self.update_recovery(index, replace(recovery, outcome=outcome, spent=self.account.usage))

    def _notify_observers(self, recovery: Recovery) -> None:
        for observer in self.config.observers:
            self.run_safely(observer, recovery)

    def _observe(self, step: Step) -> Sequence[Finding]:
        return self.run_safely(self._get_detector_runner(step.index).observe, step) or ()


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
