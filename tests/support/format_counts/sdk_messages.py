"""Counts of messages and run states of SDKs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.format_counts import FormatCounts


def count_anthropic_response(path: Path) -> FormatCounts:
    """Count the blocks of one response; hosted tools write their results into it."""
    blocks = json.loads(path.read_text("utf-8"))["content"]
    results = [block for block in blocks if block["type"].endswith("_tool_result")]
    return FormatCounts(
        runs=1,
        turns=1,
        calls=sum(block["type"].endswith("tool_use") for block in blocks),
        results=len(results),
        errors=sum(
            isinstance(block["content"], dict) and block["content"]["type"].endswith("_error")
            for block in results
        ),
    )


def count_run_states(folder: Path) -> FormatCounts:
    """Count the generated items of run states; an approval repeats its call.

    A result without its call in the state is a step of the environment.
    """
    totals = FormatCounts()
    for path in folder.glob("*.json"):
        state = json.loads(path.read_text("utf-8"))
        items = [item["raw_item"] for item in state["session_items"] or state["generated_items"]]
        calls = {item["call_id"] for item in items if item.get("type", "").endswith("_call")}
        totals.runs += 1
        totals.turns += any(item.get("type") != "function_call_output" for item in items)
        totals.calls += len(calls)
        totals.results += sum(
            item.get("type") == "function_call_output" and item["call_id"] in calls for item in items
        )
    return totals
