"""Localizer ``embedded``: rankings and verdicts of the embedded judge, without an LLM."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError, JudgeError
from agentguard.localize.base import BaseLocalizer, Diagnosis, Hypothesis, OutcomeBasis
from agentguard.localize.diagnosis_builder import MAX_HYPOTHESES
from agentguard.options import reject_unknown_options
from agentguard.trajectory.grouping import group_by_agent
from agentguard.trajectory.model import GOLD_ANSWER, Record, Source, Trajectory
from agentguard.verdict import Verdict

if TYPE_CHECKING:
    from agentguard.judge.embedded.model import EmbeddedJudgement, EmbeddedModel

DEFAULT_RISK = 0.1
UNDECIDED_NOTE = "the evidence does not suffice for a verdict; the named steps are the most suspicious ones"
"""Note of a diagnosis with the verdict undecided."""
RULES_NOTE = "verdict by general rules: the model has no labelled runs of this agent"
"""Note of a diagnosis whose basis is `OutcomeBasis.RULES`."""
TRAINING_NOTE = "the model was trained on this run, so the verdict is not evidence for other runs"
"""Note of a diagnosis of a run in the model's training data."""
_MIN_PROBABILITY = 0.005  # less probable hypotheses are omitted


class EmbeddedLocalizer(BaseLocalizer):
    """Localizer that ranks steps and predicts outcomes by a trained model.

    Args:
        model: folder of a model file and its card; None selects the packaged model.
        risk: share of passed runs that may be classified as failed, in (0, 0.5]. On kinds of log with a
            learnt outcome model it sets the limits between failed, undecided and no failure found.
        with_answer: use the gold answer in training and in `locate_with_answer`; the packaged model ignores
            it.
        seed: seed of training.
        given_failed: assume that every run failed, and only rank the steps.

    Raises:
        ModelFileError: the model file is missing (the message has the command that trains one), was changed,
            or does not match its card.
        ConfigError: an option is unknown or out of range.
    """

    name = "embedded"

    def __init__(
        self,
        *,
        model: str | Path | None = None,
        risk: float = DEFAULT_RISK,
        with_answer: bool = False,
        seed: int = 0,
        given_failed: bool = False,
        **unknown: object,
    ) -> None:
        reject_unknown_options("localizer", self.name, unknown)
        if isinstance(risk, bool) or not isinstance(risk, int | float) or not 0 < risk <= 0.5:
            raise ConfigError(f"localizer 'embedded': risk is {risk!r}, expected a number in (0, 0.5]")
        self.risk = float(risk)
        self.with_answer = bool(with_answer)
        self.seed = int(seed)
        self.given_failed = bool(given_failed)
        self._folder = Path(model) if model is not None else None
        self._model: EmbeddedModel | None = None
        self._has_card = True
        _verify_model_file(self._folder)

    @classmethod
    def from_model(
        cls,
        model: EmbeddedModel,
        *,
        risk: float = DEFAULT_RISK,
        with_answer: bool = False,
        seed: int = 0,
        given_failed: bool = False,
    ) -> EmbeddedLocalizer:
        """Build a localizer from a trained model, without reading a file; arguments as for the class."""
        localizer = cls.__new__(cls)
        localizer.risk, localizer.with_answer = risk, with_answer
        localizer.seed, localizer.given_failed = seed, given_failed
        localizer._folder, localizer._model, localizer._has_card = None, model, False
        return localizer

    def count_training_runs(self, runs: Iterable[Trajectory]) -> int:
        """Return the number of runs that the model was trained on, by the digests of its card.

        A model that was not read from a file has no card; the number is then 0.
        """
        from agentguard.judge.embedded.run_digests import compute_run_digest

        digests = self._training_digests
        return sum(compute_run_digest(run) in digests for run in runs) if digests else 0

    @cached_property
    def _training_digests(self) -> frozenset[bytes]:
        if not self._has_card:
            return frozenset()
        from agentguard.judge.embedded.model_card import load_card
        from agentguard.judge.embedded.run_digests import decode_digests

        return decode_digests(load_card(self._folder))

    def fit(self, records: Sequence[Record]) -> EmbeddedLocalizer:
        """Return a copy that is trained on annotated runs alone; deterministic for one seed."""
        from agentguard.judge.embedded.training import build_untrained_model, train_model

        try:
            model = train_model(records, seed=self.seed, with_answer=self.with_answer)
        except JudgeError:
            model = build_untrained_model()
        return self._with_model(model)

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Diagnose a run; an undecided run also has hypotheses, as the first steps to inspect."""
        answer = trajectory.extra.get(GOLD_ANSWER) if self.with_answer else None
        return self.locate_with_answer(trajectory, findings, answer if isinstance(answer, str) else None)

    def locate_with_answer(
        self, trajectory: Trajectory, findings: Sequence[Finding], answer: str | None
    ) -> Diagnosis:
        """Diagnose a run with the gold answer; a model trained without answers ignores it."""
        if not any(step.source is Source.AGENT for step in trajectory.steps):
            return Diagnosis(
                trajectory_id=trajectory.id,
                method=self.name,
                verdict=Verdict.UNDECIDED,
                probability=0.5,
                notes=(f"the run has no step{' of an agent' if trajectory.steps else ''}",),
            )
        judgement = self.model.judge(trajectory, findings, risk=self.risk, answer=answer)
        return self.build_diagnosis(trajectory, judgement, findings)

    def learn_agents(self, records: Sequence[Record]) -> EmbeddedLocalizer:
        """Return a localizer with additional specialists for the agents of annotated runs.

        An agent gets a specialist from the minimum of labels in `agentguard.judge.embedded.label_counts`.

        Raises:
            JudgeError: no run is annotated.
        """
        from agentguard.judge.embedded.training import train_model

        systems = group_by_agent([record.trajectory for record in records])
        model = train_model(records, systems=systems, base=self.model, seed=self.seed)
        return self._with_model(model)

    def assume_failure(self) -> EmbeddedLocalizer:
        """Return a localizer with the same model that assumes that every run failed."""
        localizer = self._with_model(self.model)
        localizer.given_failed = True
        return localizer

    def _with_model(self, model: EmbeddedModel) -> EmbeddedLocalizer:
        return EmbeddedLocalizer.from_model(
            model,
            risk=self.risk,
            with_answer=self.with_answer,
            seed=self.seed,
            given_failed=self.given_failed,
        )

    @property
    def model(self) -> EmbeddedModel:
        """The trained model; loaded on first use, since it imports NumPy."""
        if self._model is None:
            self._model = _load_model(self._folder)
        return self._model

    def build_diagnosis(
        self, trajectory: Trajectory, judgement: EmbeddedJudgement, findings: Sequence[Finding]
    ) -> Diagnosis:
        """Build the diagnosis from the model's judgement of a run."""
        verdict = Verdict.FAILED if self.given_failed else _select_verdict(judgement)
        hypotheses = () if verdict is Verdict.NO_FAILURE_FOUND else _build_hypotheses(judgement, findings)
        return Diagnosis(
            trajectory_id=trajectory.id,
            method=self.name,
            verdict=verdict,
            probability=1.0 if self.given_failed else judgement.failure_probability,
            basis=_find_basis(judgement, given_failed=self.given_failed),
            hypotheses=hypotheses,
            notes=(
                *_build_notes(judgement, verdict, given_failed=self.given_failed),
                *_build_ranking_notes(hypotheses),
                *((TRAINING_NOTE,) if self.count_training_runs([trajectory]) else ()),
            ),
        )


@lru_cache(maxsize=4)
def _verify_model_file(folder: Path | None) -> None:
    from agentguard.judge.embedded.model_card import read_verified_model

    read_verified_model(folder)


@lru_cache(maxsize=4)
def _load_model(folder: Path | None) -> EmbeddedModel:
    from agentguard.judge.embedded.model_io import load_model

    return load_model(folder)


def _select_verdict(judgement: EmbeddedJudgement) -> Verdict:
    return Verdict.from_score(
        judgement.failure_probability, low=judgement.passed_threshold, high=judgement.failed_threshold
    )


def _build_hypotheses(judgement: EmbeddedJudgement, findings: Sequence[Finding]) -> tuple[Hypothesis, ...]:
    from agentguard.judge.embedded.finding_evidence import find_cause_row
    from agentguard.localize.explanation import explain_step

    table = judgement.table
    order = sorted(range(len(table.steps)), key=lambda row: (-judgement.step_probabilities[row], row))[
        :MAX_HYPOTHESES
    ]
    rows = [
        row
        for rank, row in enumerate(order)
        if rank < 3 or judgement.step_probabilities[row] >= _MIN_PROBABILITY
    ]
    findings_by_row: dict[int | None, list[Finding]] = {}
    for finding in findings:
        findings_by_row.setdefault(find_cause_row(table, finding), []).append(finding)
    hypotheses = []
    for row in rows:
        step = table.steps[row]
        explanation = explain_step(
            table.layout,
            step,
            table.get_features(row),
            findings_by_row.get(row, []),
        )
        hypotheses.append(
            Hypothesis(
                step=step,
                agent=table.agents[row],
                module=explanation.module,
                codes=explanation.codes,
                probability=float(judgement.step_probabilities[row]),
                evidence=explanation.evidence,
                correction=explanation.correction,
                reason=explanation.reason,
                detectors=explanation.detectors,
            )
        )
    return tuple(hypotheses)


def _find_basis(judgement: EmbeddedJudgement, *, given_failed: bool) -> OutcomeBasis:
    if given_failed:
        return OutcomeBasis.KNOWN
    return OutcomeBasis.LABELLED_RUNS if judgement.is_known_outcome else OutcomeBasis.RULES


def _build_notes(judgement: EmbeddedJudgement, verdict: Verdict, *, given_failed: bool) -> tuple[str, ...]:
    notes = []
    if verdict is Verdict.UNDECIDED:
        notes.append(UNDECIDED_NOTE)
    if given_failed:
        notes.append("the failure is given, not detected")
    elif judgement.is_known_outcome:
        notes.append("the verdict is based on labelled runs of this agent in the training data")
    else:
        notes.append(RULES_NOTE)
    if not judgement.is_known_ranking:
        notes.append("step ranking learnt from other kinds of log: use it as a hint")
    return tuple(notes)


def _build_ranking_notes(hypotheses: Sequence[Hypothesis]) -> tuple[str, ...]:
    """Return a note if neither a finding nor a quoted passage supports the first hypothesis."""
    if not hypotheses or hypotheses[0].codes:
        return ()
    steps = ", ".join(str(hypothesis.step) for hypothesis in hypotheses[:3])
    noun = "step" if len(hypotheses) == 1 else "steps"
    return (f"weak ranking: no finding and no quoted passage supports it; check {noun} {steps} first",)
