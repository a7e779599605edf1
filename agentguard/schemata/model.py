"""Model of an error schema: the features of a failure that are recognisable in other runs.

As in CORRECT (arXiv 2509.24088), a schema has signature, context and heuristics of one kind of failure as
text, and is retrieved by similarity. There are two differences from the publication:

- A schema does not contain the annotated step and agent, so no label can leak into another diagnosis.
- A schema describes the behaviour, not the task. It contains no name, number or topic of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from agentguard.detect.base import Finding
from agentguard.trajectory.model import Record

_MAX_PROMPT_CHARS: Final = 580
_MAX_CORRECTION_CHARS: Final = 240


class SchemaOrigin(StrEnum):
    """Origin of the failures of a schema; measurements do not mix different origins."""

    NATURAL = "natural"
    INJECTED = "injected"
    RECOVERED = "recovered"
    """Failure without a label, after which a rollback by a guard helped."""


class SchemaStatus(StrEnum):
    """Status of a schema for new runs."""

    ACTIVE = "active"
    RETIRED = "retired"
    QUARANTINED = "quarantined"
    """Learnt from one run; searches do not return it until another run confirms it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Provenance of a schema.

    Attributes:
        method: ``"embedded"``, or ``"chat:<model>"``.
        runs: ids of the runs of the distillation.
        groups: questions (or task ids) of those runs, normalised by
            `agentguard.trajectory.grouping.normalize_group_key`. For a run of the same question, an
            evaluation excludes the schema.
        origin: origin of the failures.
    """

    method: str
    runs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    origin: SchemaOrigin = SchemaOrigin.NATURAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Profile of a step (or a complete run) without its topic, for building and finding schemata.

    Attributes:
        text: sentences on behaviour, without a name, number or subject of the task.
        traits: weights in [0, 1] by named fact, such as ``"finding:tool_error_ignored"``.
        step: index of the step; None for a complete run.
    """

    text: str
    traits: Mapping[str, float] = field(default_factory=dict)
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSchema:
    """Description of an observed kind of failure.

    Attributes:
        id: hash of the first content of the schema; stable through merges and new versions.
        signature: sentences on the symptoms of the failure.
        context: sentences on the situation of the failure.
        heuristics: sentences on the differences from similar steps.
        traits: as `Profile.traits`, averaged over the failures of the schema.
        codes: qualified taxonomy codes, the most specific first.
        module: memory, reflection, planning, action or system, if known.
        correction: corrective message to the agent.
        provenance: origin and method of the schema.
        version: incremented by each merge and each distillation, from 1.
        support: number of failures of the schema.
        confirmed, refuted: number of confirmations and refutations by recoveries (or people).
        used: number of retrievals.
        status: status for new runs.
        created_at, updated_at, used_at: epoch seconds; ``used_at`` is None before the first use.
    """

    id: str
    signature: tuple[str, ...]
    context: tuple[str, ...] = ()
    heuristics: tuple[str, ...] = ()
    traits: Mapping[str, float] = field(default_factory=dict)
    codes: tuple[str, ...] = ()
    module: str | None = None
    correction: str = ""
    provenance: Provenance
    version: int = 1
    support: int = 1
    confirmed: int = 0
    refuted: int = 0
    used: int = 0
    status: SchemaStatus = SchemaStatus.ACTIVE
    created_at: float = 0.0
    updated_at: float = 0.0
    used_at: float | None = None

    def to_text(self) -> str:
        """Return the text for a vectoriser: signature and context, one sentence per line."""
        return "\n".join((*self.signature, *self.context))

    def to_lines(self) -> Iterator[str]:
        """Yield the lines for the prompt of a judge; they do not reveal the position of the failure."""
        yield "How it shows: " + " ".join(self.signature)
        if self.context:
            yield "When it arises: " + " ".join(self.context)
        if self.heuristics:
            yield "How to recognise it: " + " ".join(self.heuristics)

    def to_prompt_text(self) -> str:
        """Return a line of at most 580 characters for a judge: the correction, and `to_lines`."""
        correction = f"What corrects it: {self.correction}"[:_MAX_CORRECTION_CHARS] if self.correction else ""
        return " ".join(" ".join((correction, *self.to_lines())).split())[:_MAX_PROMPT_CHARS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Search result: a schema, and the cosine of its vector and the vector of the query, in [-1, 1]."""

    schema: ErrorSchema
    similarity: float


class Distiller(Protocol):
    """Distiller of a failure into a schema."""

    @property
    def name(self) -> str:
        """Method in the provenance: ``"embedded"`` or ``"chat:<model>"``."""
        ...

    def distill(self, record: Record, findings: Sequence[Finding]) -> ErrorSchema | None:
        """Return the schema of an annotated (or diagnosed) failure; None without a root-cause step.

        Raises:
            JudgeError: the language model is unavailable, or its answer is not usable.
        """
        ...
