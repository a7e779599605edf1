"""A captured failed run becomes a bundle that replays with the code of its client."""

from __future__ import annotations

import json
from contextlib import contextmanager

import httpx2
import pytest
from agentguard_server.proxy.capture.bundle_writer import RunBundleWriter
from agentguard_server.proxy.capture.collector import CaptureCollector
from agentguard_server.proxy.capture.protocol import CapturedExchange, CollectorConfig
from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions
from openai import OpenAI
from pydantic import ValidationError

from agentguard import Guard
from agentguard.bundles import read_bundle, replay_bundle
from agentguard.config.policy import Policy
from agentguard.errors import ReplayMismatch
from agentguard.store import Store
from agentguard.trajectory import Trajectory

guard = Guard()
POLICY = Policy.parse({"tools": {"find": {"effect": "read"}}})
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


def find(where: str) -> str:
    """Find a seat."""
    return f"no seat near the {where}"


class Client:
    """Client of the proxy: a loop with OpenAI's client."""

    def __init__(self, last="I could not find a seat.", task="Find a seat."):
        self.last, self.task = last, task
        self.exchanges = []

    def run(self, transport, tool):
        http_client = httpx2.Client(transport=transport)
        client = OpenAI(base_url="http://proxy.example/v1", api_key="none", http_client=http_client)
        messages = [{"role": "user", "content": self.task}]
        while True:
            given = client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
            message = given.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return
            for call in message.tool_calls:
                content = tool(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})

    def answer(self, request):
        done = json.loads(request.content)["messages"][-1]["role"] == "tool"
        function = {"name": "find", "arguments": '{"where": "door"}'}
        calls = {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
        message = {"role": "assistant", **({"content": self.last} if done else calls)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        head = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "usage": usage}
        content = json.dumps({**head, "choices": [choice]})
        self.exchanges.append((request.content, content.encode()))
        return httpx2.Response(200, text=content, headers={"content-type": "application/json"})

    def replay(self, binding):
        transport = guard.transport(inner=binding.bind_transport(), on_run=binding.add_session)
        self.run(transport, *binding.bind_tools([find]))


@contextmanager
def collecting(folder, **options):
    capture = CaptureOptions(bundles_dir=str(folder / "bundles"), **options)
    config = CollectorConfig(
        socket_path="", capture=capture, guard=GuardOptions().model_copy(update={"policy": POLICY})
    )
    with Store.open(folder / "runs.db") as store:
        collector = CaptureCollector(config, store)
        try:
            yield collector
        finally:
            collector.close()


def capture_run(folder, client, **options):
    client.run(httpx2.MockTransport(client.answer), find)
    with collecting(folder, **options) as collector:
        collector.handle_frame(
            [CapturedExchange("team", "../trip", "chat", False, *one, 0.0, 0.0) for one in client.exchanges]
        )
    return sorted((folder / "bundles").glob("*.agb"))


def test_failed_run_becomes_a_bundle_that_replays_equal(tmp_path):
    client = Client()
    (file,) = capture_run(tmp_path, client, bundles="on_failure")
    assert (tmp_path / "bundles").stat().st_mode & 0o077 == 0
    bundle = read_bundle(file)
    assert bundle.expectations == {"verdict": "failed"}
    assert [step.usage and step.usage.prompt_tokens for step in bundle.trajectory.steps] == [None, 9, 9]
    assert [(call.name, call.effect) for call in bundle.tool_calls] == [("find", "read")]
    result = replay_bundle(bundle, client.replay)
    assert (result.divergence, result.unused_calls) == (None, 0)
    assert result.is_equal


def test_replay_of_a_changed_client_names_the_field(tmp_path):
    (file,) = capture_run(tmp_path, Client(), bundles="on_failure")
    with pytest.raises(ReplayMismatch, match=r"body\.messages\.0\.content"):
        replay_bundle(read_bundle(file), Client(task="Find two seats.").replay)


@pytest.mark.parametrize(
    ("options", "expected"), [({}, 0), ({"bundles": "on_failure"}, 0), ({"bundles": "always"}, 1)]
)
def test_run_without_failure_gets_a_bundle_only_with_always(tmp_path, options, expected):
    assert len(capture_run(tmp_path, Client(last="There is none."), **options)) == expected


def test_buffer_above_its_limit_releases_the_exchanges_of_the_oldest_run(tmp_path):
    writer = RunBundleWriter(tmp_path, "always", guard, max_buffered_bytes=10)
    for run_id in ("a", "b"):
        writer.add_exchange(run_id, CapturedExchange("", run_id, "chat", False, b"{}    ", b"", 0.0, 0.0))
    for run_id in ("a", "b"):
        writer.finish_run("", Trajectory(id=run_id, format="event_log", task="t", steps=()), None)
    bundles = [read_bundle(file) for file in sorted(tmp_path.iterdir())]
    assert [(one.trajectory.id, len(one.model_calls)) for one in bundles] == [("a", 0), ("b", 1)]


def test_bundles_without_diagnose_are_refused():
    with pytest.raises(ValidationError, match="needs diagnose"):
        CaptureOptions(bundles="always", diagnose=False)
