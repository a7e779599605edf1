"""Counts of files that smolagents 1.26, browser-use 0.13 and AgentDojo 0.1.35 wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.format_counts import FormatCounts


def count_smolagents(path: Path) -> FormatCounts:
    """Count plans and numbered steps; a call that failed is in the model's message only."""
    counts = FormatCounts(runs=1)
    for step in json.loads(path.read_text("utf-8")):
        if "task" in step:
            continue
        counts.turns += 1
        calls = step.get("tool_calls") or (step.get("model_output_message") or {}).get("tool_calls") or []
        error = step.get("error") is not None
        counts.calls += len(calls)
        counts.results += bool(calls)
        counts.errors += bool(calls) and error
    return counts


def count_browser_use(path: Path) -> FormatCounts:
    """Count entries with an output, their actions and the results of actions."""
    counts = FormatCounts(runs=1)
    for entry in json.loads(path.read_text("utf-8"))["history"]:
        if entry["model_output"] is not None:
            counts.turns += 1
            counts.calls += len(entry["model_output"]["action"])
            counts.results += len(entry["result"])
            counts.errors += sum("error" in result for result in entry["result"])
    return counts


def count_agentdojo(path: Path) -> FormatCounts:
    """Count messages by role and the calls in them."""
    messages: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["messages"]
    results = [message for message in messages if message["role"] == "tool"]
    return FormatCounts(
        runs=1,
        turns=sum(message["role"] == "assistant" for message in messages),
        calls=sum(len(message.get("tool_calls") or ()) for message in messages),
        results=len(results),
        errors=sum(result["error"] is not None for result in results),
    )
