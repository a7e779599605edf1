"""What an error schema is: a failure condensed to what will be recognisable in another run.

After CORRECT (arXiv 2509.24088): signature, context and heuristics of one kind of failure, kept as text and
found again by likeness. Two things differ from what was published. The gold step and agent never enter a
schema, so that nothing of a label can leak into another run's diagnosis. And a schema says what a failure
*looks like*, not what the task was about: names, numbers and topics are taken out before anything is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from agentguard.detect.base import Finding
from agentguard.trajectory.model import Record, Trajectory


class SchemaOrigin(StrEnum):
    """Where the failures behind a schema come from; figures of different origins are never mixed."""

    NATURAL = "natural"
    INJECTED = "injected"
    RECOVERED = "recovered"
    """A guard took a run back, and that helped: nobody has labelled these."""


class SchemaStatus(StrEnum):
    """Whether a schema is offered to new runs."""

    ACTIVE = "active"
    RETIRED = "retired"
    QUARANTINED = "quarantined"
    """One run taught it: kept and not offered, until another run bears it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """How a schema came about.

    Attributes:
        method: ``"embedded"``, or ``"chat:<model>"``.
        runs: ids of the runs it was distilled from.
        groups: the questions (or task ids) of those runs, as `agentguard.trajectory.grouping.normalize_group_key` makes
            them equal; at evaluation a schema is left out for every run that shares one.
        origin: natural failures, injected ones, or those that a guard recovered from.
    """

    method: str
    runs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    origin: SchemaOrigin = SchemaOrigin.NATURAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a step (or a whole run) looks like, without its topic: what schemata are made from and found by.

    Attributes:
        text: sentences of behaviour; no name, number or subject of the task is in it.
        traits: named facts to weights in [0, 1], e.g. ``"finding:tool_error_ignored"``.
        step: index of the step it portrays; None for a whole run.
    """

    text: str
    traits: Mapping[str, float] = field(default_factory=dict)
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSchema:
    """A kind of failure that was seen.

    Attributes:
        id: made from what the schema first said; it stays through merges and new versions.
        signature: sentences on how the failure shows.
        context: sentences on the situation it arises in.
        heuristics: sentences on how to tell it from what only looks like it, and where to look.
        traits: as `Profile.traits`, averaged over the failures behind it.
        codes: qualified taxonomy codes, the most specific first.
        module: memory, reflection, planning, action or system, if known.
        correction: what helped, or should, addressed to the agent.
        provenance: how it came about.
        version: counted up by each merge and each distillation anew, from 1.
        support: failures behind it.
        confirmed, refuted: how often recovery (or a person) bore it out, or did not.
        used: how often it was retrieved.
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
        """What a vectoriser reads: signature and context, a sentence a line."""
        return "\n".join((*self.signature, *self.context))

    def to_lines(self) -> Iterator[str]:
        """What a judge is given as context; nothing in it tells where the failure stood."""
        yield "How it shows: " + " ".join(self.signature)
        if self.context:
            yield "When it arises: " + " ".join(self.context)
        if self.heuristics:
            yield "How to recognise it: " + " ".join(self.heuristics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A schema that was found for a portrait; ``likeness`` is the cosine of their vectors, in [-1, 1]."""

    schema: ErrorSchema
    similarity: float


class Distiller(Protocol):
    """Condenses a failure to a schema."""

    @property
    def name(self) -> str:
        """What provenance records: ``"embedded"`` or ``"chat:<model>"``."""
        ...

    def distill(self, record: Record, findings: Sequence[Finding]) -> ErrorSchema | None:
        """Return the schema of an annotated (or diagnosed) failure, None if it shows nothing to recognise.

        Raises:
            JudgeError: the judge that writes it could not be asked, or its answer cannot be used.
        """
        ...


class Profiler(Protocol):
    """Says what the steps of a run look like."""

    def __call__(self, run: Trajectory, findings: Sequence[Finding]) -> Sequence[Profile]:
        """A portrait for each step that could be at fault, in order."""
        ...
