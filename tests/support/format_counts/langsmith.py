"""Counts of LangSmith ingestion batches."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.format_counts import FormatCounts


def count_batch(path: Path) -> FormatCounts:
    """Count the model calls of a batch and the tool calls in their answers."""
    batch = json.loads(path.read_text("utf-8"))
    choices = [choice for patch in batch["patch"] for choice in patch["outputs"]["choices"]]
    return FormatCounts(
        runs=len({run["trace_id"] for run in batch["post"]}),
        turns=sum(run["run_type"] == "llm" for run in batch["post"]),
        calls=sum(len(choice["message"].get("tool_calls") or []) for choice in choices),
    )
