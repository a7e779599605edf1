"""Cost of the collector: processor time per captured request, in one process, without sockets.

Run: python -m benchmarks.gateway.capture [--repeat 5]

Each scenario passes the same frames to a new collector with a new store. ``us`` is the least processor time
of all threads per request, rows and diagnoses included; ``main_us`` is that of the thread that reads frames.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentguard_server.proxy.capture.collector import CaptureCollector
from agentguard_server.proxy.capture.protocol import (
    HEADER_BYTES,
    CapturedExchange,
    CollectorConfig,
    decode_messages,
    encode_frame,
)
from agentguard_server.proxy.garbage_collector import tune_garbage_collector
from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions

from agentguard.store import Store
from benchmarks.gateway.backend import CALL, said

FRAME_MESSAGES = 50
"""Messages of 20 ms at 2,500 requests a second."""

SYSTEM = {"role": "system", "content": "You plan journeys by train and answer in short sentences. " * 12}
Message = dict[str, Any]


def exchange(messages: list[Message], answer: Message, *, tools: bool = False) -> CapturedExchange:
    """Build the message of one request and its answer."""
    body: dict[str, Any] = {"model": "mock", "messages": messages}
    if tools:
        body["tools"] = [{"type": "function", "function": {"name": "find_trains", "parameters": {}}}]
    finish = "tool_calls" if answer.get("tool_calls") else "stop"
    choice = {"index": 0, "message": answer, "finish_reason": finish}
    usage = {"prompt_tokens": 400, "completion_tokens": 40, "total_tokens": 440}
    reply = {"id": "chatcmpl-0", "model": "mock", "choices": [choice], "usage": usage}
    return CapturedExchange(
        "bench", "", "chat", False, json.dumps(body).encode(), json.dumps(reply).encode(), 0.0, 0.0
    )


def conversations(first: int, count: int) -> list[list[CapturedExchange]]:
    """Build the conversations of `load.lua`: six turns without tools, many side by side."""
    lanes: list[list[CapturedExchange]] = []
    for lane in range(first, first + count):
        task = f"Journey {lane}: how do I get from Bern to the sea?"
        history: list[Message] = [SYSTEM, {"role": "user", "content": task}]
        lanes.append([])
        for turn in range(1, 7):
            answer = {"role": "assistant", "content": said(turn)}
            lanes[-1].append(exchange(history, answer))
            prompt = f"And after that, what is the next connection from there? Turn {turn}."
            history = [*history, answer, {"role": "user", "content": prompt}]
    return lanes


def agent_runs(first: int, count: int, *, turns: int, result_bytes: int) -> list[list[CapturedExchange]]:
    """Build runs of an agent that calls a tool in every turn but the last."""
    lanes: list[list[CapturedExchange]] = []
    for lane in range(first, first + count):
        history: list[Message] = [SYSTEM, {"role": "user", "content": f"Journey {lane}: to the sea."}]
        lanes.append([])
        for turn in range(turns):
            call = {**CALL, "id": f"call_{lane}_{turn}"}
            call["function"] = {
                "name": "find_trains",
                "arguments": json.dumps({"from": "Bern", "to": f"stop {turn}"}),
            }
            answer: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
            if turn == turns - 1:
                answer = {"role": "assistant", "content": said(1)}
            lanes[-1].append(exchange(history, answer, tools=True))
            line = f"{lane} {turn}: a train with free seats leaves at 9:{turn % 60:02}\n"
            result = (line * (result_bytes // len(line) + 1))[:result_bytes]
            history = [*history, answer, {"role": "tool", "tool_call_id": call["id"], "content": result}]
    return lanes


SCENARIOS: dict[str, Callable[[int], list[list[CapturedExchange]]]] = {
    "conversations, 6 turns": lambda first: conversations(first, 256),
    "agent runs, 16 turns": lambda first: agent_runs(first, 24, turns=16, result_bytes=400),
    "long runs, 50 turns, 200 KB": lambda first: agent_runs(first, 4, turns=50, result_bytes=4000),
}
"""Scenarios by name; the argument is the number of the first lane, from which its texts derive."""


def interleaved(lanes: list[list[CapturedExchange]]) -> list[CapturedExchange]:
    return [lane[turn] for turn in range(max(map(len, lanes))) for lane in lanes if turn < len(lane)]


def measure(messages: list[CapturedExchange]) -> dict[str, float]:
    """Return the processor time per request in microseconds, and what was stored."""
    chunks = [messages[at : at + FRAME_MESSAGES] for at in range(0, len(messages), FRAME_MESSAGES)]
    frames = [encode_frame(chunk)[HEADER_BYTES:] for chunk in chunks]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "runs.db")
        capture = CaptureOptions(store=path)
        config = CollectorConfig(socket_path="", capture=capture, guard=GuardOptions())
        with Store.open(path) as store:
            collector = CaptureCollector(config, store)
            before, main_before = time.process_time(), time.thread_time()
            for frame in frames:
                collector.handle_frame(decode_messages(frame))
            main = time.thread_time() - main_before
            collector.close()
            store.flush(60.0)
            whole = time.process_time() - before
            status = collector.build_status(0)
    return {
        "us": whole / len(messages) * 1e6,
        "main_us": main / len(messages) * 1e6,
        "rows": status.written,
        "runs": status.runs,
        "diagnosed": status.diagnosed,
        "failed": status.failed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.capture", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="measurements of each scenario")
    given = parser.parse_args()
    tune_garbage_collector()
    for name, build in SCENARIOS.items():
        # Other texts in each repetition: caches keep results of texts.
        repetitions = [interleaved(build(1000 * repetition)) for repetition in range(given.repeat)]
        messages = repetitions[0]
        found = [measure(one) for one in repetitions]
        best = min(found, key=lambda row: row["us"])
        print(f"{name:<30}", f"{len(messages)} requests ", json.dumps({k: round(v) for k, v in best.items()}))


if __name__ == "__main__":
    main()
