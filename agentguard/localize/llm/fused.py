"""``fused``: the embedded ranker and a judge, each heard as far as it has shown to be worth.

The embedded model knows structure and costs nothing; a judge understands what is said. Either of the two is
right far more often than one alone, but a weak judge drags a good ranker down: so how much the judge counts
is learnt out of fold from annotated runs of one's own (`FusedLocalizer.fit`). What it says of a step is
heard in
three ways (`JUDGE_SIGNALS`): how likely it holds the step, where the step stands in its order, and whether
it comes
first. Both questions, whether the run failed and which step it was, go to the judge in one call with one
deadline. A judge that is away leaves the embedded model's verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from agentguard.detect.base import Finding
from agentguard.detect.runner import detect
from agentguard.errors import ConfigError, JudgeError
from agentguard.judge.base import RUN_FAILED, ChoiceQuestion, Judge, Question
from agentguard.judge.llm.types import LABELS
from agentguard.localize._ranking import reject_unknown_options
from agentguard.localize.base import Diagnosis, Verdict
from agentguard.localize.embedded import DEFAULT_RISK, EmbeddedLocalizer
from agentguard.localize.llm import structured
from agentguard.localize.llm.base import QuerySession, pop_judge, select_verdict
from agentguard.trajectory.model import Record, Trajectory

if TYPE_CHECKING:
    from numpy.typing import NDArray

JUDGE_SIGNALS: Final = ("log-probability", "place in the order", "first")
"""What is heard of a judge's answer, a column each; see `columns`."""

DEFAULT_WEIGHTS: Final = (0.1, 0.3, 0.15)
"""What they count beside the ranker before `FusedLocalizer.fit` has learnt it: the mean of what was learnt
with
recorded judges of known quality (docs/judged-localizers.md), rounded."""

_MIN_PROBABILITY: Final = 0.05
_RIDGE: Final = 3.0
"""How hard training shrinks the weights. Chosen with the columns, over all recorded judges at once."""


class FusedLocalizer:
    """Ranks steps by a trained model and a judge.

    Args:
        model: folder of a model file and its card; None is the model that ships with agentguard.
        weight: times `WEIGHTS` the judge counts, from 0 to 10, until `fit` learns what it is worth.
        risk, seed, given_failed: as for ``embedded``.
        options: those of `judge_of`.

    Raises:
        ConfigError: an option does not exist or is out of its range, or no judge is named.
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
        reject_unknown_options(self.name, options)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 10:
            raise ConfigError(f"localizer 'fused': weight is {weight!r}, expected a number from 0 to 10")
        self.weight, self.seed, self.given_failed = float(weight), int(seed), bool(given_failed)
        self._embedded = EmbeddedLocalizer(
            model=model, risk=risk, seed=self.seed, given_failed=self.given_failed
        )

    def fit(self, records: Sequence[Record]) -> FusedLocalizer:
        """Train the ranker, and learn what the judge is worth beside it; asks the judge about every run."""
        from agentguard.judge.embedded.training import build_untrained_model, train_model

        def heard(record: Record) -> NDArray[Any]:
            run = record.trajectory
            return self.compute_signal(QuerySession(self.judge), run, detect(run).findings)

        try:
            model = train_model(records, seed=self.seed, signals=heard, ridge=_RIDGE)
        except JudgeError:
            model = build_untrained_model()
        fitted = type(self).__new__(type(self))
        fitted.__dict__.update(self.__dict__)
        fitted._embedded = EmbeddedLocalizer.from_model(model, risk=self._embedded.risk, seed=self.seed)
        fitted._embedded.given_failed = self.given_failed
        return fitted

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Diagnose a run; a judge that is away leaves it to the embedded model, and a note says so."""
        if not trajectory.steps:
            return replace(self._embedded.locate(trajectory, findings), method=self.name)
        asking = QuerySession(self.judge)
        failed, signals = self._query_judge(asking, trajectory, findings, ask_outcome=not self.given_failed)
        model = self._embedded.model.with_signal_weights([weight * self.weight for weight in DEFAULT_WEIGHTS])
        judged = model.judge(trajectory, findings, risk=self._embedded.risk, signals=signals)
        told = self._embedded.build_diagnosis(trajectory, judged, findings)
        if failed is not None and not judged.is_known_outcome:
            told = _combine_outcomes(
                told,
                self._embedded.build_diagnosis(
                    trajectory, replace(judged, failure_probability=1.0), findings
                ),
                failed,
                findings,
            )
        return replace(
            told,
            method=self.name,
            usage=asking.usage,
            failures=(*told.failures, *asking.failures),
            notes=(
                *told.notes,
                *_build_missing_answer_notes(failed, signals, outcome_requested=not self.given_failed),
            ),
        )

    @property
    def immediate_localizer(self) -> EmbeddedLocalizer:
        """The embedded model alone, for a run that is going on: nothing in it waits for a judge."""
        return self._embedded

    def compute_signal(
        self, session: QuerySession, run: Trajectory, findings: Sequence[Finding]
    ) -> NDArray[Any]:
        """What the judge says of each candidate step; all 0 where it could not answer.

        Shape (candidates, 3), rows as in `agentguard.judge.embedded.features.table.build_step_table`.
        """
        import numpy as np

        signals = self._query_judge(session, run, findings, ask_outcome=False)[1]
        return np.zeros((len(_list_candidate_steps(run)), len(JUDGE_SIGNALS))) if signals is None else signals

    def _query_judge(
        self, session: QuerySession, run: Trajectory, findings: Sequence[Finding], *, ask_outcome: bool
    ) -> tuple[float | None, NDArray[Any] | None]:
        """Whether the run failed, if that is asked, and the columns; None for what was not answered."""
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
        said = _assign_to_steps(run, steps, answers[0].probabilities)
        return failed, np.array(compute_columns(said, steps), dtype=np.float64).reshape(
            len(steps), len(JUDGE_SIGNALS)
        )


def compute_columns(
    probabilities: Mapping[int, float], steps: Sequence[int]
) -> list[tuple[float, float, float]]:
    """`JUDGE_SIGNALS` of some steps: log p, -log(1 + place), and 1 for the first one.

    No probability counts as less than `_FLOOR`, since no judge rules a step out. Places are counted from 0;
    steps of one probability share the middle of theirs.
    """
    held = [probabilities.get(step, 0.0) for step in steps]
    places = [sum(q > p for q in held) + (sum(q == p for q in held) - 1) / 2 for p in held]
    return [
        (math.log(max(_MIN_PROBABILITY, p)), -math.log1p(place), float(place == 0))
        for p, place in zip(held, places, strict=True)
    ]


def _list_candidate_steps(run: Trajectory) -> tuple[int, ...]:
    from agentguard.judge.embedded.features.table import build_step_table

    return build_step_table(run).steps


def _build_question(run: Trajectory, steps: Sequence[int], findings: Sequence[Finding]) -> ChoiceQuestion:
    """Which step it was; which turn, where the steps would not go into one call."""
    turns = structured.select_candidate_turns(run)
    by_turn = structured.build_turn_question(run, turns, findings)
    if len(steps) > len(LABELS):
        return by_turn
    text = by_turn.text.replace("turn", "step")
    return replace(by_turn, id="root_cause_step", text=text, options=tuple(f"step {step}" for step in steps))


def _assign_to_steps(
    run: Trajectory, steps: Sequence[int], probabilities: Mapping[str, float]
) -> Mapping[int, float]:
    if len(steps) > len(LABELS):
        return structured.distribute_to_steps(structured.select_candidate_turns(run), probabilities)
    return {step: probabilities.get(f"step {step}", 0.0) for step in steps}


def _build_missing_answer_notes(
    failed: float | None, signals: object, *, outcome_requested: bool
) -> tuple[str, ...]:
    """What a person should know of a judge that gave less than it was asked for."""
    if signals is None and (failed is None or not outcome_requested):
        return ("the judge could not be asked; this is the embedded model alone",)
    if signals is None:
        return ("the judge did not say which step it was; the ranking is the embedded model's alone",)
    if failed is None and outcome_requested:
        return ("the judge did not say whether the run failed; that is the embedded model's word alone",)
    return ()


def _combine_outcomes(
    diagnosis: Diagnosis, ranked: Diagnosis, failed: float, findings: Sequence[Finding]
) -> Diagnosis:
    """Where the model knows no outcomes of this kind of log: half its odds, and half the judge's."""
    together = _sigmoid(0.5 * (_log_odds(diagnosis.probability) + _log_odds(failed)))
    verdict, note = select_verdict(together, findings)
    hypotheses = () if verdict is Verdict.NO_FAILURE else ranked.hypotheses
    return replace(
        diagnosis,
        verdict=verdict,
        probability=together,
        hypotheses=hypotheses,
        notes=(*diagnosis.notes, *note),
    )


def _log_odds(probability: float) -> float:
    held = min(1 - 1e-6, max(1e-6, probability))
    return math.log(held / (1 - held))


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))
