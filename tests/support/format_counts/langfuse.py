"""Counts of Langfuse traces: the innermost generations and the tool calls in their outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.support.format_counts import FormatCounts

_CALL = re.compile(r'"(?:tool_calls|function_call)": ?[\[{]|"type": ?"(?:function_call|tool_use|tool_call)"')


def count_traces(folder: Path) -> FormatCounts:
    """Count the downloaded traces of a folder; no output in them has more than one call."""
    totals = FormatCounts()
    for path in folder.glob("*.json"):
        rows = json.loads(path.read_text("utf-8"))["observations"]
        generations = {row["id"]: row for row in rows if row["type"] == "GENERATION"}
        outer = {row["parentObservationId"] for row in generations.values()} & generations.keys()
        inner = [row for row in generations.values() if row["id"] not in outer]
        tools = [row for row in rows if _is_tool(row)]
        totals.runs += 1
        totals.turns += len(inner)
        totals.calls += sum(_has_call(row, generations) for row in inner)
        totals.results += len(tools)
        totals.errors += sum(row["level"] == "ERROR" for row in tools)
    return totals


def _has_call(row: dict[str, Any], generations: dict[str, dict[str, Any]]) -> bool:
    around = generations.get(row["parentObservationId"], {})
    return any(_CALL.search(one.get("output") or "") for one in (row, around))


def _is_tool(row: dict[str, Any]) -> bool:
    """Return True for a tool, also from before Langfuse had the type."""
    is_message = (row["output"] or "").startswith('{"lc"') and '"ToolMessage"' in row["output"]
    is_marked = re.search(r'openinference.span.kind[\\": ]+TOOL', json.dumps(row["metadata"])) is not None
    return row["type"] == "TOOL" or (row["type"] == "SPAN" and (is_message or is_marked))
