"""Output table of a batch job: one row per run, with a fixed schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from agentguard._lazy import import_extra
from agentguard.trajectory.model import Trajectory
from agentguard.version import __version__

_IDENTITY_COLUMNS: Final = {
    "source": "string",
    "record": "int64",
    "run_id": "string",
    "format": "string",
    "steps": "int32",
}
_ORIGIN_COLUMNS: Final = {"error": "string", "agentguard_version": "string", "fingerprint": "string"}

MAX_TEXT_CHARS: Final = 2_000
"""Length of a reason, a quotation or an error in a row."""


@dataclass(frozen=True, kw_only=True)
class OutputTable:
    """Output table of an operation.

    Attributes:
        folder: folder of the parts in the output folder.
        result_columns: Parquet types of the columns of the operation, by column.
        outcome: column that the job counts by value; null if the row has no result.
    """

    folder: str
    result_columns: Mapping[str, str]
    outcome: str

    @cached_property
    def columns(self) -> dict[str, str]:
        """Parquet types by column.

        - ``source`` and ``record`` identify the input row: the file below the root of the input, and the
          position. ``run_id``, ``format`` and ``steps`` describe the run.
        - ``error`` is the reason why the row has no result, and null otherwise.
        """
        return {**_IDENTITY_COLUMNS, **self.result_columns, **_ORIGIN_COLUMNS}

    def build_row(
        self, source: str, record: int, fingerprint: str, run: Trajectory, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the row of a run with the values of an operation."""
        described = {"run_id": run.id, "format": run.format, "steps": len(run.steps)}
        return self._build_row(source, record, fingerprint, described | dict(values))

    def build_error_row(self, source: str, record: int, fingerprint: str, error: str) -> dict[str, Any]:
        """Return the row of an input row that has no result."""
        return self._build_row(source, record, fingerprint, {"error": error[:MAX_TEXT_CHARS]})

    def build_arrow_schema(self) -> Any:
        """Return the schema as a ``pyarrow.Schema``. Raises MissingExtra without pyarrow."""
        arrow = import_extra("pyarrow", "batch")
        types = {
            "string": arrow.string(),
            "int32": arrow.int32(),
            "int64": arrow.int64(),
            "double": arrow.float64(),
            "bool": arrow.bool_(),
            "list<string>": arrow.list_(arrow.string()),
            "list<int32>": arrow.list_(arrow.int32()),
            "list<double>": arrow.list_(arrow.float64()),
        }
        return arrow.schema([arrow.field(name, types[kind]) for name, kind in self.columns.items()])

    def _build_row(
        self, source: str, record: int, fingerprint: str, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        empty: dict[str, Any] = {
            name: [] if kind.startswith("list") else None for name, kind in self.columns.items()
        }
        origin = {"source": source, "record": record, "fingerprint": fingerprint}
        return empty | dict(values) | origin | {"agentguard_version": __version__}
