"""Counts of Langfuse traces: the innermost generations, and the tool calls in their outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.format_counts import FormatCounts

_CALL = re.compile(r'"(?:tool_calls|function_call|tool_use|tool_call)"')


def count_file(path: Path) -> FormatCounts:
    """Count the runs of a downloaded trace."""
    rows = json.loads(path.read_text("utf-8"))["observations"]
    generations = [row for row in rows if row["type"] == "GENERATION"]
    parents = {row["parentObservationId"] for row in generations}
    inner = [row for row in generations if row["id"] not in parents]
    outer = {row["parentObservationId"]: row for row in generations if row["id"] in parents}
    outputs = {row["id"]: (row["output"] or "") for row in generations}
    calls = 0
    for row in inner:
        around = [one["id"] for one in outer.values() if one["id"] == row["parentObservationId"]]
        calls += any(_CALL.search(outputs[id]) for id in (row["id"], *around))
    tools = [row for row in rows if row["type"] == "TOOL" or _is_old_tool(row)]
    return FormatCounts(
        runs=1,
        turns=len(inner),
        calls=calls,
        results=len(tools),
        errors=sum(row["level"] == "ERROR" for row in tools),
    )


def _is_old_tool(row: dict[str, str]) -> bool:
    metadata = json.dumps(row["metadata"])
    named = '"ToolMessage"' in (row["output"] or "") and (row["output"] or "").startswith('{"lc"')
    return row["type"] == "SPAN" and (
        'openinference.span.kind\\": \\"TOOL' in metadata or named or '"TOOL\\' in metadata
    )
