"""Base of the localizers that ask a judge: outcome question, ranking and cost.

A method only ranks the steps; everything else is shared, so that methods can be compared on one judge. The
judge cannot overrule a detector: if it sees no failure, but a finding has a probability of 0.9 or more, the
run is undecided.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import ValidationError

from agentguard.config.judge import EndpointSettings
from agentguard.config.policy import format_validation_error
from agentguard.detect.base import DetectorFailure, Finding
from agentguard.errors import ConfigError
from agentguard.judge.base import (
    RUN_FAILED,
    USAGE_KEYS,
    ChoiceQuestion,
    Judge,
    JudgeAnswer,
    Predicate,
    Question,
    VersionedJudge,
    add_usage,
    close_judge,
)
from agentguard.judge.ensemble.panel import ask_judges
from agentguard.localize.base import BaseLocalizer, Diagnosis, Hypothesis
from agentguard.localize.diagnosis_builder import MAX_HYPOTHESES
from agentguard.options import reject_unknown_options
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import Verdict

if TYPE_CHECKING:
    from agentguard.judge.llm.chat_judge import SchemaSource


class QuerySession:
    """Questions of one diagnosis to a judge; thread-safe.

    Attributes:
        usage: cost of all answers; see `Diagnosis.usage`.
        judge_version: version of the judge; empty if the judge answered no question or has no version.
        failures: questions without an answer, one entry for each kind of error.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.usage: dict[str, float] = dict.fromkeys(USAGE_KEYS, 0.0)
        self._lock = threading.Lock()
        self.judge_version = ""
        self._faults: dict[str, str] = {}

    @property
    def failures(self) -> tuple[DetectorFailure, ...]:
        """The judge's errors, for a diagnosis."""
        return tuple(
            DetectorFailure(detector=f"judge {self.judge.name}", step=None, error=fault)
            for fault in self._faults.values()
        )

    def ask(self, run: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Ask the judge; return the answers in order. Errors and exceptions of the judge are recorded."""
        answers = ask_judges((self.judge,), run, tuple(questions))[0] if questions else ()
        for answer in answers:
            self.add_usage(answer.usage)
            if answer.error is not None:
                self._faults.setdefault(str(answer.usage.get("fault") or answer.error), answer.error)
        if isinstance(self.judge, VersionedJudge) and any(answer.error is None for answer in answers):
            self.judge_version = self.judge.version(run)
        return tuple(answers)

    def add_usage(self, usage: Mapping[str, object]) -> None:
        """Add the cost of a call."""
        with self._lock:
            add_usage(self.usage, usage)

    def ask_yes_no(self, run: Trajectory, question: Predicate) -> float | None:
        """Return the probability of yes; None if the judge could not answer."""
        answer = self.ask(run, (question,))[0]
        return None if answer.error is not None else answer.probabilities["yes"]

    def ask_choice(self, run: Trajectory, question: ChoiceQuestion) -> Mapping[str, float] | None:
        """Return the probability of each option; None if the judge could not answer."""
        answer = self.ask(run, (question,))[0]
        return None if answer.error is not None else answer.probabilities


_TRANSCRIPT_METHODS: Final = (
    "all_at_once",
    "step_by_step",
    "binary_search",
    "structured",
    "constraints",
    "two_stage",
)
JUDGE_METHODS: Final = frozenset((*_TRANSCRIPT_METHODS, "schema", "fused"))
"""Localizers that ask the policy's judge unless their own options name one."""

_ENDPOINT_OPTIONS: Final = tuple(EndpointSettings.model_fields)


def pop_judge(method: str, options: dict[str, Any], *, schemata: SchemaSource = ()) -> Judge:
    """Remove the judge's options from a localizer's options and build the judge.

    Args:
        method: name of the localizer, for messages.
        options: either ``judge``, a judge; or ``base_url`` of an OpenAI-compatible endpoint, or ``replicas``
            (several of them) and ``pool`` (`agentguard.config.judge.EndpointSettings`), with ``model``,
            ``api_key_env`` (the environment variable with the key), ``deadline_s``, ``context_tokens``. With
            ``swap``, the judge answers each question in both orders of its options.
        schemata: texts of earlier failures to show after a run; only for a judge that is built here.

    Raises:
        ConfigError: no judge is given, or an option is invalid.
        MissingExtra: the openai package is not installed.
    """
    judge, swap = options.pop("judge", None), bool(options.pop("swap", False))
    endpoint_options = {
        name: options.pop(name) for name in _ENDPOINT_OPTIONS if options.get(name) is not None
    }
    if judge is None:
        judge = _build_chat_judge(method, endpoint_options, schemata)
    elif not hasattr(judge, "decide"):
        raise ConfigError(f"localizer {method!r}: the judge has no decide()")
    return _ask_in_both_orders(judge) if swap else cast(Judge, judge)


def _ask_in_both_orders(judge: Judge) -> Judge:
    from agentguard.judge.ensemble.question_variants import BothOrdersJudge

    return BothOrdersJudge(judge)


def _build_chat_judge(method: str, options: dict[str, Any], schemata: SchemaSource) -> Judge:
    from agentguard.judge.factory import build_judge

    if not isinstance(options.get("base_url"), str) and not options.get("replicas"):
        raise ConfigError(
            f"localizer {method!r} needs a judge: set base_url of an OpenAI-compatible endpoint, e.g. "
            f"{{name: {method}, base_url: http://127.0.0.1:8000/v1}}, or the section judge of the policy"
        )
    try:
        settings = EndpointSettings.model_validate(options)
    except ValidationError as error:
        raise ConfigError(
            f"localizer {method!r}: {format_validation_error(error, EndpointSettings)}"
        ) from None
    return build_judge(settings, schemata=schemata)


CERTAIN_FINDING_THRESHOLD: Final = 0.9
"""Probability of a finding from which a run is undecided although the judge sees no failure."""

UNDECIDED_MARGIN: Final = 0.1
"""Minimum distance of the failure probability from 0.5 for a verdict."""

_MIN_PROBABILITY: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRanking:
    """Result of a method.

    Attributes:
        probabilities: p(step) by step index.
        details: step index to further fields of its `Hypothesis`.
        notes: notes of the diagnosis.
    """

    probabilities: Mapping[int, float] = field(default_factory=dict)
    details: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


QueryFunction = Callable[[QuerySession, Trajectory, Sequence[Finding]], StepRanking]
"""Function that asks a judge about a run with at least one step.

It returns an empty ranking if a question has no answer.
"""


class LlmLocalizer(BaseLocalizer):
    """Localizer that ranks steps by a judge's answers.

    Args:
        name: name in the registry.
        query: function that asks the questions of the method.
        judge: the judge.
        given_failed: assume that every run failed, without a question.
    """

    def __init__(self, name: str, query: QueryFunction, judge: Judge, *, given_failed: bool = False) -> None:
        self.name, self.judge, self.given_failed = name, judge, given_failed
        self._query = query

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Diagnose a run; undecided, with the error in ``failures``, if the judge cannot answer."""
        session = QuerySession(self.judge)
        if not trajectory.steps:
            return self._build_diagnosis(
                trajectory, session, None, StepRanking(notes=("the run has no step",)), ()
            )
        failed = 1.0 if self.given_failed else session.ask_yes_no(trajectory, RUN_FAILED)
        ranking = StepRanking() if failed is None else self._query(session, trajectory, findings)
        return self._build_diagnosis(trajectory, session, failed, ranking, findings)

    def close(self) -> None:
        """Close the judge."""
        close_judge(self.judge)

    def _build_diagnosis(
        self,
        run: Trajectory,
        session: QuerySession,
        failure_probability: float | None,
        ranking: StepRanking,
        findings: Sequence[Finding],
    ) -> Diagnosis:
        verdict, note = select_verdict(failure_probability, findings, has_ranking=bool(ranking.probabilities))
        return Diagnosis(
            trajectory_id=run.id,
            method=self.name,
            verdict=verdict,
            probability=0.5 if failure_probability is None else failure_probability,
            hypotheses=() if verdict is Verdict.NO_FAILURE_FOUND else _build_hypotheses(run, ranking),
            failures=session.failures,
            usage=session.usage,
            judge=session.judge_version,
            notes=(*note, *ranking.notes),
        )


def build_llm_localizer(name: str, query: QueryFunction, options: dict[str, Any]) -> LlmLocalizer:
    """Build a localizer from a policy's options: those of `pop_judge`, and ``given_failed``.

    Raises:
        ConfigError: an option is unknown or out of range, or no judge is named.
    """
    given_failed = bool(options.pop("given_failed", False))
    judge = pop_judge(name, options)
    reject_unknown_options("localizer", name, options)
    return LlmLocalizer(name, query, judge, given_failed=given_failed)


def select_verdict(
    failure_probability: float | None, findings: Sequence[Finding], *, has_ranking: bool = True
) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict from the judge's answer, and a note on an undecided verdict.

    Args:
        failure_probability: probability that the run failed; None if the judge could not answer.
        findings: findings of the rules.
        has_ranking: whether there is a ranking of the steps.
    """
    if failure_probability is None or (failure_probability >= 0.5 - UNDECIDED_MARGIN and not has_ranking):
        return Verdict.UNDECIDED, ("the judge could not answer",)
    if abs(failure_probability - 0.5) < UNDECIDED_MARGIN:
        return Verdict.UNDECIDED, ("the judge is not certain enough for a verdict",)
    if failure_probability > 0.5:
        return Verdict.FAILED, ()
    finding = next(
        (candidate for candidate in findings if candidate.probability >= CERTAIN_FINDING_THRESHOLD), None
    )
    if finding is not None:
        note = f"the judge sees no failure, but {finding.detector} is certain of one at step {finding.step}"
        return Verdict.UNDECIDED, (note,)
    return Verdict.NO_FAILURE_FOUND, ()


def _build_hypotheses(run: Trajectory, ranking: StepRanking) -> tuple[Hypothesis, ...]:
    order = sorted(ranking.probabilities, key=lambda step: (-ranking.probabilities[step], step))[
        :MAX_HYPOTHESES
    ]
    steps = [
        step for rank, step in enumerate(order) if rank < 3 or ranking.probabilities[step] >= _MIN_PROBABILITY
    ]
    return tuple(
        Hypothesis(
            step=step,
            agent=run.steps[step].agent,
            probability=min(1.0, max(0.0, ranking.probabilities[step])),
            **ranking.details.get(step, {}),
        )
        for step in steps
    )
