"""Cost of the collector: processor time per captured request, in one process, without sockets.

Run: python -m benchmarks.gateway.capture [--repeat 5]

Each scenario passes the same frames to a new collector with a new store. ``us`` is the least processor time
of all threads per request, rows and diagnoses included; ``main_us`` is that of the thread that reads frames.
Guarded runs are runs with an inline guard, which sends their events in place of requests and answers.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentguard_server.proxy.capture.collector import GC_THRESHOLD, CaptureCollector, open_store
from agentguard_server.proxy.capture.protocol import (
    HEADER_BYTES,
    CapturedExchange,
    CollectorConfig,
    CollectorMessage,
    RunEvent,
    decode_messages,
    encode_frame,
)
from agentguard_server.proxy.garbage_collector import tune_garbage_collector
from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions

from agentguard.intercept.guarded_apis import GUARDED_APIS
from agentguard.trajectory.event_log.recorder import build_events
from agentguard.trajectory.model import Record, Trajectory
from agentguard.trajectory.safe_json import dumps
from benchmarks.gateway.backend import CALL, build_answer

FRAME_MESSAGES = 50
"""Messages of 20 ms at 2,500 requests per second."""

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
            answer = {"role": "assistant", "content": build_answer(turn)}
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
                answer = {"role": "assistant", "content": build_answer(1)}
            lanes[-1].append(exchange(history, answer, tools=True))
            line = f"{lane} {turn}: a train with free seats leaves at 9:{turn % 60:02}\n"
            result = (line * (result_bytes // len(line) + 1))[:result_bytes]
            history = [*history, answer, {"role": "tool", "tool_call_id": call["id"], "content": result}]
    return lanes


def guarded_runs(first: int, count: int, *, turns: int, result_bytes: int) -> list[list[RunEvent]]:
    """Build the events of the runs of `agent_runs`."""
    adapter = GUARDED_APIS["chat"].adapter
    lanes: list[list[RunEvent]] = []
    for number, exchanges in enumerate(
        agent_runs(first, count, turns=turns, result_bytes=result_bytes), first
    ):
        items = adapter.extract_items(json.loads(exchanges[-1].request_body))
        items += adapter.extract_answer_items(json.loads(exchanges[-1].response)) or []
        steps = [
            adapter.build_step(items[start:end], "assistant") for start, end in adapter.split_turns(items, 0)
        ]
        run = Trajectory(
            id=f"guarded-{number}",
            format="event_log",
            task=steps[1].content,
            steps=tuple(step.with_index(index) for index, step in enumerate(steps)),
            system_prompts={"assistant": steps[0].content},
        )
        events = build_events(Record(trajectory=run))
        lanes.append([RunEvent("bench", run.id, i == 0, dumps(event)) for i, event in enumerate(events)])
    return lanes


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Traffic of one kind.

    Attributes:
        build: builds the messages of each client; the argument is the number of the first client, from which
            the texts derive.
        requests: number of requests that the messages stand for.
    """

    build: Callable[[int], Sequence[Sequence[CollectorMessage]]]
    requests: int


SCENARIOS: dict[str, Scenario] = {
    "conversations, 6 turns": Scenario(build=lambda first: conversations(first, 256), requests=1536),
    "agent runs, 16 turns": Scenario(
        build=lambda first: agent_runs(first, 24, turns=16, result_bytes=400), requests=384
    ),
    "long runs, 50 turns, 200 KB": Scenario(
        build=lambda first: agent_runs(first, 4, turns=50, result_bytes=4000), requests=200
    ),
    "guarded runs, 16 turns": Scenario(
        build=lambda first: guarded_runs(first, 24, turns=16, result_bytes=400), requests=384
    ),
}


def interleaved(lanes: Sequence[Sequence[CollectorMessage]]) -> list[CollectorMessage]:
    return [lane[turn] for turn in range(max(map(len, lanes))) for lane in lanes if turn < len(lane)]


def measure(messages: list[CollectorMessage], requests: int) -> dict[str, float]:
    """Return the processor time per request in microseconds, and what was stored."""
    chunks = [messages[at : at + FRAME_MESSAGES] for at in range(0, len(messages), FRAME_MESSAGES)]
    frames = [encode_frame(chunk)[HEADER_BYTES:] for chunk in chunks]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "runs.db")
        capture = CaptureOptions(store=path)
        config = CollectorConfig(socket_path="", capture=capture, guard=GuardOptions())
        with open_store(capture) as store:
            store.list_runs()  # creates the tables
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
        "us": whole / requests * 1e6,
        "main_us": main / requests * 1e6,
        "rows": status.written,
        "runs": status.runs,
        "diagnosed": status.diagnosed,
        "failed": status.failed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.capture", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="measurements of each scenario")
    given = parser.parse_args()
    tune_garbage_collector(GC_THRESHOLD)
    for name, scenario in SCENARIOS.items():
        # Other texts in each repetition: caches keep results of texts.
        repetitions = [interleaved(scenario.build(1000 * repetition)) for repetition in range(given.repeat)]
        found = [measure(messages, scenario.requests) for messages in repetitions]
        best = min(found, key=lambda row: row["us"])
        figures = json.dumps({k: round(v) for k, v in best.items()})
        print(f"{name:<30}", f"{scenario.requests} requests ", figures)


if __name__ == "__main__":
    main()
