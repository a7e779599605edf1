"""Counts of files that libraries of agents wrote, and of a file in the shape of tau2-bench's data model.

The libraries are smolagents 1.26, browser-use 0.13, AgentDojo 0.1.35, CrewAI 1.15 and openai-agents 0.24.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.format_counts import FormatCounts, iter_lines


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


def count_crewai(path: Path) -> FormatCounts:
    """Count completed tasks; the number of runs is the number of starts of a task."""
    entries: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    starts = Counter(entry["task_name"] for entry in entries if entry["status"] == "started")
    return FormatCounts(
        runs=max(starts.values()), turns=sum(entry["status"] == "completed" for entry in entries)
    )


def count_crewai_text(path: Path) -> FormatCounts:
    """Count the marks of the text log, which has the entries of the JSON log."""
    text = path.read_text("utf-8")
    first_task = text.partition('task_name="')[2].partition('"')[0]
    return FormatCounts(
        runs=text.count(f'task_name="{first_task}"') // 2, turns=text.count('status="completed"')
    )


def count_agents_trace(path: Path) -> FormatCounts:
    """Count generations, the calls in their outputs, and the results in their inputs, each once."""
    spans = [line for line in iter_lines(path) if line["object"] == "trace.span"]
    generations = [one["span_data"] for one in spans if one["span_data"]["type"] == "generation"]
    inputs = [item for one in generations for item in one["input"]]
    calls = [item for one in generations for item in one["output"] if item["type"] == "function_call"]
    return FormatCounts(
        runs=len({one["trace_id"] for one in spans}),
        turns=len(generations),
        calls=len(calls),
        results=len({item["call_id"] for item in inputs if item.get("type") == "function_call_output"}),
        errors=sum(one["span_data"]["type"] == "function" and one["error"] is not None for one in spans),
    )


def count_agents_state(path: Path) -> FormatCounts:
    """Count the responses of the model, the calls in them, and the generated results, which have no flags."""
    state = json.loads(path.read_text("utf-8"))
    outputs = [item for response in state["model_responses"] for item in response["output"]]
    items = [item["raw_item"] for item in state["generated_items"]]
    return FormatCounts(
        runs=1,
        turns=len(state["model_responses"]),
        calls=sum(item["type"] == "function_call" for item in outputs),
        results=len({item["call_id"] for item in items if item["type"] == "function_call_output"}),
    )


def count_tau2_bench(path: Path) -> FormatCounts:
    """Count messages by role; both speakers call tools, and a message may group several results."""
    counts = FormatCounts()
    for simulation in json.loads(path.read_text("utf-8"))["simulations"]:
        grouped = (message.get("tool_messages") or [message] for message in simulation["messages"])
        messages = [message for group in grouped for message in group]
        results = [message for message in messages if message["role"] == "tool"]
        counts.runs += 1
        counts.turns += sum(message["role"] == "assistant" for message in messages)
        counts.calls += sum(len(message.get("tool_calls") or ()) for message in messages)
        counts.results += len(results)
        counts.errors += sum(result["error"] for result in results)
    return counts
