"""The embedded distiller: from a failure to its schema, deterministic and without a language model.

After CORRECT (arXiv 2509.24088), which has a model write signature, context and heuristics from the log and
the label. Here they are read off the portraits of the run's steps: what the step at fault does and what came
of it, what had gone before, and what it has that the steps resembling it have not. The label says where to
look and which code it is; nothing else of it is read. Its reason, its agent and its step's number say nothing
that could be recognised in another run, and would give away the answer in this one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

from agentguard.detect.base import Finding
from agentguard.schemata.advice import codes_of, correction_of, module_of
from agentguard.schemata.contrast import contrast
from agentguard.schemata.model import Origin, Provenance, Schema
from agentguard.schemata.plain import Plainer
from agentguard.schemata.portrait import Look, looks, sentences, signature_of
from agentguard.schemata.traits import Part
from agentguard.trajectory.groups import group_key
from agentguard.trajectory.model import Record, Source, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Where a run failed, and what is known of it.

    Attributes:
        step: index of the step at fault.
        codes: qualified taxonomy codes, if known; else those of the findings at the step are taken.
        module: memory, reflection, planning, action or system, if known; else that of the codes.
        correction: what helped, if known. It is kept only as far as it says nothing of the topic.
        group: the question or task id; else the task's text.
        origin: whether the failure is a natural one.
    """

    step: int
    codes: tuple[str, ...] = ()
    module: str | None = None
    correction: str = ""
    group: str | None = None
    origin: Origin = Origin.NATURAL


class Suspect(Protocol):
    """What is read of a hypothesis of a diagnosis."""

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
        """The part at fault, if known."""
        ...

    @property
    def correction(self) -> str:
        """What to tell the agent."""
        ...


class Diagnosed(Protocol):
    """What is read of a diagnosis (`agentguard.localize.base.Diagnosis` is one)."""

    @property
    def hypotheses(self) -> Sequence[Suspect]:
        """Suspects, the likeliest first."""
        ...

    @property
    def findings(self) -> Sequence[Finding]:
        """What the detectors saw."""
        ...


class EmbeddedDistiller:
    """Distils schemata from portraits; see the module.

    A run whose annotation says that its error was injected (``extra["origin"] == "injected"``) gives a schema
    of that origin.
    """

    name: Final = "embedded"

    def distil(self, record: Record, findings: Sequence[Finding]) -> Schema | None:
        """The schema of an annotated failure.

        None if the run passed, has no root cause with a step, or the step is not in the recording.
        """
        cause = record.annotation.root_cause
        if cause is None or cause.step is None or record.annotation.failed is False:
            return None
        injected = record.annotation.extra.get("origin") == Origin.INJECTED
        fault = Fault(
            step=cause.step,
            codes=cause.codes,
            module=cause.module,
            group=record.annotation.group,
            origin=Origin.INJECTED if injected else Origin.NATURAL,
        )
        return self.distil_step(record.trajectory, findings, fault)

    def distil_diagnosis(
        self, run: Trajectory, diagnosis: Diagnosed, *, hypothesis: int = 0, group: str | None = None
    ) -> Schema | None:
        """The schema of one hypothesis of a diagnosis; None if there is no such hypothesis."""
        if not 0 <= hypothesis < len(diagnosis.hypotheses):
            return None
        suspect = diagnosis.hypotheses[hypothesis]
        fault = Fault(
            step=suspect.step,
            codes=suspect.codes,
            module=suspect.module,
            correction=suspect.correction,
            group=group,
        )
        return self.distil_step(run, diagnosis.findings, fault)

    def distil_step(self, run: Trajectory, findings: Sequence[Finding], fault: Fault) -> Schema | None:
        """The schema of a failure at a known step; None if the step is not in the run.

        A step that cannot be at fault itself, such as a report of what was executed, stands for the last one
        before it that can.
        """
        seen = looks(run, findings)
        at = _place(seen, fault.step, len(run.steps))
        if at is None:
            return None
        return self._schema(run, seen, at, fault, _about(run, seen, at, findings))

    def _schema(
        self, run: Trajectory, seen: Sequence[Look], at: int, fault: Fault, here: Sequence[Finding]
    ) -> Schema:
        one = seen[at]
        codes = codes_of(fault.codes, here)
        module = module_of(fault.module, codes)
        groups = (key,) if (key := group_key(fault.group or "") or group_key(run.task)) else ()
        signature, context = signature_of(one.traits, one.words), sentences(one.traits, Part.BEFORE)
        heuristics = contrast(seen, at)
        return Schema(
            id=identity(run.id, (signature, context, heuristics), codes),
            signature=signature,
            context=context,
            heuristics=heuristics,
            traits=one.traits,
            codes=codes,
            module=module,
            correction=correction_of(fault.correction, here, codes, module, Plainer(run)),
            provenance=Provenance(method=self.name, runs=(run.id,), groups=groups, origin=fault.origin),
        )


def identity(run: str, said: Sequence[Sequence[str]], codes: Sequence[str]) -> str:
    """An id from what a schema first says, of which run: the same failure distilled twice has one id."""
    content = orjson.dumps([run, [list(part) for part in said], list(codes)])
    return hashlib.sha256(content).hexdigest()[:16]


def _about(
    run: Trajectory, seen: Sequence[Look], at: int, findings: Sequence[Finding]
) -> tuple[Finding, ...]:
    """Findings about a step; if there are none, those about what it handed over for execution brought back.

    Where a format folds results into the step, both are findings about the step.
    """
    step = seen[at].step
    here = tuple(one for one in findings if one.step == step)
    if here:
        return here
    end = seen[at + 1].step if at + 1 < len(seen) else len(run.steps)
    came = {i for i in range(step + 1, end) if run.steps[i].source is Source.ENVIRONMENT}
    return tuple(one for one in findings if one.step in came)


def _place(seen: Sequence[Look], step: int, steps: int) -> int | None:
    """Place among the candidates of a step, or of the last candidate before it."""
    if not 0 <= step < steps:
        return None
    before = [place for place, one in enumerate(seen) if one.step <= step]
    return before[-1] if before else None
