"""Diagnosis, interface and registry of localizers, a base class, and an adapter for plug-ins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from agentguard.detect.base import DetectorFailure, Evidence, Finding
from agentguard.plugins import Registry
from agentguard.trajectory.model import Record, Trajectory
from agentguard.verdict import Verdict


class OutcomeBasis(StrEnum):
    """Evidence for the verdict of a diagnosis."""

    METHOD = "method"
    """Judgement of the run by the localizer itself."""
    KNOWN = "known"
    """The outcome was recorded or supplied."""
    LABELLED_RUNS = "labelled_runs"
    """Model of this agent, trained on its labelled runs."""
    OTHER_RUNS = "other_runs"
    """Comparison with other runs of this agent, without labels."""
    RULES = "rules"
    """Rules for a single run of an unknown agent."""

    @property
    def label(self) -> str:
        """Short text for reports; empty if the localizer's own judgement decides."""
        return _BASIS_LABELS[self]


_BASIS_LABELS = {
    OutcomeBasis.METHOD: "",
    OutcomeBasis.KNOWN: "known",
    OutcomeBasis.LABELLED_RUNS: "from labelled runs of this agent",
    OutcomeBasis.OTHER_RUNS: "against its other runs",
    OutcomeBasis.RULES: "by rules",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """Candidate step for the root cause.

    Attributes:
        step: index of the step, from 0.
        agent: agent of the step.
        module: memory, reflection, planning, action or system, if known.
        codes: qualified taxonomy codes, most probable first.
        probability: probability that this step is the root cause, given that the run failed.
        evidence: quotes from the run.
        correction: corrective message to the agent after a rollback to this step.
        reason: explanation in one sentence.
        schemata: ids of the error schemata that support it.
        detectors: detectors whose findings explain it, most decisive first; empty if no finding does.
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
    detectors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Verdict on a run and ranked candidates for the root cause.

    Attributes:
        trajectory_id: id of the run.
        method: name of the localizer.
        verdict: failed, no failure found or undecided.
        probability: probability that the run failed, in [0, 1].
        basis: evidence for verdict and probability.
        hypotheses: candidates, most probable first; empty if no failure was found.
        findings: findings of the detectors.
        failures: detectors or judges that failed.
        timing: seconds by part.
        usage: cost of model calls: ``calls``, ``cached_answers`` (answers without a call),
            ``prompt_tokens``, ``completion_tokens``, ``cached_tokens`` and ``seconds`` of waiting;
            ``label_mass``, the smallest probability that the judge gave to all options of a question
            together, if the endpoint reports it; ``cost_usd``, if the policy has a price of the judge's
            model. Empty if no model was called.
        judge: version of the judge that answered; empty if no judge answered.
        notes: remarks for the user, e.g. the reason of an undecided verdict.
        recalibrated: parameters of the recalibration (`agentguard.localize.recalibration`); empty if the
            probabilities are the method's own.
    """

    trajectory_id: str
    method: str
    verdict: Verdict
    probability: float
    basis: OutcomeBasis = OutcomeBasis.METHOD
    hypotheses: tuple[Hypothesis, ...] = ()
    findings: tuple[Finding, ...] = ()
    failures: tuple[DetectorFailure, ...] = ()
    timing: Mapping[str, float] = field(default_factory=dict)
    usage: Mapping[str, float] = field(default_factory=dict)
    judge: str = ""
    notes: tuple[str, ...] = ()
    recalibrated: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class SimpleLocalizer(Protocol):
    """Minimal plug-in localizer; `adapt_localizer` completes it to a `Localizer`."""

    @property
    def name(self) -> str:
        """Name of the method in the registry."""
        ...

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Return a diagnosis; a method that cannot decide returns ``undecided`` and does not raise."""
        ...


class Localizer(Protocol):
    """Method that ranks the steps of a run by the probability that they caused its failure.

    `BaseLocalizer` has defaults for all members except ``name`` and ``locate``.
    """

    @property
    def name(self) -> str:
        """Name of the method in the registry."""
        ...

    @property
    def immediate_localizer(self) -> Localizer:
        """Localizer for a run in progress. It asks no judge and does not block; by default this localizer."""
        ...

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Return a diagnosis; a method that cannot decide returns ``undecided`` and does not raise."""
        ...

    def without_group(self, group: str) -> Localizer:
        """Return a localizer without the knowledge from the runs of one question; by default this localizer.

        An evaluation calls it before it scores a run of that question.
        """
        ...

    def close(self) -> None:
        """Close the connections of the localizer's judge; a later question opens them again."""
        ...


@runtime_checkable
class Trainable(Protocol):
    """Localizer that learns from annotated runs; ``fit`` returns a fitted copy."""

    @property
    def name(self) -> str:
        """Name of the method in the registry."""
        ...

    def fit(self, records: Sequence[Record]) -> Localizer | SimpleLocalizer:
        """Return a localizer that is fitted to ``records`` alone; deterministic."""
        ...


class BaseLocalizer(ABC):
    """Base of the built-in localizers; a plug-in need not derive from it.

    A subclass sets ``name`` and defines `locate`. The other members are described in `Localizer`.
    """

    __slots__ = ()

    name: str = ""

    @abstractmethod
    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Return a diagnosis; see `Localizer.locate`."""

    @property
    def immediate_localizer(self) -> Localizer:
        """This localizer; see `Localizer.immediate_localizer`."""
        return self

    def without_group(self, group: str) -> Localizer:
        """Return this localizer; see `Localizer.without_group`."""
        del group
        return self

    def close(self) -> None:  # noqa: B027
        """Do nothing; see `Localizer.close`."""


class LocalizerFactory(Protocol):
    """Factory of a localizer."""

    def __call__(self, **options: Any) -> Localizer | SimpleLocalizer | Trainable:
        """Build the localizer; raise ConfigError if an option is unknown or out of range."""
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
        "step_by_step": "agentguard.localize.llm.step_search:build_step_by_step",
        "binary_search": "agentguard.localize.llm.step_search:build_binary_search",
        "structured": "agentguard.localize.llm.structured_turns:build_structured",
        "constraints": "agentguard.localize.llm.constraints:build_constraints",
        "two_stage": "agentguard.localize.llm.two_stage:build_two_stage",
        "fused": "agentguard.localize.llm.fused:FusedLocalizer",
    },
)


def get_localizer_registry() -> Registry[LocalizerFactory]:
    """Return the registry of localizers: the built-in ones and the installed plug-ins."""
    return _REGISTRY


class LocalizerAdapter:
    """Complete localizer around a plug-in that has at least ``name`` and ``locate``.

    It uses the optional members of `Localizer` that the plug-in has, and the defaults of `BaseLocalizer` for
    the others.
    """

    def __init__(self, localizer: SimpleLocalizer) -> None:
        self.localizer = localizer
        self._without_group = getattr(localizer, "without_group", None)
        self._close = getattr(localizer, "close", None)

    @property
    def name(self) -> str:
        """Name of the plug-in."""
        return self.localizer.name

    @property
    def immediate_localizer(self) -> Localizer:
        """Localizer of the plug-in for live runs; the plug-in itself if it does not have one."""
        immediate = getattr(self.localizer, "immediate_localizer", None)
        return self if immediate is None else adapt_localizer(immediate)

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Call ``locate`` of the plug-in."""
        return self.localizer.locate(trajectory, findings)

    def without_group(self, group: str) -> Localizer:
        """Call ``without_group`` of the plug-in; return the plug-in itself if it does not have one."""
        return self if self._without_group is None else adapt_localizer(self._without_group(group))

    def close(self) -> None:
        """Call ``close`` of the plug-in, if it has one."""
        if self._close is not None:
            self._close()


def adapt_localizer(localizer: Localizer | SimpleLocalizer) -> Localizer:
    """Return a localizer with all members of `Localizer`: ``localizer``, or an adapter around it."""
    if isinstance(localizer, BaseLocalizer | LocalizerAdapter):
        return localizer
    return LocalizerAdapter(localizer)
