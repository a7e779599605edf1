"""Counts of the development data sets."""

from __future__ import annotations

import gzip
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.format_counts import FormatCounts, iter_lines


def count_intercode(folder: Path) -> FormatCounts:
    """Count an action and an observation a turn."""
    totals = FormatCounts()
    for path in folder.glob("*.json.gz"):
        for run in json.loads(gzip.decompress(path.read_bytes())).values():
            totals.runs += 1
            totals.turns += len(run["turn_history"]["actions"])
            totals.calls += len(run["turn_history"]["actions"])
            totals.results += len(run["turn_history"]["observations"])
    return totals


def count_stepshield(folder: Path) -> FormatCounts:
    """Count a call a step; an observation may be null."""
    totals = FormatCounts()
    for run in iter_lines(folder / "runs.jsonl.gz"):
        totals.runs += 1
        totals.turns += len(run["steps"])
        totals.calls += len(run["steps"])
        totals.results += sum(step["observation"] is not None for step in run["steps"])
    return totals


def count_alfworld(folder: Path) -> FormatCounts:
    """Count lines of action as calls, and the other lines up to the next ">" as one result."""
    totals = FormatCounts()
    for path in folder.glob("*.jsonl"):
        for run in iter_lines(path):
            totals.runs += 1
            lines = run["traj"].split("\n")
            first = next(i for i, line in enumerate(lines) if line.startswith(">"))
            kinds = [_kind_of_line(line) for line in lines[first:] if line.strip(" >")]
            pairs = list(pairwise(kinds))
            totals.calls += kinds.count("action")
            totals.results += pairs.count(("action", "observation"))
            # A turn ends with its action or, without an action, with an observation or the text.
            ends = pairs.count(("thought", "observation")) + (kinds[-1] == "thought")
            totals.turns += kinds.count("action") + ends
    return totals


def count_claude_code(folder: Path) -> FormatCounts:
    """Count distinct message ids as turns and content blocks as calls and results."""
    totals = FormatCounts()
    for run in iter_lines(folder / "runs.jsonl.gz"):
        totals.runs += 1
        totals.turns += len({e["message"]["id"] for e in run["events"] if e["type"] == "assistant"})
        for event in run["events"]:
            content = event.get("message", {}).get("content", [])
            blocks = [block for block in content if isinstance(block, dict)]
            totals.calls += sum(block["type"] == "tool_use" for block in blocks)
            results = [block for block in blocks if block["type"] == "tool_result"]
            totals.results += len(results)
            totals.errors += sum(block.get("is_error") is True for block in results)
    return totals


def count_atif_trials(folder: Path) -> FormatCounts:
    """Count ATIF steps of the agent; the error flag of a result is in the step's extra fields."""
    totals = FormatCounts()
    for run in iter_lines(folder / "runs.jsonl.gz"):
        totals.runs += 1
        for step in run["trajectory"]["steps"]:
            totals.turns += step["source"] == "agent"
            totals.calls += len(step.get("tool_calls") or ())
            totals.results += len((step.get("observation") or {}).get("results", ()))
            totals.errors += step["extra"].get("tool_result_is_error") is True
    return totals


def _kind_of_line(line: str) -> str:
    if not line.startswith(">"):
        return "observation"
    return "thought" if re.match(r"> ?(think|actionpath)\s*:", line, re.IGNORECASE) else "action"


def count_tau_bench(folder: Path) -> FormatCounts:
    """Count the messages of ``traj`` by role, and the calls in them."""
    runs = [run for path in folder.glob("*.json") for run in json.loads(path.read_text("utf-8"))]
    return _count_chats([run["traj"] for run in runs])


def count_livemcpbench(folder: Path) -> FormatCounts:
    """Count the messages by role, and the calls in them."""
    return _count_chats([run["messages"] for run in iter_lines(folder / "runs.jsonl.gz")])


def _count_chats(chats: list[list[dict[str, Any]]]) -> FormatCounts:
    messages = [message for chat in chats for message in chat]
    return FormatCounts(
        runs=len(chats),
        turns=sum(message["role"] == "assistant" for message in messages),
        calls=sum(len(message.get("tool_calls") or ()) for message in messages),
        results=sum(message["role"] == "tool" for message in messages),
    )
