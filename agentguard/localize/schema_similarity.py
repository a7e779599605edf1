"""Localizer ``schema``: the embedded judge with similarity to error schemata, without a language model.

CORRECT (arXiv 2509.24088) shows schemata of earlier failures to a language model. Here their similarity to
the steps is a signal, and its weight relative to the judge's features is learnt. For measurements and limits
see docs/schemata.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentguard.detect.base import Finding
from agentguard.errors import ConfigError, JudgeError
from agentguard.localize.base import BaseLocalizer, Diagnosis, Hypothesis
from agentguard.localize.embedded import DEFAULT_RISK, EmbeddedLocalizer
from agentguard.options import reject_unknown_options
from agentguard.trajectory.model import Record, Trajectory
from agentguard.verdict import Verdict

if TYPE_CHECKING:
    from agentguard.judge.embedded.model import EmbeddedModel
    from agentguard.schemata.model import Match
    from agentguard.schemata.similarity_signal import SchemaSignals, SimilaritySignal

SCHEMA_SIGNAL_WEIGHT: Final = 0.15
"""Log-odds for a standard deviation of the signal, for a model that was trained without schemata.
It is the rounded weight that training with schemata on Who&When's generated runs learns."""

DISTILL_HINT: Final = (
    "distil some with: agentguard schemata distill RUNS --output FILE, and give them as schemata=FILE"
)
_MAX_CITED_SCHEMATA: Final = 3
_DEFAULT_K: Final = 3


class SchemaLocalizer(BaseLocalizer):
    """Localizer that ranks steps by a trained model and by their similarity to earlier failures.

    Without schemata each run is undecided. `fit` distils those of the training runs.

    Args:
        schemata: file or database URL of schemata; without it, only `fit` provides schemata.
        k: nearest schemata that count for a step.
        model: folder of a model file and its card; None selects the packaged model.
        risk, seed, given_failed: as for ``embedded``.
        same_task: also use schemata of the same task. In an evaluation, this leaks labels.

    Raises:
        ConfigError: an option is unknown or out of range.
        FormatError, StoreError: there are no schemata at that location, or they cannot be read.
        ModelFileError: as for ``embedded``.
    """

    name = "schema"

    def __init__(
        self,
        *,
        schemata: str | Path | None = None,
        k: int = _DEFAULT_K,
        model: str | Path | None = None,
        risk: float = DEFAULT_RISK,
        seed: int = 0,
        given_failed: bool = False,
        same_task: bool = False,
        **unknown: object,
    ) -> None:
        reject_unknown_options("localizer", self.name, unknown)
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ConfigError(f"localizer 'schema': k is {k!r}, expected a whole number of at least 1")
        self.k, self.seed, self.same_task = k, int(seed), bool(same_task)
        self.schemata = None if schemata is None else str(schemata)
        self._embedded = EmbeddedLocalizer(model=model, risk=risk, seed=seed, given_failed=given_failed)
        self._signals: SchemaSignals | None = None
        self._excluded_groups: tuple[str, ...] = ()
        if self.schemata is not None:
            from agentguard.schemata.persistence import load_schemata
            from agentguard.schemata.signal_trainer import build_signals

            self._signals = build_signals(load_schemata(self.schemata), k=self.k)

    def fit(self, records: Sequence[Record]) -> SchemaLocalizer:
        """Distil the failures among ``records``, and learn the weight of similarity to them.

        The result depends on ``records`` alone: the schemata of the constructor are not used. A training run
        is not compared with schemata of the same question, so that its similarities are those of a new run.
        """
        from agentguard.judge.embedded.training import build_untrained_model, train_model
        from agentguard.schemata.signal_trainer import compute_training_signals, train_signals

        signals = train_signals(records, k=self.k)
        try:
            model = train_model(
                records, seed=self.seed, signals=lambda record: compute_training_signals(signals, record)
            )
        except JudgeError:
            model = build_untrained_model()
        embedded = EmbeddedLocalizer.from_model(
            model, risk=self._embedded.risk, seed=self.seed, given_failed=self._embedded.given_failed
        )
        return self.with_signals(signals, embedded)

    def with_signals(self, signals: SchemaSignals, embedded: EmbeddedLocalizer) -> SchemaLocalizer:
        """Return a copy with other schemata and another model."""
        localizer = type(self).__new__(type(self))
        localizer.__dict__.update(self.__dict__)
        localizer._signals, localizer._embedded, localizer._excluded_groups = signals, embedded, ()
        return localizer

    @property
    def schema_count(self) -> int:
        """Number of schemata in use."""
        return 0 if self._signals is None else len(self._signals.index)

    @property
    def embedded(self) -> EmbeddedLocalizer:
        """The localizer around the trained model."""
        return self._embedded

    @property
    def model(self) -> EmbeddedModel:
        """The trained model, to whose ranking the schemata contribute."""
        return self._embedded.model

    def without_group(self, group: str) -> SchemaLocalizer:
        """Return a copy that ignores schemata of one question; evaluation uses such a copy for each run."""
        if self._signals is None:
            return self
        localizer = self.with_signals(self._signals, self._embedded)
        localizer._excluded_groups = (group,)
        return localizer

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Diagnose a run; notes name the matching schemata, whose corrections the first hypotheses have."""
        if self._signals is None or not len(self._signals.index):
            return self._build_undecided(trajectory, f"there are no schemata; {DISTILL_HINT}")
        if not trajectory.steps:
            return self._build_undecided(trajectory, "the run has no step")
        similarity = self.compute_similarity(trajectory, findings)
        model = self._embedded.model.with_signal_weights([SCHEMA_SIGNAL_WEIGHT])
        judgement = model.judge(trajectory, findings, risk=self._embedded.risk, signals=similarity.signal)
        diagnosis = replace(self._embedded.build_diagnosis(trajectory, judgement, findings), method=self.name)
        return _cite_schemata(diagnosis, similarity, judgement.table.steps)

    def compute_similarity(self, trajectory: Trajectory, findings: Sequence[Finding]) -> SimilaritySignal:
        """Compute the schema signal of each candidate step. Raises JudgeError if there are no schemata."""
        from agentguard.schemata.signal_trainer import profile_cached

        if self._signals is None:
            raise JudgeError(f"there are no schemata; {DISTILL_HINT}")
        groups = self._excluded_groups if self.same_task else (*self._excluded_groups, trajectory.task)
        return self._signals.compute(profile_cached(trajectory, findings), excluded_groups=groups)

    def _build_undecided(self, trajectory: Trajectory, note: str) -> Diagnosis:
        return Diagnosis(
            trajectory_id=trajectory.id,
            method=self.name,
            verdict=Verdict.UNDECIDED,
            probability=0.5,
            notes=(note,),
        )


def _cite_schemata(diagnosis: Diagnosis, similarity: SimilaritySignal, steps: Sequence[int]) -> Diagnosis:
    """Add the matching schemata to the first hypotheses, and a note with their ids."""
    row_of_step = {step: row_index for row_index, step in enumerate(steps)}
    cited_ids: dict[str, Any] = {}
    hypotheses = []
    for hypothesis in diagnosis.hypotheses:
        row_index = row_of_step[hypothesis.step]
        match = next(iter(similarity.matches[row_index]), None)
        is_supported = match is not None and similarity.signal[row_index, 0] > 0 and match.similarity > 0
        if match is None or not is_supported or len(cited_ids) >= _MAX_CITED_SCHEMATA:
            hypotheses.append(hypothesis)
            continue
        cited_ids[match.schema.id] = None
        hypotheses.append(_add_schema_details(hypothesis, match))
    note = (
        (f"matching schemata: {', '.join(cited_ids)}",) if cited_ids else ("no schema matches these steps",)
    )
    notes = diagnosis.notes + (note if diagnosis.hypotheses else ())
    return replace(diagnosis, hypotheses=tuple(hypotheses), notes=notes)


_SCHEMA_CITATION = re.compile(r"\(schema ([^\s()]{1,256})\)\Z")


def parse_cited_schema(hypothesis: Hypothesis) -> str | None:
    """Return the id of the schema that a hypothesis cites in its reason; None if it cites no schema."""
    match = _SCHEMA_CITATION.search(hypothesis.reason)
    return match[1] if match else None


def _add_schema_details(hypothesis: Hypothesis, match: Match) -> Hypothesis:
    """Add the codes, correction and reason of the nearest schema to a hypothesis."""
    schema = match.schema
    reason = f"{hypothesis.reason.rstrip('.')}; it looks like an earlier failure (schema {schema.id})"
    return replace(
        hypothesis,
        codes=tuple(dict.fromkeys((*hypothesis.codes, *schema.codes))),
        module=hypothesis.module or schema.module,
        correction=schema.correction or hypothesis.correction,
        reason=reason,
        schemata=(schema.id,),
    )
