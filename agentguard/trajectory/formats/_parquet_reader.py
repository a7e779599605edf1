"""Reader of Parquet files as rows of JSON data, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from agentguard.errors import FormatError
from agentguard.trajectory.formats.base import SourceItem
from agentguard.trajectory.safe_json import normalize_json

_BATCH_ROWS = 64


def iter_parquet_rows(path: Path) -> Iterator[SourceItem]:
    """Yield the rows of a Parquet file. Raises FormatError if it is damaged or pyarrow is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "pyarrow":
            raise
        hint = "pip install 'agentguard[parquet]'"
        raise FormatError("a Parquet file needs pyarrow", file=str(path), hint=hint) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            position = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for row in _cast_times(batch, pyarrow).to_pylist():
                    yield _build_item(position, row)
                    position += 1
    except (OSError, pyarrow.ArrowException) as error:
        raise FormatError(f"not a readable Parquet file: {type(error).__name__}", file=str(path)) from None


def _cast_times(batch: Any, pyarrow: Any) -> Any:
    """Cast nanoseconds, for which Python has no type, to microseconds."""
    fields = [
        field.with_type(pyarrow.timestamp("us", tz=field.type.tz))
        if pyarrow.types.is_timestamp(field.type)
        else field
        for field in batch.schema
    ]
    return batch.cast(pyarrow.schema(fields), safe=False)


def _build_item(position: int, row: dict[str, Any]) -> SourceItem:
    try:
        return SourceItem(position, normalize_json(_convert(row)))
    except FormatError as error:
        return SourceItem(position, error=error)


def _convert(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _convert(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_convert(item) for item in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return float(value) if isinstance(value, Decimal) else value
