"""Speed and memory of reading Claude Code sessions.

Run: .venv/bin/python benchmarks/claude_code.py [--megabytes 50] [--sessions 25] [--json]
Bar: 50 MB in at most 5 s of processor time; memory is bounded by the largest session.
The benchmark generates the sessions: parallel calls, large results with their copy in ``toolUseResult``,
edited prompts and hook progress.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Record

WORDS = [
    "ledger",
    "harbour",
    "valve",
    "parser",
    "index",
    "queue",
    "kiln",
    "ferry",
    "timetable",
    "branch",
    "token",
    "socket",
    "digest",
]


def generate_session(number: int, size: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yield the lines of one session of about ``size`` bytes."""
    session, written, line, parent = f"session-{number}", 0, 0, None
    head = {"userType": "external", "cwd": "/srv/app", "sessionId": session, "version": "2.0.14"}
    turn = 0
    while written < size:
        for event in generate_turn(session, turn, rng):
            event = {"parentUuid": parent, "isSidechain": False, **head, "gitBranch": "main", **event}
            event |= {"uuid": f"{session}-{line}", "timestamp": f"2026-01-02T03:04:{line % 60:02d}.000Z"}
            if turn % 40 == 39 and event["type"] == "user" and "toolUseResult" not in event:
                event["parentUuid"] = f"{session}-{max(0, line - 20)}"  # an edited prompt begins a branch
            yield event
            parent, line = event["uuid"], line + 1
            written += len(json.dumps(event))
        turn += 1


def generate_turn(session: str, turn: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yield the lines of one model message with two calls, their results and hook progress."""
    if turn % 10 == 9 or turn == 0:
        yield {"type": "user", "message": {"role": "user", "content": write_text(rng, 40)}}
    message = {
        "id": f"{session}-m{turn}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
    }
    message |= {"stop_reason": "tool_use", "usage": {"input_tokens": 9, "output_tokens": 200}}
    parts = [
        {"type": "thinking", "thinking": write_text(rng, 60)},
        {"type": "text", "text": write_text(rng, 30)},
    ]
    calls = [f"{session}-c{turn}-{i}" for i in range(2)]
    parts += [
        {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": write_text(rng, 12)}}
        for id in calls
    ]
    for part in parts:
        yield {"type": "assistant", "message": {**message, "content": [part]}}
    for id in calls:
        text = write_text(rng, rng.choice((20, 200, 600)))
        content = [{"tool_use_id": id, "type": "tool_result", "content": text, "is_error": False}]
        yield {
            "type": "user",
            "message": {"role": "user", "content": content},
            "toolUseResult": {"stdout": text, "stderr": "", "interrupted": False},
        }
    yield {"type": "progress", "data": {"type": "hook_progress", "hookName": "PostToolUse"}}


def write_text(rng: random.Random, words: int) -> str:
    """Return a text of ``words`` words."""
    return " ".join(rng.choices(WORDS, k=words))


def write_sessions(path: Path, megabytes: float, sessions: int) -> None:
    """Write all sessions into one file."""
    rng = random.Random(7)
    with path.open("w") as file:
        for number in range(sessions):
            for event in generate_session(number, int(megabytes * 1e6 / sessions), rng):
                file.write(json.dumps(event) + "\n")


def measure(path: Path) -> dict[str, float]:
    """Return the size of the file, and the processor time and the peak of memory of reading it."""
    start = time.process_time()
    steps = sum(
        len(record.trajectory.steps) + sum(len(branch.steps) for branch in record.trajectory.branches)
        for record in read(path)
        if isinstance(record, Record)
    )
    seconds = time.process_time() - start
    tracemalloc.start()
    for _ in read(path):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    megabytes = path.stat().st_size / 1e6
    return {"megabytes": megabytes, "steps": steps, "cpu_s": seconds, "peak_mb": peak / 1e6}


def main() -> None:
    """Generate the sessions, read them and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--sessions", type=int, default=25)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sessions.jsonl")
        write_sessions(path, arguments.megabytes, arguments.sessions)
        figures = measure(path)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:10} {value:.2f}")


if __name__ == "__main__":
    main()
