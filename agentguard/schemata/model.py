"""Model of an error schema: a failure condensed to the features that are recognisable in other runs.

After CORRECT (arXiv 2509.24088): signature, context and heuristics of one kind of failure, stored as text and
found by similarity. There are two differences from the publication:

- The gold step and agent never enter a schema, so no label can leak into the diagnosis of another run.
- A schema describes the behaviour, not the task: names, numbers and topics are removed before it is stored.
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
    """Origin of the failures behind a schema; figures of different origins are never mixed."""

    NATURAL = "natural"
    INJECTED = "injected"
    RECOVERED = "recovered"
    """A guard rolled a run back and that helped; these failures have no label."""


class SchemaStatus(StrEnum):
    """Status of a schema for new runs."""

    ACTIVE = "active"
    RETIRED = "retired"
    QUARANTINED = "quarantined"
    """Learnt from one run: stored but not offered until another run confirms it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Provenance of a schema.

    Attributes:
        method: ``"embedded"``, or ``"chat:<model>"``.
        runs: ids of the runs it was distilled from.
        groups: questions (or task ids) of those runs, normalised by
            `agentguard.trajectory.grouping.normalize_group_key`; an evaluation excludes a schema for every
            run that shares one.
        origin: natural failures, injected ones, or failures that a guard recovered from.
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
        traits: named facts to weights in [0, 1], such as ``"finding:tool_error_ignored"``.
        step: index of the step; None for a complete run.
    """

    text: str
    traits: Mapping[str, float] = field(default_factory=dict)
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSchema:
    """Kind of failure that was observed.

    Attributes:
        id: built from the first content of the schema; stable through merges and new versions.
        signature: sentences on the symptoms of the failure.
        context: sentences on the situation of the failure.
        heuristics: sentences on the differences from similar steps, and on where to look.
        traits: as `Profile.traits`, averaged over the failures behind it.
        codes: qualified taxonomy codes, the most specific first.
        module: memory, reflection, planning, action or system, if known.
        correction: advice that helped, or should help, addressed to the agent.
        provenance: origin and method of the schema.
        version: incremented by each merge and each distillation, from 1.
        support: number of failures behind it.
        confirmed, refuted: number of confirmations and refutations by recoveries (or people).
        used: number of retrievals.
        created_at, updated_at, used_at: epoch seconds; ``used_at`` is None before its first use.
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
        """Yield the context lines for a judge; they do not reveal the position of the failure."""
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
    """Search result: a schema and the cosine similarity of its vector and the query's, in [-1, 1]."""

    schema: ErrorSchema
    similarity: float


class Distiller(Protocol):
    """Distiller of a failure into a schema."""

    @property
    def name(self) -> str:
        """Method in the provenance: ``"embedded"`` or ``"chat:<model>"``."""
        ...

    def distill(self, record: Record, findings: Sequence[Finding]) -> ErrorSchema | None:
        """Return the schema of an annotated (or diagnosed) failure; None if it has no recognisable feature.

        Raises:
            JudgeError: the judge that writes it is unavailable, or its answer is not usable.
        """
        ...
