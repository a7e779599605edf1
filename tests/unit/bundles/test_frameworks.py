"""Runs of each framework replay with equal bytes, without the model and without a connection."""

from __future__ import annotations

import asyncio
import socket

import httpx2
import pytest

from agentguard import Guard
from agentguard.bundles import record_run, replay_bundle
from agentguard.errors import ConfigError, ReplayMismatch
from examples import bundle_frameworks

guard = Guard()


def refuse(request):
    raise AssertionError("the replay called the live model")


@pytest.mark.parametrize("name", bundle_frameworks.AGENTS)
def test_replay_framework_run_gives_equal_event_log(tmp_path, monkeypatch, name):
    agent = bundle_frameworks.AGENTS[name]
    bundle = record_run(agent, tmp_path / "a.agb", guard=bundle_frameworks.guard)
    assert [call.name for call in bundle.model_calls] == ["POST /chat/completions"] * 2
    assert [(call.name, call.effect) for call in bundle.tool_calls] == [("book", "write")]
    monkeypatch.setattr(bundle_frameworks, "SERVER", httpx2.MockTransport(refuse))
    monkeypatch.setattr(bundle_frameworks, "URL", "https://other.example/proxy/v1")
    result = replay_bundle(bundle, agent)
    assert result.is_equal, result.divergence
    assert result.unused_calls == 0


def test_replay_framework_other_task_names_the_field(tmp_path, monkeypatch):
    bundle = record_run(bundle_frameworks.run_openai, tmp_path / "a.agb", guard=bundle_frameworks.guard)
    monkeypatch.setattr(bundle_frameworks, "TASK", "Book seat 5.")
    with pytest.raises(ReplayMismatch, match=r"nearest recording 0 in body\.messages\.0\.content"):
        replay_bundle(bundle, bundle_frameworks.run_openai)


async def find(where: str) -> str:
    """Find a seat."""
    await asyncio.sleep(0)
    return f"a seat near the {where}"


async def run_coroutine_agent(binding):
    async def call_llm(messages, tools):
        if messages[-1]["role"] == "tool":
            return "There is one."
        function = {"name": "find", "arguments": '{"where": "door"}'}
        return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}

    model, tools = binding.bind_model(call_llm), binding.bind_tools([find])
    with guard.run("Find a seat.", tools=tools, id=binding.run_id) as run:
        while not run.done:
            await run.atools(await run.amodel(model))
    return run.trajectory


def test_replay_coroutine_agent_gives_equal_event_log(tmp_path):
    bundle = record_run(run_coroutine_agent, tmp_path / "a.agb", guard=guard)
    assert bundle.tool_calls[0].result == "a seat near the door"
    assert replay_bundle(bundle, run_coroutine_agent).is_equal


def test_record_coroutine_agent_inside_event_loop_is_refused(tmp_path):
    async def record():
        record_run(run_coroutine_agent, tmp_path / "a.agb", guard=guard)

    with pytest.raises(ConfigError, match="event loop runs already"):
        asyncio.run(record())


def test_replay_http_error_raises_the_class_of_the_client(tmp_path):
    def fail(request):
        raise httpx2.ConnectTimeout("no answer", request=request)

    def agent(binding):
        transport = binding.bind_transport(httpx2.MockTransport(fail))
        with pytest.raises(httpx2.ConnectTimeout, match="no answer"):
            httpx2.Client(transport=transport).post("https://model.example/v1/messages", json={})
        with guard.run("t", id=binding.run_id) as run:
            return run.trajectory

    bundle = record_run(agent, tmp_path / "a.agb", guard=guard)
    assert bundle.model_calls[0].error_type == "ConnectTimeout"
    assert replay_bundle(bundle, agent).unused_calls == 0


@pytest.mark.parametrize("in_thread", [False, True])
def test_replay_agent_opens_a_connection_is_refused(tmp_path, in_thread):
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = lambda: socket.create_connection(server.getsockname()).close()  # noqa: E731

        async def agent(binding):
            await asyncio.to_thread(connect) if in_thread else connect()
            with guard.run("t", id=binding.run_id) as run:
                return run.trajectory

        bundle = record_run(agent, tmp_path / "a.agb", guard=guard)
        with pytest.raises(ReplayMismatch, match="opens no connection"):
            replay_bundle(bundle, agent)
        connect()
