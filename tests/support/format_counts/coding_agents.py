"""Counts of runs of coding agents."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.format_counts import FormatCounts


def count_mini_swe_agent(folder: Path) -> FormatCounts:
    """Count fences with mini-swe-agent's language; each user message after the first is a result."""
    counts = FormatCounts()
    for path in folder.glob("*.json"):
        messages = json.loads(path.read_text("utf-8"))
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        counts.runs += 1
        counts.turns += len(answers)
        counts.calls += sum(answer.count("```mswea_bash_command\n") for answer in answers)
        counts.results += sum(message["role"] == "user" for message in messages) - 1
    return counts
