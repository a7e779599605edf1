"""Which step: what a localizer is, and the diagnosis it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from agentguard.detect.base import DetectorFailure, Evidence, Finding
from agentguard.plugins import Registry
from agentguard.trajectory.model import Record, Trajectory


class Verdict(StrEnum):
    """What a diagnosis says of the run."""

    FAILURE = "failure"
    NO_FAILURE = "no_failure"
    ABSTAINED = "abstained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A step that may be the root cause.

    Attributes:
        step: index of the step, from 0.
        agent: who made it.
        module: memory, reflection, planning, action or system, if known.
        codes: qualified taxonomy codes, likeliest first.
        probability: that this step is the root cause, given that the run failed; calibrated where the
            method is.
        evidence: quotes from the run.
        correction: what to tell the agent when the run is taken back to this step.
        reason: why this step, in a sentence for a person.
        schemata: ids of the schemata of earlier failures that spoke for it.
    """

    step: int
    agent: str
    module: str | None = None
    codes: tuple[str, ...] = ()
    probability: float = 0.0
    evidence: tuple[Evidence, ...] = ()
    correction: str = ""
    reason: str = ""
    schemata: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The answer to "did it fail, and which step caused it".

    Attributes:
        trajectory_id: id of the run.
        method: name of the localizer.
        verdict: failure, no_failure or abstained.
        probability: that the run failed, in [0, 1].
        hypotheses: ranked, likeliest first; empty when the verdict is no_failure.
        findings: what the detectors saw.
        failures: detectors (or judges) that could not do their work.
        timing: seconds by part.
        usage: what asking a model cost: ``calls``, ``prompt_tokens``, ``completion_tokens``,
            ``cached_tokens`` and ``seconds`` of waiting; empty where none was asked.
        notes: what a person should know about this diagnosis, e.g. why it abstained.
        recalibrated: what the method's probabilities were corrected by, where people judged enough of its
            diagnoses (`agentguard.localize.recalibration`); empty where they are its own.
    """

    trajectory_id: str
    method: str
    verdict: Verdict
    probability: float
    hypotheses: tuple[Hypothesis, ...] = ()
    findings: tuple[Finding, ...] = ()
    failures: tuple[DetectorFailure, ...] = ()
    timing: Mapping[str, float] = field(default_factory=dict)
    usage: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    recalibrated: Mapping[str, float] = field(default_factory=dict)


class Localizer(Protocol):
    """Names the step: ``locate`` ranks hypotheses for a run whose findings are given."""

    @property
    def name(self) -> str:
        """Name the method is registered under."""
        ...

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Return a diagnosis; an undecided method abstains, it does not raise."""
        ...


class Trainable(Protocol):
    """A localizer that learns from annotated runs; ``fit`` returns a fitted copy of it."""

    @property
    def name(self) -> str:
        """Name the method is registered under."""
        ...

    def fit(self, records: Sequence[Record]) -> Localizer:
        """Learn from ``records`` alone; deterministic."""
        ...


class LocalizerFactory(Protocol):
    """Makes a localizer from its options."""

    def __call__(self, **options: Any) -> Localizer | Trainable:
        """Raise ConfigError on an option that does not exist or is out of its range."""
        ...


_REGISTRY: Registry[LocalizerFactory] = Registry(
    "localizer",
    group="agentguard.localizers",
    builtin={
        "embedded": "agentguard.localize.embedded:EmbeddedLocalizer",
        "schema": "agentguard.localize.llm.schema_prompted:build_schema_localizer",
        "constant": "agentguard.localize.baselines.constant:build_constant_localizer",
        "label_copy": "agentguard.localize.baselines.nearest_neighbour:NearestNeighbourTrainer",
        "two_line": "agentguard.localize.baselines.first_worker_turn:FirstWorkerTurnLocalizer",
        "index_prior": "agentguard.localize.baselines.position_prior:PositionPriorTrainer",
        "last_error": "agentguard.localize.baselines.last_error:LastErrorLocalizer",
        "first_finding": "agentguard.localize.baselines.first_finding:FirstFindingLocalizer",
        "all_at_once": "agentguard.localize.llm.all_at_once:build_all_at_once",
        "step_by_step": "agentguard.localize.llm.step_by_step:build_step_by_step",
        "binary_search": "agentguard.localize.llm.binary_search:build_binary_search",
        "structured": "agentguard.localize.llm.structured:build_structured",
        "constraints": "agentguard.localize.llm.constraints:build_constraints",
        "two_stage": "agentguard.localize.llm.two_stage:build_two_stage",
        "fused": "agentguard.localize.llm.fused:FusedLocalizer",
    },
)


def get_localizer_registry() -> Registry[LocalizerFactory]:
    """The registry of localizers: those in ``agentguard.localize`` and installed ones."""
    return _REGISTRY
