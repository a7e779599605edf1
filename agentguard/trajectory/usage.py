"""Token usage and cost in the spellings of the model APIs and tracing products."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from agentguard.trajectory.model import Source, Trajectory, Usage

_PROMPT = (
    *("prompt_tokens", "input_tokens", "promptTokens", "inputTokens", "promptTokenCount", "inputTokenCount"),
    *("input", "prompt", "tokens_sent", "total_prompt_tokens"),
)
_COMPLETION = (
    *("completion_tokens", "output_tokens", "completionTokens", "outputTokens", "candidatesTokenCount"),
    *("outputTokenCount", "output", "completion", "tokens_received", "total_completion_tokens"),
)
_CACHED = (
    *("cached_tokens", "cache_read_input_tokens", "cachedInputTokens", "cachedContentTokenCount", "cached"),
    *(
        "cache_read_tokens",
        "cacheReadInputTokens",
        "input_cached_tokens",
        "cache_read",
        "cached_input_tokens",
        "total_cached_tokens",
    ),
)
_CACHED_DETAILS = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_COST = (
    *("cost_usd", "total_cost_usd", "costUSD", "response_cost", "total_cost", "totalCost", "cost"),
    *(
        "instance_cost",
        "accumulated_cost",
        "calculated_total_cost",
        "calculatedTotalCost",
        "total_estimated_cost",
    ),
)
_NO_USAGE = Usage()
_SEPARATE_CACHE_COUNTS = ("cache_read_input_tokens", "cache_creation_input_tokens")


def parse_usage(value: Any) -> Usage | None:
    """Return the usage of a usage object in any known spelling; None if it has no known field.

    Anthropic counts cached tokens beside ``input_tokens``; `Usage.prompt_tokens` includes them, as in the
    other APIs.
    """
    if not isinstance(value, Mapping):
        return None
    prompt, cached = _find_number(value, _PROMPT), _find_number(value, _CACHED)
    if cached is None:
        details = next((key for key in _CACHED_DETAILS if isinstance(value.get(key), Mapping)), None)
        cached = None if details is None else _find_number(value[details], _CACHED)
    if prompt is not None and "input_tokens" in value:
        prompt += sum(_find_number(value, (key,)) or 0 for key in _SEPARATE_CACHE_COUNTS)
    cost = _find_number(value, _COST)
    usage = Usage(
        prompt_tokens=_to_count(prompt),
        completion_tokens=_to_count(_find_number(value, _COMPLETION)),
        cached_tokens=_to_count(cached),
        cost_usd=float(cost) if cost is not None else None,
    )
    return None if usage == _NO_USAGE else usage


def sum_usages(usages: Iterable[Usage | None]) -> Usage | None:
    """Return the sum; a count is None if no usage has it. Returns None if there is no usage."""
    known = [usage for usage in usages if usage is not None]
    if not known:
        return None
    counts = {
        name: [value for usage in known if (value := getattr(usage, name)) is not None]
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
    }
    return Usage(**{name: sum(values) if values else None for name, values in counts.items()})


def add_run_totals(run: Trajectory, totals: Iterable[Usage | None]) -> Trajectory:
    """Return the run with the sum of the totals as usage of its last turn.

    A count that any turn has is not added: the totals include it. A total of 0 counts as not recorded.

    Args:
        run: the run.
        totals: usage of the whole run, or of each of its models.
    """
    turn = next((step for step in reversed(run.steps) if step.source is Source.AGENT), None)
    total = sum_usages(totals)
    if turn is None or total is None:
        return run
    recorded = [step.usage for step in run.steps if step.usage is not None]
    missing = {
        name: value
        for name, value in asdict(total).items()
        if value and not any(getattr(usage, name) for usage in recorded)
    }
    if not missing:
        return run
    usage = replace(turn.usage or Usage(), **missing)
    steps = list(run.steps)
    steps[turn.index] = turn.with_usage(usage, turn.model)
    return replace(run, steps=tuple(steps))


def _find_number(value: Mapping[str, Any], keys: tuple[str, ...]) -> float | None:
    for key in keys:
        if key not in value:
            continue
        number = value[key]
        if isinstance(number, (int, float)) and not isinstance(number, bool) and number >= 0:
            return number
    return None


def _to_count(number: float | None) -> int | None:
    return int(number) if number is not None else None
