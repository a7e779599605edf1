"""Scripted traffic of the proxy, and the output that capture stores for it.

Run: python -m tests.support.capture_traffic [--digests]. The command prints the stored rows, one run a line.
With ``--digests`` it prints the snapshot of `tests/unit/server/proxy/capture/test_capture_output.py`.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from agentguard_server.proxy.capture.collector import CaptureCollector, open_store
from agentguard_server.proxy.capture.protocol import (
    CapturedExchange,
    CollectorConfig,
    CollectorMessage,
    RunEvent,
)
from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions

from agentguard.config.policy import Policy
from agentguard.store.db.payload import decode_payload
from agentguard.store.db.tables import PREFIX
from agentguard.trajectory.event_log.recorder import build_events
from agentguard.trajectory.model import Observation, Record, Source, Step, ToolCall, Trajectory
from agentguard.trajectory.safe_json import dumps
from tests.unit.server.proxy.guard.scripted_model import APIS, CHAT, Api, Turn, calls

POLICY = {"localizer": {"name": "first_finding"}}
API_KEY = "sk-" + "a1B2" * 12
FRAME_MESSAGES = 7
"""Messages of a frame; no multiple of a conversation's length, so that frames cut conversations."""

STABLE_TABLES = ("runs", "steps", "branches")
"""Tables whose rows do not depend on detectors."""

ALL_TABLES = (*STABLE_TABLES, "findings", "diagnoses")
_TIME_COLUMNS = ("created_at",)


def captured(api: Api, body: Any, answer: bytes, **fields: Any) -> CapturedExchange:
    """Build the message of one request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    values = {"tenant": "", "run_id": "", "is_retry": False, "started_at": 100.0, "ended_at": 103.0, **fields}
    return CapturedExchange(api=api.name, request_body=data, response=answer, **values)


def play_conversation(
    api: Api, history: list[Any], turns: Iterable[Turn], results: Iterable[str] = (), **fields: Any
) -> Iterator[CapturedExchange]:
    """Yield the requests of one client. Every second answer is a stream. ``results`` answer the calls."""
    stream = bool(fields.pop("stream", False))
    outputs = iter(results)
    for number, turn in enumerate(turns):
        made = api.answer(turn)
        answer = b"".join(api.stream(made)) if (number + stream) % 2 else json.dumps(made).encode()
        times = {"started_at": 100.0 + 10 * number, "ended_at": 103.0 + 10 * number}
        yield captured(api, api.body(history), answer, **times, **fields)
        history = [*history, *api.given(made)]
        call_ids = api.calls(made)
        history += [api.result(id, next(outputs, "nothing found")) for id in call_ids]
        if not call_ids:
            history.append({"role": "user", "content": f"And after that? Turn {number + 1}."})


def _play_benchmark(lane: int) -> Iterator[CapturedExchange]:
    history = [
        {"role": "system", "content": "You plan journeys by train and answer in short sentences. " * 12},
        {"role": "user", "content": f"Journey {lane}: how do I get from Bern to the sea?"},
    ]
    turns: list[Turn] = [
        ("say", f"The next train to Genoa leaves at {8 + turn}:1{turn} from platform {turn}.")
        for turn in range(6)
    ]
    return play_conversation(CHAT, history, turns, tenant="bench")


def _play_agents() -> Iterator[CapturedExchange]:
    task = {"role": "user", "content": "Book a seat on the aisle and tell me its number."}
    endings: list[Turn] = [("say", "Seat 4 has been booked successfully.")]
    for api in APIS.values():
        yield from play_conversation(
            api, [task], [*calls("find", 4), *endings], ["Error: no such train", "4 seats"], run_id=api.name
        )
        yield from play_conversation(api, [task], [*calls("book", 1), *endings, *calls("find", 2, first=7)])
        errors = ["Traceback (most recent call last):\nKeyError: 'seat'"] * 5
        yield from play_conversation(api, [task], [*calls("find", 5), *endings], errors, stream=True)


def _play_coding_run() -> Iterator[CapturedExchange]:
    task = {"role": "user", "content": "The test test_parse_year fails. Repair the parser."}
    files = ["\n".join(f"{n}: def parse_{n}(text): return int(text[{n}:])" for n in range(250))] * 14
    files[3] = 'FAILED tests/test_parser.py::test_parse_year - ValueError: invalid literal "20x4"'
    turns = [*calls("find", 14), ("say", "I repaired the parser and all tests pass.")]
    return play_conversation(CHAT, [task], turns, files, tenant="code", run_id="coding")


def _play_secrets() -> Iterator[CapturedExchange]:
    task = {"role": "user", "content": f"Log in with {API_KEY} and password: hunter2secret."}
    results = [
        json.dumps({"password": "hunter2secret", "note": f"key {API_KEY}"}),
        "mail me at jane.doe@example.org, card 4111 1111 1111 1111",
        "\u001b[31mBearer abcdefghijklmnop\u001b[0m \ud83d\ude00",
    ]
    for api in APIS.values():
        turns = [*calls("find", 3), ("say", "I used hunter2secret.")]
        yield from play_conversation(api, [task], turns, results, run_id=f"secret-{api.name}")
    parts = [{"type": "text", "text": "See "}, {"type": "image_url", "image_url": {"url": "data:;base64,"}}]
    body = {**CHAT.body([{"role": "user", "content": parts}]), "model": "m" * 300}
    yield captured(CHAT, body, json.dumps(CHAT.answer(("say", f"The key is {API_KEY}."))).encode())


def _play_faults() -> Iterator[CapturedExchange]:
    """Yield requests without an answer, retries, cut streams, invalid bodies and shortened histories."""
    task = {"role": "user", "content": "hi"}
    whole = json.dumps(CHAT.answer(("say", "ho"))).encode()
    pieces = CHAT.stream(CHAT.answer(("say", "a longer answer")))
    yield captured(CHAT, CHAT.body([task]), b"", run_id="lost")
    yield captured(CHAT, CHAT.body([task]), whole, run_id="lost", is_retry=True)
    yield captured(CHAT, CHAT.body([task]), whole, run_id="lost", is_retry=True)
    yield captured(CHAT, CHAT.body([task]), b"".join(pieces[:-1]))
    for body in (b"{", b"[]", {"messages": [{"role": 1}]}, {"messages": [1]}, {"messages": []}, {"n": 2}):
        yield captured(CHAT, body, whole)
    for answer in (b"[1]", b"data: {}\n\n", b'data: {"choices": ["?"]}\n\n', b'{"error": {"message": "no"}}'):
        yield captured(CHAT, CHAT.body([task]), answer)
    yield captured(CHAT, b'{"model":"m","messages":[{"role":"user","content":"\\ud800 NaN"}],"x":NaN}', whole)
    number = b'{"model":"m","seed":123456789012345678901234,"messages":[{"role":"user","content":"n"}]}'
    yield captured(CHAT, number, whole)
    history: list[Any] = [task]
    for number_of_turn, turn in enumerate(calls("find", 6)):
        made = CHAT.answer(turn)
        shortened = [task, *history[-2:]] if number_of_turn > 3 else history
        yield captured(CHAT, CHAT.body(shortened), json.dumps(made).encode(), tenant="short")
        history += [*CHAT.given(made), *[CHAT.result(id, "nothing found") for id in CHAT.calls(made)]]
    responses = APIS["responses"]
    first = responses.answer(("call", "find", "r1", "aisle"))
    yield captured(responses, responses.body([task]), json.dumps(first).encode())
    again = {**responses.body([responses.result("r1", "4 seats")]), "previous_response_id": first["id"]}
    said = json.dumps(responses.answer(("say", "There are 4."))).encode()
    yield captured(responses, again, said)
    yield captured(responses, {**again, "previous_response_id": "resp_unknown"}, said)
    yield captured(responses, {**responses.body([task]), "input": "as text"}, said)


def _build_guarded_run() -> list[RunEvent]:
    """Build the events of a run with an inline guard."""
    call = ToolCall(name="find", arguments={"token": "abcdef123456"}, id="c1")
    steps = (
        Step(index=0, source=Source.USER, agent="user", content=f"Use {API_KEY}."),
        Step(
            index=1,
            source=Source.AGENT,
            agent="assistant",
            tool_calls=(call,),
            observations=(Observation(content="Error: 503", call_id="c1", tool="find"),),
        ),
        Step(index=2, source=Source.AGENT, agent="assistant", content="Done with abcdef123456."),
    )
    run = Trajectory(id="guarded", format="event_log", task=f"Use {API_KEY}.", steps=steps)
    events = [*build_events(Record(trajectory=run))]
    return [RunEvent("team", "guarded", number == 0, dumps(event)) for number, event in enumerate(events)]


def build_traffic() -> list[CollectorMessage]:
    """Return the messages of all conversations, interleaved."""
    sources: list[Iterator[CollectorMessage]] = [
        *(_play_benchmark(lane) for lane in range(3)),
        _play_agents(),
        _play_coding_run(),
        _play_secrets(),
        _play_faults(),
        iter(_build_guarded_run()),
    ]
    messages: list[CollectorMessage] = []
    while sources:
        for source in list(sources):
            message = next(source, None)
            if message is None:
                sources.remove(source)
            else:
                messages.append(message)
    return messages


def record_traffic(
    url: str, messages: Iterable[CollectorMessage], *, frame_messages: int = FRAME_MESSAGES
) -> CaptureCollector:
    """Pass messages to a collector in frames, end all runs and wait for the diagnoses and rows."""
    guard = GuardOptions(policy=Policy.parse(POLICY))
    capture = CaptureOptions(store=url)
    config = CollectorConfig(socket_path="", capture=capture, guard=guard)
    # The ids of runs without a name come from a generator with a random seed. On a busy machine the queued
    # diagnoses take longer than the collector waits for them at its end.
    patient = patch("agentguard_server.proxy.capture.diagnosis_worker._SHUTDOWN_TIMEOUT_S", 60.0)
    with _deterministic_ids(), patient, open_store(capture) as store:
        collector = CaptureCollector(config, store)
        frame: list[CollectorMessage] = []
        for message in messages:
            frame.append(message)
            if len(frame) == frame_messages:
                collector.handle_frame(frame)
                frame = []
        collector.handle_frame(frame)
        collector.close()
        store.flush(60.0)
    return collector


def _deterministic_ids() -> AbstractContextManager[Any]:
    return patch("agentguard.intercept.interceptor.os.urandom", bytes)


def read_output(url: str, tables: Sequence[str] = STABLE_TABLES) -> dict[str, dict[str, list[Any]]]:
    """Return the stored rows of each run without times and random ids, by run and table."""
    output: dict[str, dict[str, list[Any]]] = {}
    with sqlite3.connect(url) as connection:
        connection.row_factory = sqlite3.Row
        for table in tables:
            for row in connection.execute(f"SELECT * FROM {PREFIX}{table}"):
                run_id = row["id" if table == "runs" else "run_id"]
                rows = output.setdefault(f"{row['tenant']}/{run_id}", {}).setdefault(table, [])
                rows.append(_read_row(row))
                rows.sort(key=json.dumps)
    return output


def _read_row(row: sqlite3.Row) -> dict[str, Any]:
    """Return the values of a row; the time that a diagnosis took is left out."""
    values: dict[str, Any] = {}
    for name in row.keys():  # noqa: SIM118  iterating over a row yields its values
        value = row[name]
        values[name] = list(decode_payload(value)) if isinstance(value, bytes) else value
    if "verdict" in values:
        values.pop("id")
        values["data"][0].pop("timing", None)
    return {name: value for name, value in values.items() if name not in _TIME_COLUMNS}


def build_digests(output: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the SHA-256 of the rows of each run."""
    return {name: hashlib.sha256(_encode(rows)).hexdigest()[:32] for name, rows in sorted(output.items())}


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder, "runs.db"))
        messages = build_traffic()
        before = time.process_time()
        collector = record_traffic(url, messages)
        seconds = time.process_time() - before
        output = read_output(url, STABLE_TABLES if "--digests" in sys.argv else ALL_TABLES)
    if "--digests" in sys.argv:
        print(json.dumps(build_digests(output), indent=1))
        return
    for name, rows in sorted(output.items()):
        print(name, json.dumps(rows))
    print(collector.build_status(0), f"{seconds / len(messages) * 1e6:.0f} us a message", file=sys.stderr)


if __name__ == "__main__":
    main()
