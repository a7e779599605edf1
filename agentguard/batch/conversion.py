"""Conversion to a format as an operation of a batch job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from agentguard.batch.operation import Operation, RunOutput, RunProcessor
from agentguard.batch.output_table import OutputTable
from agentguard.errors import ConfigError
from agentguard.plugins import format_unknown_name
from agentguard.trajectory.formats.base import WritableFormat, formats
from agentguard.trajectory.model import Record
from agentguard.trajectory.redaction import Redactor
from agentguard.trajectory.safe_json import dumps

RUN_TABLE: Final = OutputTable(
    folder="runs",
    result_columns={"target": "string", "document": "string", "redacted": "int32"},
    outcome="target",
)
"""Table of converted runs.

- ``document`` is the run in the format ``target`` as JSON; an event log is a list of events.
- ``redacted`` is the number of replaced secrets; null without redaction.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOperation(Operation):
    """Conversion of each run to a format.

    Attributes:
        target: name of the format, such as ``"event_log"``.
        has_annotation: also write the annotations of the runs.
        redaction_patterns: patterns of own secrets by kind; None redacts nothing.

    Raises:
        ConfigError: the format can only be read.
        UnknownPlugin: the format is unknown.
    """

    target: str
    has_annotation: bool = False
    redaction_patterns: tuple[tuple[str, str], ...] | None = None
    name: ClassVar[str] = "convert"
    table: ClassVar[OutputTable] = RUN_TABLE

    def __post_init__(self) -> None:
        get_writable_format(self.target)

    @property
    def has_input_in_dead_letters(self) -> bool:
        """True without redaction: an unreadable row cannot be redacted."""
        return self.redaction_patterns is None

    def collect_facts(self) -> dict[str, Any]:
        """Return the target, and the settings of annotations and redaction."""
        patterns = self.redaction_patterns
        return {
            "target": self.target,
            "annotation": self.has_annotation,
            "redaction": None if patterns is None else [list(pattern) for pattern in patterns],
        }

    def build_processor(self) -> ConversionProcessor:
        """Build the processor of a worker."""
        return ConversionProcessor(self)


class ConversionProcessor(RunProcessor):
    """Processor that writes single runs in a format."""

    def __init__(self, operation: ConversionOperation) -> None:
        self._operation = operation
        self._format = get_writable_format(operation.target)
        patterns = operation.redaction_patterns
        self._redactor = None if patterns is None else Redactor(patterns=dict(patterns))

    def process(self, record: Record) -> RunOutput:
        """Convert a run."""
        redacted: int | None = None
        if self._redactor is not None:
            redaction = self._redactor.redact(record)
            record, redacted = redaction.record, sum(redaction.counts.values())
        document = self._format.dump(record, annotation=self._operation.has_annotation)
        values = {"target": self._operation.target, "document": dumps(document).decode()}
        return RunOutput(values=values | {"redacted": redacted})


def get_writable_format(name: str) -> WritableFormat:
    """Return a format that can write runs. Raises ConfigError with the names of all such formats."""
    if name in formats():
        format = formats().get(name)
        if isinstance(format, WritableFormat):
            return format
    writable = [one for one in formats() if isinstance(formats().get(one), WritableFormat)]
    if name in formats():
        raise ConfigError(f"{name} can only be read; runs can be written as {', '.join(writable)}")
    raise ConfigError(f"runs cannot be written as {format_unknown_name(name, writable)}")
