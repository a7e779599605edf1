"""Localizer ``fused``: the embedded ranker and a judge, weighted by their measured accuracy.

The embedded model uses the structure of a run, without model calls; a judge understands the text. Together,
they are right far more often than either alone. But a weak judge degrades a good ranker, so
`FusedLocalizer.fit` learns the judge's weight out of fold from annotated runs of the user.

- The judge's answer about a step gives three signals (`JUDGE_SIGNALS`): its log-probability, its rank, and
  whether it ranks first.
- The judge receives both questions, whether the run failed and which step caused it, in one call with one
  deadline.
- If the judge does not answer, the verdict is that of the embedded model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from agentguard.detect.base import Finding
from agentguard.detect.detection import detect
from agentguard.errors import ConfigError, JudgeError
from agentguard.judge.base import RUN_FAILED, ChoiceQuestion, Judge, Question, close_judge
from agentguard.judge.llm.types import LABELS
from agentguard.localize.base import BaseLocalizer, Diagnosis
from agentguard.localize.embedded import DEFAULT_RISK, EmbeddedLocalizer
from agentguard.localize.llm import structured_turns
from agentguard.localize.llm.base import QuerySession, pop_judge, select_verdict
from agentguard.options import reject_unknown_options
from agentguard.trajectory.model import Record, Trajectory
from agentguard.verdict import Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

JUDGE_SIGNALS: Final = ("log-probability", "place in the order", "first")
"""Signals of a judge's answer, one column each; see `compute_columns`."""

DEFAULT_WEIGHTS: Final = (0.1, 0.3, 0.15)
"""Weights of the signals before `FusedLocalizer.fit`: the rounded mean of the weights learnt with
recorded judges of known quality (docs/judged-localizers.md)."""

_MIN_PROBABILITY: Final = 0.05
_RIDGE: Final = 3.0
"""Ridge penalty of the weights; chosen together with the columns, over all recorded judges at once."""


class FusedLocalizer(BaseLocalizer):
    """Localizer that ranks steps by a trained model and a judge.

    Args:
        model: folder of a model file and its card; None selects the packaged model.
        weight: factor from 0 to 10 on `DEFAULT_WEIGHTS`; no effect after `fit`.
        risk, seed, given_failed: as for ``embedded``.
        options: those of `pop_judge`.

    Raises:
        ConfigError: an option is unknown or out of range, or no judge is named.
        ModelFileError: as for ``embedded``.
    """

    name = "fused"

    def __init__(
        self,
        *,
        model: str | None = None,
        weight: float = 1.0,
        risk: float = DEFAULT_RISK,
        given_failed: bool = False,
        **options: Any,
    ) -> None:
        seed = options.pop("seed", 0)
        self.judge: Judge = pop_judge(self.name, options)
        reject_unknown_options("localizer", self.name, options)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 10:
            raise ConfigError(f"localizer 'fused': weight is {weight!r}, expected a number from 0 to 10")
        self.weight, self.seed, self.given_failed = float(weight), int(seed), bool(given_failed)
        self._embedded = EmbeddedLocalizer(
            model=model, risk=risk, seed=self.seed, given_failed=self.given_failed
        )

    def fit(self, records: Sequence[Record]) -> FusedLocalizer:
        """Train the ranker and learn the judge's weight; asks the judge about every run."""
        from agentguard.judge.embedded.training import build_untrained_model, train_model

        def build_signals(record: Record) -> NDArray[Any]:
            run = record.trajectory
            return self.compute_signal(QuerySession(self.judge), run, detect(run).findings)

        try:
            model = train_model(records, seed=self.seed, signals=build_signals, ridge=_RIDGE)
        except JudgeError:
            model = build_untrained_model()
        fitted = type(self).__new__(type(self))
        fitted.__dict__.update(self.__dict__)
        fitted._embedded = EmbeddedLocalizer.from_model(
            model, risk=self._embedded.risk, seed=self.seed, given_failed=self.given_failed
        )
        return fitted

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Diagnose a run; if the judge does not answer, use the embedded model alone and add a note."""
        if not trajectory.steps:
            return replace(self._embedded.locate(trajectory, findings), method=self.name)
        session = QuerySession(self.judge)
        failed, signals = self._query_judge(session, trajectory, findings, ask_outcome=not self.given_failed)
        model = self._embedded.model.with_signal_weights([weight * self.weight for weight in DEFAULT_WEIGHTS])
        judgement = model.judge(trajectory, findings, risk=self._embedded.risk, signals=signals)
        diagnosis = self._embedded.build_diagnosis(trajectory, judgement, findings)
        if failed is not None and not judgement.is_known_outcome:
            diagnosis = _combine_outcomes(
                diagnosis,
                self._embedded.build_diagnosis(
                    trajectory, replace(judgement, failure_probability=1.0), findings
                ),
                failed,
                findings,
            )
        return replace(
            diagnosis,
            method=self.name,
            usage=session.usage,
            judge=session.judge_version,
            failures=(*diagnosis.failures, *session.failures),
            notes=(
                *diagnosis.notes,
                *_build_missing_answer_notes(failed, signals, outcome_requested=not self.given_failed),
            ),
        )

    @property
    def immediate_localizer(self) -> EmbeddedLocalizer:
        """The embedded model alone, for a run in progress, so that no call waits for a judge."""
        return self._embedded

    def close(self) -> None:
        """Close the judge."""
        close_judge(self.judge)

    def compute_signal(
        self, session: QuerySession, run: Trajectory, findings: Sequence[Finding]
    ) -> NDArray[Any]:
        """Compute the judge's signals of each candidate step; all 0 if the judge could not answer.

        Shape (candidates, 3), rows as in `agentguard.judge.embedded.features.table.build_step_table`.
        """
        import numpy as np

        signals = self._query_judge(session, run, findings, ask_outcome=False)[1]
        return np.zeros((len(_list_candidate_steps(run)), len(JUDGE_SIGNALS))) if signals is None else signals

    def _query_judge(
        self, session: QuerySession, run: Trajectory, findings: Sequence[Finding], *, ask_outcome: bool
    ) -> tuple[float | None, NDArray[Any] | None]:
        """Return the failure probability, if requested, and the signals; None for each missing answer."""
        import numpy as np

        steps = _list_candidate_steps(run)
        questions: list[Question] = [RUN_FAILED] if ask_outcome else []
        if steps:
            questions.append(_build_question(run, steps, findings))
        answers = list(session.ask(run, questions))
        first = answers.pop(0) if ask_outcome else None
        failed = None if first is None or first.error is not None else first.probabilities["yes"]
        if not answers or answers[0].error is not None:
            return failed, None
        step_probabilities = _assign_to_steps(run, steps, answers[0].probabilities)
        return failed, np.array(compute_columns(step_probabilities, steps), dtype=np.float64).reshape(
            len(steps), len(JUDGE_SIGNALS)
        )


def compute_columns(
    probabilities: Mapping[int, float], steps: Sequence[int]
) -> list[tuple[float, float, float]]:
    """Compute the `JUDGE_SIGNALS` of the steps: log p, -log(1 + rank), and 1 for the first rank.

    Probabilities below 0.05 are raised to it, since an answer of a judge cannot exclude a step. Ranks start
    at 0; steps of equal probability share the mean of their ranks.
    """
    step_probabilities = [probabilities.get(step, 0.0) for step in steps]
    ranks = [
        sum(q > p for q in step_probabilities) + (sum(q == p for q in step_probabilities) - 1) / 2
        for p in step_probabilities
    ]
    return [
        (math.log(max(_MIN_PROBABILITY, p)), -math.log1p(rank), float(rank == 0))
        for p, rank in zip(step_probabilities, ranks, strict=True)
    ]


def _list_candidate_steps(run: Trajectory) -> tuple[int, ...]:
    from agentguard.judge.embedded.features.table import build_step_table

    return build_step_table(run).steps


def _build_question(run: Trajectory, steps: Sequence[int], findings: Sequence[Finding]) -> ChoiceQuestion:
    """Build the question for the step, or for the turn if there are more steps than labels."""
    turns = structured_turns.select_candidate_turns(run)
    by_turn = structured_turns.build_turn_question(run, turns, findings)
    if len(steps) > len(LABELS):
        return by_turn
    text = by_turn.text.replace("turn", "step")
    return replace(by_turn, id="root_cause_step", text=text, options=tuple(f"step {step}" for step in steps))


def _assign_to_steps(
    run: Trajectory, steps: Sequence[int], probabilities: Mapping[str, float]
) -> Mapping[int, float]:
    if len(steps) > len(LABELS):
        return structured_turns.distribute_to_steps(
            structured_turns.select_candidate_turns(run), probabilities
        )
    return {step: probabilities.get(f"step {step}", 0.0) for step in steps}


def _build_missing_answer_notes(
    failed: float | None, signals: object, *, outcome_requested: bool
) -> tuple[str, ...]:
    """Return notes for the user about missing answers of the judge."""
    if signals is None and (failed is None or not outcome_requested):
        return ("the judge did not answer; the diagnosis is that of the embedded model",)
    if signals is None:
        return ("the judge did not name a step; the ranking is that of the embedded model",)
    if failed is None and outcome_requested:
        return ("the judge did not decide the outcome; the outcome is that of the embedded model",)
    return ()


def _combine_outcomes(
    diagnosis: Diagnosis, ranked: Diagnosis, failed: float, findings: Sequence[Finding]
) -> Diagnosis:
    """Return the diagnosis with the mean of the log-odds of model and judge as its outcome.

    Args:
        diagnosis: diagnosis of the model.
        ranked: diagnosis of the model with hypotheses, whatever its verdict.
        failed: probability of the judge that the run failed.
        findings: findings of the detectors.
    """
    together = _sigmoid(0.5 * (_log_odds(diagnosis.probability) + _log_odds(failed)))
    verdict, note = select_verdict(together, findings)
    hypotheses = () if verdict is Verdict.NO_FAILURE_FOUND else ranked.hypotheses
    return replace(
        diagnosis,
        verdict=verdict,
        probability=together,
        hypotheses=hypotheses,
        notes=(*diagnosis.notes, *note),
    )


def _log_odds(probability: float) -> float:
    clipped = min(1 - 1e-6, max(1e-6, probability))
    return math.log(clipped / (1 - clipped))


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))
