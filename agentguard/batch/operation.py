"""Operation of a batch job: the results for each run, and the table with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from agentguard.batch.output_table import OutputTable
from agentguard.trajectory.model import Record

if TYPE_CHECKING:
    from agentguard.batch.output_folder import BatchOutput

MIN_DETECTOR_DEADLINE_S: Final = 60.0
"""A detector's deadline must not depend on the load of the machine: results are equal at any parallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutput:
    """Result for one run.

    Attributes:
        values: result columns of the row.
        is_retryable: True if the result has a failure that may not occur again, such as a judge that does
            not answer. The next job then processes the chunk of the run again.
    """

    values: Mapping[str, Any]
    is_retryable: bool = False


class RunProcessor(Protocol):
    """Processor of single runs; a worker has one."""

    def process(self, record: Record) -> RunOutput:
        """Return the result for a run. An AgentGuardError becomes an error row and a dead letter."""
        ...

    def close(self) -> None:
        """Release connections and models; by default, release nothing."""
        return


class PartRevision(NamedTuple):
    """Part of the output table that a second pass has replaced.

    Attributes:
        slot: identity of the chunk.
        former, rows: its rows before and after.
    """

    slot: str
    former: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]


class Operation(Protocol):
    """Base class of the operations of a batch job; `pickle` copies an operation to the workers."""

    @property
    def name(self) -> str:
        """Name in the manifest."""
        ...

    @property
    def table(self) -> OutputTable:
        """Output table."""
        ...

    @property
    def has_input_in_dead_letters(self) -> bool:
        """True if a dead letter contains its input row."""
        return True

    def collect_facts(self) -> dict[str, Any]:
        """Return everything that changes results, except the version of agentguard, as JSON data."""
        ...

    def build_processor(self) -> RunProcessor:
        """Build the processor of a worker."""
        ...

    def revise_parts(self, output: BatchOutput, slots: Sequence[str]) -> Iterator[PartRevision]:
        """Revise rows with the help of other rows; by default, revise nothing.

        Args:
            output: the output folder with all parts.
            slots: identities of the chunks in the order of the input.
        """
        del output, slots
        return iter(())
