"""Time of a diagnosis with a loaded model: rules and embedded judge, by length of the run.

Run: .venv/bin/python benchmarks/diagnose.py [--json]
Bar: at most 15 ms for a run of 10 steps, at the median.
"""

import argparse
import json
import random
import statistics
import time

import agentguard
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory

WORDS = ("flight", "booking", "user", "asked", "date", "price", "refund", "policy", "status", "order", "card")
TOOLS = ("get_order", "list_orders", "cancel_order", "refund", "find_user")


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def synthetic_run(steps: int, seed: int) -> Trajectory:
    """Return a run with `steps` steps, some of them failing tool calls, from a seed."""
    rng = random.Random(seed)
    made = [Step(index=0, source=Source.USER, agent="user", content=text(rng, 40))]
    for i in range(1, steps):
        call = ToolCall(id=f"c{i}", name=rng.choice(TOOLS), arguments={"id": f"A{rng.randrange(10**5)}"})
        failed = rng.random() < 0.1
        answer = "Error: order not found" if failed else json.dumps({"status": text(rng, 30)})
        seen = Observation(content=answer, call_id=call.id, tool=call.name)
        made.append(
            Step(
                index=i,
                source=Source.AGENT,
                agent="assistant",
                content=text(rng, 60),
                tool_calls=(call,),
                observations=(seen,),
            )
        )
    tools = tuple(ToolSpec(name=t, parameters={"type": "object"}) for t in TOOLS)
    return Trajectory(
        id=f"run-{seed}", format="synthetic", task=made[0].content, steps=tuple(made), tools=tools
    )


def measure(steps: int, runs: int) -> dict[str, float]:
    """Return milliseconds per run: median, maximum, and the median share of the detectors."""
    total, rules = [], []
    for seed in range(runs):
        trajectory = synthetic_run(steps, seed)
        start = time.perf_counter()
        diagnosis = agentguard.diagnose(trajectory)
        total.append(1e3 * (time.perf_counter() - start))
        rules.append(1e3 * diagnosis.timing["detect_s"])
    return {"median_ms": statistics.median(total), "max_ms": max(total), "rules_ms": statistics.median(rules)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    start = time.perf_counter()
    agentguard.diagnose(synthetic_run(10, seed=-1))
    result: dict[str, object] = {"load_and_first_s": time.perf_counter() - start}
    result |= {str(n): measure(n, 30) for n in (10, 30, 100, 300)}
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"load and first diagnosis {result.pop('load_and_first_s'):.2f} s")
    print(f"{'steps':>6} {'median ms':>10} {'max ms':>8} {'rules ms':>9}")
    for steps, row in result.items():
        print(f"{steps:>6} {row['median_ms']:>10.2f} {row['max_ms']:>8.2f} {row['rules_ms']:>9.2f}")


if __name__ == "__main__":
    main()
