"""What the guard costs a turn of a running agent: rules and ledger, in process, nothing found.

Run: .venv/bin/python benchmarks/guard.py [--turns N] [--json]
A turn is all events of a session: boundary, propose, the ledger before and after a tool, commit.
"""

import argparse
import json
import statistics
import time

from agentguard.guard import Guard
from agentguard.recover.base import Capabilities
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec, Trajectory

BAR_US = 300.0


def turns(count: int) -> list[float]:
    """Microseconds of each turn."""
    guard = Guard()
    guard.tool(effect="write", name="book")(len)
    parameters = {"type": "object", "properties": {"seat": {"type": "integer"}, "row": {"type": "string"}}}
    tools = (ToolSpec(name="book", description="Book a seat.", parameters=parameters),)
    meta = Trajectory(id="r", format="event_log", task="Book every seat of the hall.", steps=(), tools=tools)
    session = guard.session(meta, Capabilities(reject=True, truncate=True))
    session.commit(Step(index=0, source=Source.USER, agent="user", content=meta.task))
    taken = []
    for number in range(count):
        call = ToolCall(id=f"c{number}", name="book", arguments={"seat": number, "row": f"row {number % 40}"})
        turn = Step(
            index=0, source=Source.AGENT, agent="clerk", content=f"Next is seat {number}.", tool_calls=(call,)
        )
        seen = Observation(content=f"seat {number} is booked", call_id=call.id, tool="book")
        whole = Step(
            index=0,
            source=Source.AGENT,
            agent="clerk",
            content=turn.content,
            tool_calls=(call,),
            observations=(seen,),
        )
        start = time.perf_counter()
        session.boundary()
        session.propose(turn)
        claim = session.begin_tool("book", call.arguments or {})
        session.end_tool(claim, seen.content)
        session.commit(whole)
        taken.append((time.perf_counter() - start) * 1e6)
    assert not session.recoveries, "nothing was to be found"
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    taken = turns(args.turns)
    found = {
        "turns": args.turns,
        "median_us": round(statistics.median(taken), 1),
        "p99_us": round(sorted(taken)[int(0.99 * len(taken))], 1),
        "last_tenth_median_us": round(statistics.median(taken[-len(taken) // 10 :]), 1),
        "bar_us": BAR_US,
    }
    print(json.dumps(found) if args.json else "  ".join(f"{k} {v}" for k, v in found.items()))


if __name__ == "__main__":
    main()
