"""Embedded distiller: builds the schema of a failure deterministically, without a language model.

In CORRECT (arXiv 2509.24088), a model writes signature, context and heuristics from the log and the label.
This distiller takes them from the profiles of the run's steps: the behaviour and the effects of the faulty
step, the steps before it, and its differences from similar steps. Of the label, it uses only the step and the
code. Reason, agent and step number are not recognisable in another run, and would leak the answer in this
one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

from agentguard.detect.base import Finding
from agentguard.schemata.advice import resolve_module, select_codes, select_correction
from agentguard.schemata.model import ErrorSchema, Provenance, SchemaOrigin
from agentguard.schemata.profiles.delexicalization import Delexicalizer
from agentguard.schemata.profiles.step_profile import (
    MIN_SENTENCE_WEIGHT,
    StepProfile,
    build_step_profiles,
    format_sentences,
    format_signature,
    get_sentence,
    sort_traits,
)
from agentguard.schemata.profiles.traits import TraitPart, is_positional
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.model import Record, Source, Trajectory

HAS_TEMPLATE: Final = "Not true of similar steps: {}"
LACKS_TEMPLATE: Final = "True only of similar steps: {}"

_MAX_LOOKALIKES: Final = 3
_MAX_PRESENT_TRAITS: Final = 4
_MAX_ABSENT_TRAITS: Final = 2
_MIN_WEIGHT_GAP: Final = 0.4
_MIN_COMMON_WEIGHT: Final = 0.6
_MAX_ABSENT_WEIGHT: Final = 0.2
_FINDING_BONUS: Final = 0.25
"""Bonus of a detector's finding over a trait that is equally rare in the run."""


def describe_contrast(candidates: Sequence[StepProfile], position: int) -> tuple[str, ...]:
    """Return sentences on the differences between a candidate and the candidates most similar to it.

    Args:
        candidates: profiles of the candidates of a run.
        position: index of the candidate among them.
    """
    own_traits = candidates[position].traits
    others = [one.traits for index, one in enumerate(candidates) if index != position]
    if not others:
        return ()
    similar_traits = sorted(others, key=lambda traits: -compute_trait_similarity(own_traits, traits))[
        :_MAX_LOOKALIKES
    ]
    has = {
        name: weight
        - (_average_weight(similar_traits, name) + _average_weight(others, name)) / 2
        + _FINDING_BONUS * name.startswith("finding:")
        for name, weight in own_traits.items()
        if weight >= MIN_SENTENCE_WEIGHT and _is_distinctive(name)
    }
    common = {
        name
        for traits in similar_traits
        for name in traits
        if own_traits.get(name, 0.0) < _MAX_ABSENT_WEIGHT and _is_distinctive(name)
    }
    lacks = {name: _average_weight(similar_traits, name) for name in common}
    return (
        *(
            HAS_TEMPLATE.format(get_sentence(name))
            for name in _select_top(has, _MIN_WEIGHT_GAP, _MAX_PRESENT_TRAITS)
        ),
        *(
            LACKS_TEMPLATE.format(get_sentence(name))
            for name in _select_top(lacks, _MIN_COMMON_WEIGHT, _MAX_ABSENT_TRAITS)
        ),
    )


def compute_trait_similarity(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the cosine of two mappings of traits to weights, in [0, 1]; 0 if either is empty."""
    shared = sum(weight * other[name] for name, weight in one.items() if name in other)
    return shared / (_compute_norm(one) * _compute_norm(other)) if shared else 0.0


def _compute_norm(traits: Mapping[str, float]) -> float:
    return math.sqrt(sum(weight * weight for weight in traits.values()))


def _average_weight(many: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(traits.get(name, 0.0) for traits in many) / len(many)


def _is_distinctive(name: str) -> bool:
    """Return whether a trait has a sentence and describes more than a position."""
    return not is_positional(name) and get_sentence(name) is not None


def _select_top(scores: Mapping[str, float], minimum: float, limit: int) -> list[str]:
    """Return the names with the highest scores; the order of the vocabulary breaks ties."""
    names = [name for name in sort_traits(scores) if scores[name] >= minimum]
    return sorted(names, key=lambda name: -round(scores[name], 6))[:limit]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLocation:
    """Location of a failure in a run, and its known labels.

    Attributes:
        step: index of the faulty step.
        codes: qualified taxonomy codes, if known; else the codes of the findings at the step are used.
        module: memory, reflection, planning, action or system, if known; else that of the codes.
        correction: a correction for the agent, if known; only its parts without the topic are used.
        group: the question or task id; None for the text of the task.
        origin: origin of the failure.
    """

    step: int
    codes: tuple[str, ...] = ()
    module: str | None = None
    correction: str = ""
    group: str | None = None
    origin: SchemaOrigin = SchemaOrigin.NATURAL


class HypothesisLike(Protocol):
    """Attributes of a hypothesis that the distiller reads."""

    @property
    def step(self) -> int:
        """Index of the step."""
        ...

    @property
    def codes(self) -> tuple[str, ...]:
        """Qualified codes."""
        ...

    @property
    def module(self) -> str | None:
        """Module at fault, if known."""
        ...

    @property
    def correction(self) -> str:
        """Correction for the agent."""
        ...


class DiagnosisLike(Protocol):
    """Attributes of a diagnosis that the distiller reads (`agentguard.localize.base.Diagnosis` has them)."""

    @property
    def hypotheses(self) -> Sequence[HypothesisLike]:
        """Candidates for the root cause, the most probable first."""
        ...

    @property
    def findings(self) -> Sequence[Finding]:
        """Findings of the detectors."""
        ...


class EmbeddedDistiller:
    """Distiller of schemata from step profiles.

    A schema has the origin ``injected`` if the annotation of the run has ``extra["origin"] == "injected"``.
    """

    name: Final = "embedded"

    def distill(self, record: Record, findings: Sequence[Finding]) -> ErrorSchema | None:
        """Return the schema of an annotated failure.

        Return None if the run passed, has no root cause with a step, or does not contain the step.
        """
        cause = record.annotation.root_cause
        if cause is None or cause.step is None or record.annotation.failed is False:
            return None
        injected = record.annotation.extra.get("origin") == SchemaOrigin.INJECTED
        fault = FailureLocation(
            step=cause.step,
            codes=cause.codes,
            module=cause.module,
            group=record.annotation.group,
            origin=SchemaOrigin.INJECTED if injected else SchemaOrigin.NATURAL,
        )
        return self.distill_step(record.trajectory, findings, fault)

    def distill_diagnosis(
        self, run: Trajectory, diagnosis: DiagnosisLike, *, hypothesis: int = 0, group: str | None = None
    ) -> ErrorSchema | None:
        """Return the schema of one hypothesis of a diagnosis; None if there is no such hypothesis.

        Args:
            run: the diagnosed run.
            diagnosis: its diagnosis.
            hypothesis: rank of the hypothesis, from 0.
            group: the question or task id; None for the text of the task.
        """
        if not 0 <= hypothesis < len(diagnosis.hypotheses):
            return None
        cause = diagnosis.hypotheses[hypothesis]
        fault = FailureLocation(
            step=cause.step,
            codes=cause.codes,
            module=cause.module,
            correction=cause.correction,
            group=group,
        )
        return self.distill_step(run, diagnosis.findings, fault)

    def distill_step(
        self, run: Trajectory, findings: Sequence[Finding], fault: FailureLocation
    ) -> ErrorSchema | None:
        """Return the schema of a failure at a known step; None if the step is not in the run.

        If the step cannot be at fault, such as a report of executed code, the schema describes the last
        candidate before it.
        """
        profiles = build_step_profiles(run, findings)
        position = _find_candidate(profiles, fault.step, len(run.steps))
        if position is None:
            return None
        return self._build_schema(
            run, profiles, position, fault, _select_findings(run, profiles, position, findings)
        )

    def _build_schema(
        self,
        run: Trajectory,
        candidates: Sequence[StepProfile],
        position: int,
        fault: FailureLocation,
        findings: Sequence[Finding],
    ) -> ErrorSchema:
        one = candidates[position]
        codes = select_codes(fault.codes, findings)
        module = resolve_module(fault.module, codes)
        groups = (
            (key,) if (key := normalize_group_key(fault.group or "") or normalize_group_key(run.task)) else ()
        )
        signature, context = (
            format_signature(one.traits, one.words),
            format_sentences(one.traits, TraitPart.BEFORE),
        )
        heuristics = describe_contrast(candidates, position)
        return ErrorSchema(
            id=build_schema_id(run.id, (signature, context, heuristics), codes),
            signature=signature,
            context=context,
            heuristics=heuristics,
            traits=one.traits,
            codes=codes,
            module=module,
            correction=select_correction(fault.correction, findings, codes, module, Delexicalizer(run)),
            provenance=Provenance(method=self.name, runs=(run.id,), groups=groups, origin=fault.origin),
        )


def build_schema_id(run: str, sentences: Sequence[Sequence[str]], codes: Sequence[str]) -> str:
    """Return the id of a schema: sixteen hexadecimal digits of a hash of its run, sentences and codes."""
    content = orjson.dumps([run, [list(part) for part in sentences], list(codes)])
    return hashlib.sha256(content).hexdigest()[:16]


def _select_findings(
    run: Trajectory, candidates: Sequence[StepProfile], position: int, findings: Sequence[Finding]
) -> tuple[Finding, ...]:
    """Return the findings about a step; without any, the findings about the results of its execution.

    In formats whose steps contain the results, all of them are findings about the step.
    """
    step = candidates[position].step
    step_findings = tuple(one for one in findings if one.step == step)
    if step_findings:
        return step_findings
    end = candidates[position + 1].step if position + 1 < len(candidates) else len(run.steps)
    result_steps = {i for i in range(step + 1, end) if run.steps[i].source is Source.ENVIRONMENT}
    return tuple(one for one in findings if one.step in result_steps)


def _find_candidate(candidates: Sequence[StepProfile], step: int, steps: int) -> int | None:
    """Return the position of a step among the candidates, or of the last candidate before it."""
    if not 0 <= step < steps:
        return None
    before = [index for index, one in enumerate(candidates) if one.step <= step]
    return before[-1] if before else None
