"""Figures from the results of the rounds: medians, the gateways' overhead, and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.gateway.gateways import PEERS

OURS, PURE = "agentguard", "agentguard, pure gateway"
Rows = Mapping[str, Mapping[str, list[dict[str, Any]]]]


def report(
    found: Rows,
    *,
    cold: Mapping[str, dict[str, float]],
    missing: Mapping[str, str],
    memory: Mapping[str, list[dict[str, float]]],
) -> dict[str, Any]:
    """Return all figures, as `--json` prints them; see README.md."""
    medians = {name: {case: _median(rows) for case, rows in cases.items()} for name, cases in found.items()}
    gateways = {
        name: {**cold.get(name, {}), **{case: _with_rates(row) for case, row in cases.items()}}
        for name, cases in medians.items()
    }
    return {
        "ratio": {peer: _ratios(gateways, OURS, peer) for peer in PEERS},
        "ratio_worker": {peer: _ratios(gateways, OURS, peer, worker=True) for peer in PEERS},
        "ratio_pure": {peer: _ratios(gateways, PURE, peer) for peer in PEERS},
        "added": {name: _added(medians, name) for name in medians if name != "backend"},
        "held_tool_call_ms": _difference(medians, OURS, PURE, "tool streams 1", "whole_ms"),
        "gateways": gateways,
        "missing": dict(missing),
        "memory": {name: _flat(samples) for name, samples in memory.items()},
    }


def _median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    good = [row for row in rows if "failed" not in row]
    if not good:
        return {"failed": rows[0]["failed"]}
    names = sorted({name for row in good for name in row})
    values = {name: [row[name] for row in good if row.get(name) is not None] for name in names}
    return {name: max(v) if name == "errors" else statistics.median(v) for name, v in values.items() if v}


def _with_rates(row: dict[str, Any]) -> dict[str, Any]:
    """Add requests or streams per second and core: the rate of a core without other work."""
    cost = row.get("cpu_us", 0.0) + row.get("helper_us", 0.0)
    return {**row, "per_core": 1e6 / cost} if cost else row


def _ratios(
    gateways: Mapping[str, Any], ours: str, peer: str, *, worker: bool = False
) -> dict[str, float | None]:
    """Return the ratio of our requests per second and core to theirs; None if one was not measured.

    Helpers are included, unless the caller asks for the worker alone.
    """
    found: dict[str, float | None] = {}
    for case in sorted(
        {case for cases in gateways.values() for case in cases if case.startswith("requests ")}
    ):
        rows = [gateways.get(name, {}).get(case, {}) for name in (ours, peer)]
        costs = [row.get("cpu_us", 0) + (0 if worker else row.get("helper_us", 0)) for row in rows]
        found[case.split()[1]] = round(costs[1] / costs[0], 3) if all(costs) else None
    return found


def _added(medians: Mapping[str, Any], name: str) -> dict[str, float | None]:
    """Return the milliseconds that a gateway adds to the backend alone, at one connection."""
    return {
        "p50_ms": _difference(medians, name, "backend", "requests 1", "p50_ms"),
        "first_ms": _difference(medians, name, "backend", "streams 1", "first_ms"),
        "stream_ms": _difference(medians, name, "backend", "streams 1", "whole_ms"),
        "tool_stream_ms": _difference(medians, name, "backend", "tool streams 1", "whole_ms"),
    }


def _difference(medians: Mapping[str, Any], one: str, other: str, case: str, figure: str) -> float | None:
    values = [medians.get(name, {}).get(case, {}).get(figure) for name in (one, other)]
    return None if None in values else round(values[0] - values[1], 4)


def _flat(samples: list[dict[str, float]]) -> dict[str, Any]:
    """Return memory at a fifth of the time, at the end, and their ratio; samples are in the order of time."""
    sums = [sample["worker_mb"] + sample["helpers_mb"] for sample in samples]
    early, late = sums[len(sums) // 5], sums[-1]
    return {
        "early_mb": early,
        "late_mb": late,
        "ratio": late / early,
        "most_mb": max(sums),
        "most_pss_mb": max(sample["pss_mb"] for sample in samples),
        "samples": samples,
    }


def table(told: Mapping[str, Any]) -> str:
    """Return the figures as a text table."""
    lines = []
    for name, figures in told["gateways"].items():
        lines.append(f"\n{name}")
        for case, row in figures.items():
            if isinstance(row, dict):
                cells = (f"{key} {_format_value(value)}" for key, value in row.items() if value is not None)
                lines.append(f"  {case:<16} " + "  ".join(cells))
            else:
                lines.append(f"  {case:<16} {_format_value(row)}")
    for name in ("ratio", "ratio_worker", "ratio_pure", "added", "memory"):
        for peer, row in told[name].items():
            cells = (f"{key} {_format_value(value)}" for key, value in row.items() if key != "samples")
            lines.append(f"{name:<10} {peer:<26} " + "  ".join(cells))
    lines.append(f"a held tool call adds {_format_value(told['held_tool_call_ms'])} ms to its stream")
    lines.extend(f"{name}: not measured: {reason}" for name, reason in told["missing"].items())
    return "\n".join(lines)


def _format_value(value: Any) -> str:
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and value < 1000
        else (f"{value:,.0f}" if isinstance(value, int | float) else str(value))
    )
