"""Live judge: it classifies new steps of a running agent in the background, by default without a delay.

- A committed turn of the agent is queued; a worker thread asks the judge about it. If the judge is slower
  than the agent, it skips to the newest turn.
- The answer arrives at a later boundary as a finding. The guard drops a finding about a rolled back step.
- One judge alone leads to a hint only (`SINGLE_JUDGE_ESCALATION`). Two judges that agree follow the policy's
  escalation. So no model alone changes an action with effects.
- With ``hold_effects``, a call with effects waits for two judges for at most ``hold_s`` seconds. They must
  agree to refuse it; without an answer in time, it runs.
- Each run has a limit of tokens and of cost. After that, the guard asks no further question
  about this run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from agentguard.detect.base import DetectorFailure, Finding
from agentguard.errors import ConfigError
from agentguard.judge.base import Judge, Predicate, build_root_cause_question, close_judge
from agentguard.judge.ensemble.unanimous import UnanimousJudge
from agentguard.localize.llm.base import QuerySession
from agentguard.runtime.background_queue import BackgroundQueue
from agentguard.trajectory.event_log.recorder import RunRecorder
from agentguard.trajectory.model import Source, Step, Trajectory

LIVE_JUDGE_TRIGGER: Final = "judge"
"""Detector name of the findings, and name of their escalation policy."""

OUTCOME_MODEL_TRIGGER: Final = "outcome_model"
"""Detector name of the findings of the embedded outcome model."""

STEP_MODEL_TRIGGER: Final = "step_model"
"""Detector name of the findings of the embedded step model."""

_MESSAGES: Final = {
    OUTCOME_MODEL_TRIGGER: "most runs with similar steps have failed",
    STEP_MODEL_TRIGGER: "this step resembles mistakes in failed runs",
}

SINGLE_JUDGE_ESCALATION: Final = "hint"

STEP_FAILED: Final = Predicate(
    id="step_failed",
    text="Is the last step of this unfinished run a mistake that makes the run fail unless it is corrected?",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJudgeOptions:
    """Limits of a live judge.

    Attributes:
        threshold: probability from which an answer becomes a finding that starts a recovery.
        step_threshold: probability from which the most likely root cause becomes a finding; None for no such
            finding. It is the probability of a failure times that of the step in a failed run.
        max_pending: waiting questions of all runs; a further one replaces the oldest.
        max_tokens: prompt and completion tokens for one run.
        max_cost_usd: cost for one run in US dollars, of a judge with a price; None for no limit.
        hold_effects: hold calls with effects until two judges have answered.
        hold_s: longest wait for them in seconds.
    """

    threshold: float = 0.9
    step_threshold: float | None = None
    max_pending: int = 32
    max_tokens: int = 200_000
    max_cost_usd: float | None = None
    hold_effects: bool = False
    hold_s: float = 5.0


class LiveJudge:
    """Background classification of steps with one judge, or with two that must agree; serves many runs.

    Args:
        judge: the judge.
        second_judge: another judge that must agree.
        options: limits.
        question: yes-or-no question about the run so far; a probable yes is a finding on its last step.
        trigger: detector name of the findings.

    Raises:
        ConfigError: ``hold_effects`` is set without a second judge.
    """

    def __init__(
        self,
        judge: Judge,
        *,
        second_judge: Judge | None = None,
        options: LiveJudgeOptions | None = None,
        question: Predicate = STEP_FAILED,
        trigger: str = LIVE_JUDGE_TRIGGER,
    ) -> None:
        self.question, self.trigger = question, trigger
        self.judge: Judge = judge if second_judge is None else UnanimousJudge((judge, second_judge))
        self.is_single = second_judge is None
        self.options = options or LiveJudgeOptions()
        if self.options.hold_effects and self.is_single:
            raise ConfigError("judge.live.hold_effects needs two judges: set judge.second")
        self.queue = BackgroundQueue("agentguard-live-judge", max_jobs=self.options.max_pending)

    @property
    def triggers(self) -> tuple[str, ...]:
        """Detector names of the findings."""
        return (self.trigger,) if self.options.step_threshold is None else (self.trigger, STEP_MODEL_TRIGGER)

    def open_run(self, recorder: RunRecorder) -> LiveRun:
        """Return the classification of the steps of one run."""
        return LiveRun(self, recorder)

    def close(self) -> None:
        """Discard the waiting questions and close the judges."""
        self.queue.clear()
        close_judge(self.judge)


class LiveRun:
    """Classification of the steps of one run.

    Args:
        live_judge: judge and limits.
        recorder: recorder of the run's steps.

    Attributes:
        usage: cost of all questions so far; see `agentguard.localize.base.Diagnosis.usage`.
    """

    def __init__(self, live_judge: LiveJudge, recorder: RunRecorder) -> None:
        self._live_judge, self._recorder = live_judge, recorder
        self._session = QuerySession(live_judge.judge)
        self._findings: deque[tuple[Step, Finding]] = deque()
        self._latest: Step | None = None
        self._reported_steps: list[Step] = []
        self.usage = self._session.usage

    @property
    def failures(self) -> Sequence[DetectorFailure]:
        """Errors of the judge."""
        return self._session.failures

    def submit(self, step: Step) -> None:
        """Queue a committed step of the agent; takes microseconds."""
        if step.source is Source.AGENT and self._has_budget():
            self._latest = step
            self._live_judge.queue.put(partial(self._classify, step))

    def take_findings(self, steps: Sequence[Step]) -> list[Finding]:
        """Remove and return the findings about steps of the current branch."""
        findings: list[Finding] = []
        while self._findings:
            step, finding = self._findings.popleft()
            if step.index < len(steps) and steps[step.index] is step:
                findings.append(finding)
        return findings

    @property
    def holds_effects(self) -> bool:
        """Return whether calls with effects wait for the judges."""
        return self._live_judge.options.hold_effects and self._has_budget()

    def classify_proposal(self, run: Trajectory, turn: Step) -> Finding | None:
        """Return the finding on a turn whose tools have not run; None if there is no finding in ``hold_s``.

        Args:
            run: the run so far.
            turn: the proposed turn with its index.
        """
        answers: deque[Finding | None] = deque()
        is_answered = threading.Event()

        def ask() -> None:
            try:
                answers.append(self._ask(replace(run, steps=(*run.steps, turn)), turn))
            finally:
                is_answered.set()

        # The queue also has the questions of other runs, for which the agent must not wait.
        threading.Thread(target=ask, name="agentguard-held-call", daemon=True).start()
        is_answered.wait(self._live_judge.options.hold_s)
        return answers[0] if answers else None

    @property
    def has_findings(self) -> bool:
        """Return whether there are findings that no boundary has taken."""
        return bool(self._findings)

    def _has_budget(self) -> bool:
        options = self._live_judge.options
        tokens = self.usage["prompt_tokens"] + self.usage["completion_tokens"]
        is_paid = options.max_cost_usd is None or self.usage.get("cost_usd", 0.0) < options.max_cost_usd
        return tokens < options.max_tokens and is_paid

    def _classify(self, step: Step) -> None:
        if step is not self._latest or not self._has_budget():
            return
        run = self._recorder.trajectory
        if step.index >= len(run.steps) or run.steps[step.index] is not step:
            return
        finding = self._ask(run, step)
        if finding is not None:
            self._findings.append((run.steps[finding.step], finding))

    def _ask(self, run: Trajectory, step: Step) -> Finding | None:
        """Return the finding on the most likely root cause of a run, or else on its last step."""
        probability = self._session.ask_yes_no(run, self._live_judge.question)
        if probability is None:
            return None
        finding = self._find_faulty_step(run, probability)
        if finding is not None or probability < self._live_judge.options.threshold:
            return finding
        return _build_finding(step, probability, self._live_judge.trigger)

    def _find_faulty_step(self, run: Trajectory, failure_probability: float) -> Finding | None:
        """Return the finding on the most likely root cause, unless that step has already had one."""
        threshold = self._live_judge.options.step_threshold
        if threshold is None or failure_probability < threshold:
            return None
        probabilities = self._session.ask_choice(run, build_root_cause_question(run))
        if not probabilities:
            return None
        likeliest = max(probabilities, key=lambda option: probabilities[option])
        step, probability = run.steps[int(likeliest)], failure_probability * probabilities[likeliest]
        if probability < threshold or any(one is step for one in self._reported_steps):
            return None
        self._reported_steps.append(step)
        return _build_finding(step, probability, STEP_MODEL_TRIGGER)


def _build_finding(step: Step, probability: float, trigger: str) -> Finding:
    return Finding(
        detector=trigger,
        step=step.index,
        codes=("fault_model:degraded_accuracy",),
        probability=probability,
        message=_MESSAGES.get(trigger, "a judge considers this step a mistake"),
    )
