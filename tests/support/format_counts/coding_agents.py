"""Counts of runs of coding agents."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from tests.support.format_counts import FormatCounts, iter_lines


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


def count_claude_code(folder: Path) -> FormatCounts:
    """Count session files, and exports with ``loglines``; one line with content blocks is one turn."""
    totals = FormatCounts()
    for path in sorted(folder.iterdir()):
        if path.suffix == ".jsonl":
            rows = list(iter_lines(path))
        elif path.suffix == ".json":
            rows = json.loads(path.read_text("utf-8"))["loglines"]
        else:
            continue
        totals.runs += 1
        totals.turns += sum(row["type"] == "assistant" for row in rows)
        for block in (block for row in rows for block in _list_blocks(row)):
            totals.calls += block["type"] == "tool_use"
            totals.results += block["type"] == "tool_result"
            totals.errors += block.get("is_error") is True
    return totals


def _list_blocks(row: dict[str, Any]) -> list[dict[str, Any]]:
    content = row.get("message", {}).get("content")
    return content if isinstance(content, list) else []


def count_swe_agent(folder: Path) -> FormatCounts:
    """Count the entries of the trajectory, or the answers of a file with a history only."""
    counts = FormatCounts()
    for path in folder.glob("*.traj"):
        data = json.loads(path.read_text("utf-8"))
        answers = [one for one in data["history"] if one["role"] == "assistant" and not one.get("is_demo")]
        entries = data.get("trajectory") or answers
        inputs = [one for one in data["history"] if one["role"] in ("user", "tool")]
        counts.runs += 1
        counts.turns += len(entries)
        counts.calls += sum(len(one.get("tool_calls") or [1]) for one in entries if one["action"].strip())
        counts.results += len(entries) if "trajectory" in data else len(inputs) - 1
    return counts


def count_inspect(folder: Path) -> FormatCounts:
    """Count distinct answers, their calls and the tool messages of the samples; scorers are left out.

    The samples of these files have no compaction, so every answer is in the state or is a model event.
    """
    counts = FormatCounts()
    for path in sorted(folder.iterdir()):
        for sample in _read_inspect_samples(path):
            counts.runs += 1
            answers = [one for one in sample["messages"] if one["role"] == "assistant"]
            results = [one for one in sample["messages"] if one["role"] == "tool"]
            counts.turns += len(answers)
            counts.calls += sum(len(one.get("tool_calls") or ()) for one in answers)
            counts.results += len(results)
            counts.errors += sum("error" in one for one in results)
    return counts


def _read_inspect_samples(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".json":
        return list(json.loads(path.read_text("utf-8"))["samples"])
    if path.suffix != ".eval":
        return []
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.startswith("samples/")]
        return [json.loads(archive.read(name)) for name in names]


def count_openhands(folder: Path) -> FormatCounts:
    """Count answers by the id of the response, and observations by ``cause``."""
    counts = FormatCounts()
    for path in folder.glob("*.json"):
        events = json.loads(path.read_text("utf-8"))
        answers, causes = set(), set()
        counts.runs += 1
        for event in events:
            metadata = event.get("tool_call_metadata")
            if event["source"] == "agent" and event.get("action") == "message":
                answers.add(event["id"])
            elif "action" in event and metadata:
                answers.add(metadata["model_response"]["id"])
                counts.calls += 1
                causes.add(event["id"])
            elif "observation" in event and event.get("cause") in causes:
                counts.results += 1
                counts.errors += event.get("success") is False or event["observation"] == "error"
        counts.turns += len(answers)
    return counts
