"""Cost of the rules: microseconds per step, and growth of the time with the length of the run.

    python benchmarks/rules.py [--seed 7] [--repeats 3] [--json]

Runs are synthetic, made from the seed: an agent of a warehouse talks to a customer, reads orders and changes
them. Tool results are JSON of very different sizes. Both shapes are measured: calls with their results in the
step, and results as separate steps of the environment.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Sequence

from agentguard.detect.run_view import RunView
from agentguard.detect.runner import IncrementalRunner
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory

SIZES = (10, 100, 1_000, 2_500, 5_000, 10_000)
MEDIAN_BAR_US, RATIO_BAR = 100.0, 2.2

_ITEMS = ("bolt", "bracket", "gasket", "valve", "bearing", "washer", "hinge", "pulley", "spring", "clamp")
_CITIES = ("Lyon", "Graz", "Turin", "Ghent", "Malmo", "Porto")
_PHRASES = (
    "I would like to change the delivery of my order, it should go to another warehouse.",
    "Could you tell me which of these parts are in stock and what they cost together?",
    "Yes, please go ahead with the change as you described it.",
    "Thank you. I also need to know when the second parcel will arrive.",
    "No, that is too expensive. Is there a cheaper part that fits the same machine?",
)
_ORDER = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "count": {"type": "integer", "minimum": 0, "maximum": 500},
    },
    "required": ["order_id"],
}
TOOLS = (
    ToolSpec(name="get_order", description="Look an order up.", parameters=_ORDER),
    ToolSpec(name="find_parts", description="Find parts by kind and city.", parameters={"type": "object"}),
    ToolSpec(name="change_order", description="Change an order.", parameters=_ORDER),
)


def make_run(steps: int, *, seed: int, folded: bool = True) -> Trajectory:
    """Return a run of ``steps`` steps; equal seeds give equal runs."""
    rng = random.Random(seed)
    made: list[Step] = []
    while len(made) < steps:
        order = f"#W{rng.randrange(10**6, 10**7)}"
        _add(made, Source.USER, "customer", f"{rng.choice(_PHRASES)} It is about order {order}.")
        for _ in range(rng.randrange(1, 4)):
            _call(made, rng, order, folded)
        total = rng.randrange(100, 9_000)
        _add(made, Source.AGENT, "assistant", _answer(rng, order, total))
    return Trajectory(
        id=f"synthetic-{steps}-{seed}",
        format="synthetic",
        task="Help customers of the warehouse with their orders and parts.",
        steps=tuple(made[:steps]),
        tools=TOOLS,
        system_prompts={
            "": "You help customers of a warehouse. Confirm every change with the customer. " * 20
        },
    )


def _add(made: list[Step], source: Source, agent: str, content: str, **more: object) -> None:
    made.append(Step(index=len(made), source=source, agent=agent, content=content, **more))  # type: ignore[arg-type]


def _call(made: list[Step], rng: random.Random, order: str, folded: bool) -> None:
    tool = rng.choice(TOOLS).name
    arguments = {"order_id": order, "count": rng.randrange(1, 90)}
    raw = json.dumps(arguments)
    result = _result(rng, order)
    if folded:
        call = ToolCall(id=f"c{len(made)}", name=tool, arguments=arguments, raw_arguments=raw)
        seen = Observation(content=result, call_id=call.id, tool=tool)
        _add(made, Source.AGENT, "assistant", "", tool_calls=(call,), observations=(seen,))
        return
    _add(made, Source.AGENT, "assistant", f"I look this up first.\n\n```python\n{tool}(**{raw})\n```")
    _add(made, Source.ENVIRONMENT, "terminal", result)


def _result(rng: random.Random, order: str) -> str:
    if rng.random() < 0.04:
        return f"Error: order {order} is being changed by somebody else"
    rows = min(40, int(rng.lognormvariate(1.2, 0.9)) + 1)
    parts = [
        {
            "part": f"{rng.choice(_ITEMS)}-{rng.randrange(1_000, 9_999)}",
            "city": rng.choice(_CITIES),
            "price": round(rng.uniform(1, 400), 2),
            "stock": rng.randrange(500),
            "ready": f"2025-0{rng.randrange(1, 10)}-1{rng.randrange(10)}",
        }
        for _ in range(rows)
    ]
    return json.dumps({"order_id": order, "parts": parts})


def _answer(rng: random.Random, order: str, total: int) -> str:
    lines = [
        f"- **{rng.choice(_ITEMS)}** from {rng.choice(_CITIES)}, {rng.randrange(2, 90)} pieces"
        for _ in range(rng.randrange(1, 6))
    ]
    return "\n".join(
        [
            f"Here is what I found for order {order}:",
            *lines,
            f"Together: ${total}.",
            "Shall I go on with the change?",
        ]
    )


def measure(trajectory: Trajectory) -> tuple[list[float], float]:
    """Return ``(CPU seconds of each step, CPU seconds of the whole run)`` with all rules on."""
    watcher = IncrementalRunner(RunView.from_trajectory(trajectory))
    costs: list[float] = []
    gc.collect()
    start = time.process_time()
    for step in trajectory.steps:
        before = time.process_time()
        watcher.observe(step)
        costs.append(time.process_time() - before)
    watcher.finish()
    total = time.process_time() - start
    if watcher.failures:
        raise SystemExit(f"detectors failed: {watcher.failures[:3]}")
    return costs, total


def row(steps: int, *, seed: int, repeats: int, folded: bool) -> dict[str, float | int | str]:
    """Return one line of the table, from the repeat with the least disturbance."""
    measured = [measure(make_run(steps, seed=seed, folded=folded)) for _ in range(repeats)]
    costs, total = min(measured, key=lambda pair: pair[1])
    ranked = sorted(costs)
    return {
        "shape": "folded" if folded else "messages",
        "steps": steps,
        "median_us": statistics.median(ranked) * 1e6,
        "mean_us": total / steps * 1e6,
        "p99_us": ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))] * 1e6,
        "total_ms": total * 1e3,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description="Cost of the rules.")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(argv)
    rows = [
        row(steps, seed=chosen.seed, repeats=chosen.repeats, folded=folded)
        for folded in (True, False)
        for steps in SIZES
    ]
    ratios = {
        shape: max(
            float(b["total_ms"]) / float(a["total_ms"])
            for a in rows
            for b in rows
            if a["shape"] == b["shape"] == shape
            and b["steps"] == 2 * int(a["steps"])
            and int(a["steps"]) >= 1_000
        )
        for shape in ("folded", "messages")
    }
    met = max(float(r["median_us"]) for r in rows if int(r["steps"]) >= 100) <= MEDIAN_BAR_US
    met = met and max(ratios.values()) <= RATIO_BAR
    if chosen.json:
        print(json.dumps({"rows": rows, "ratio_double_length": ratios, "met": met}))
    else:
        print(f"{'shape':10}{'steps':>8}{'median µs':>12}{'mean µs':>10}{'p99 µs':>10}{'total ms':>11}")
        for r in rows:
            figures = f"{r['median_us']:12.1f}{r['mean_us']:10.1f}{r['p99_us']:10.1f}{r['total_ms']:11.1f}"
            print(f"{r['shape']:10}{r['steps']:8}{figures}")
        worst = ", ".join(f"{shape} {ratio:.2f}" for shape, ratio in ratios.items())
        print(f"time(2n)/time(n), worst: {worst} (bar {RATIO_BAR}); median bar {MEDIAN_BAR_US:g} µs a step")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
