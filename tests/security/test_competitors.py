"""Vulnerabilities of other gateways and frameworks, each prevented here, named by its issue there."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentguard.testing.fake_backend import (
    FakeBackend,
    Hang,
    HeartbeatOnly,
    InjectedFault,
    InvalidResponse,
    Ok,
    Reset,
    Stall,
    StatusFault,
    Truncate,
)
from tests.faults.proxy_client import PATHS, ask, body_for, outcome, request_bytes
from tests.faults.proxy_process import Proxy, replicas, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CHAT = PATHS["chat"]
PIPELINE: dict[str, Any] = {
    "timeout": {"total_s": 6.0},
    "attempt_timeout": {"seconds": 2.0},
    "stream_timeout": {"first_chunk_timeout_s": 1.0, "idle_timeout_s": 1.0},
    "retry": {
        "backoff": {"initial_delay_s": 0.05},
        "budget": {"reserve": 100.0, "burst": 100.0, "per_second": 100.0},
    },
    "hedge": "off",
    "circuit_breaker": "off",
}
# The fallback must be in time even if the machine pauses for a second.
EASY = {
    **PIPELINE,
    "timeout": {"total_s": 30.0},
    "attempt_timeout": {"seconds": 4.0},
    "stream_timeout": {"first_chunk_timeout_s": 2.0, "idle_timeout_s": 2.0},
}


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, FakeBackend]]:
    """Start a proxy with long timeouts and one replica that never answers."""
    with FakeBackend(Hang(), name="first") as first:
        section = {"replicas": replicas(first), "health": "off", "outlier": "off"}
        with serving(tmp_path_factory.mktemp("lone"), {"backends": section}) as proxy:
            yield proxy, first


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, FakeBackend, FakeBackend]]:
    """Start a proxy with a failing replica and its fallback."""
    with FakeBackend(name="first") as first, FakeBackend(name="fallback") as fallback:
        made = replicas(first, resumable=True) + replicas(fallback, priority=1, resumable=True)
        section = {"replicas": made, "health": "off", "outlier": "off", "pipeline": EASY}
        with serving(tmp_path_factory.mktemp("pair"), {"backends": section}) as proxy:
            yield proxy, first, fallback


@pytest.mark.parametrize(
    "fault",
    [
        Reset(tokens=0),
        Truncate(tokens=0, framing="close"),
        Truncate(tokens=0, framing="ended"),
        Stall(tokens=0),
        HeartbeatOnly(tokens=0),
        InvalidResponse(kind="json"),
        InvalidResponse(kind="html"),
        StatusFault(status=500),
    ],
    ids=str,
)
def test_litellm_40404_stream_cut_before_first_token_reaches_fallback(
    pair: tuple[Proxy, FakeBackend, FakeBackend], fault: InjectedFault
) -> None:
    proxy, first, fallback = pair
    first.set_script(fault)
    body = body_for("chat", stream=True, text=f"before {fault}")
    got = asyncio.run(ask(proxy.port, CHAT, body))
    assert outcome("chat", got, stream=True).said == fallback.build_expected_response(CHAT, body).content
    assert got.header("agentguard-replica") == "fallback"


@pytest.mark.parametrize(
    "fault",
    [
        Reset(tokens=3),
        Truncate(framing="close"),
        Truncate(framing="ended"),
        Stall(tokens=3),
        InvalidResponse(tokens=3),
    ],
    ids=str,
)
def test_litellm_40404_stream_cut_after_first_token_is_continued_and_marked(
    pair: tuple[Proxy, FakeBackend, FakeBackend], fault: InjectedFault
) -> None:
    proxy, first, fallback = pair
    first.set_script(fault)
    body = body_for("chat", stream=True, text=f"after {fault}")
    got = asyncio.run(ask(proxy.port, CHAT, body))
    assert outcome("chat", got, stream=True).said == fallback.build_expected_response(CHAT, body).content
    assert b"continued" in got.body or any("continued" in value for _, value in got.headers)


@pytest.mark.parametrize("api", ["chat", "messages", "embeddings", "responses"])
def test_litellm_37140_disconnect_cancels_call_without_streaming(
    lone: tuple[Proxy, FakeBackend], api: str
) -> None:
    proxy, first = lone
    before = len(first.requests)
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        client.sendall(request_bytes(PATHS[api], body_for(api)))
        first.wait_until(lambda: len(first.requests) > before)
        left = time.monotonic()
    first.wait_until(lambda: first.requests[before].is_finished, 60)
    seen = first.requests[before]
    assert seen.disconnected_at is not None
    assert (
        seen.disconnected_at - left < 0.1 + 5
    )  # the promise is 0.1; without cancellation a call continues for minutes


def test_litellm_34836_failing_deployment_leaves_rotation(tmp_path: Path) -> None:
    """There, 25 failures in a row did not remove it; its state is available over an API (#25504)."""
    with FakeBackend(StatusFault(status=500), name="bad") as bad, FakeBackend(name="good") as good:
        section = {"replicas": replicas(bad, good), "health": "off", "load_balancing": "round_robin"}
        with serving(tmp_path, {"backends": section}) as proxy:

            async def main() -> None:
                for n in range(80):
                    got = await ask(proxy.port, CHAT, body_for("chat", text=str(n)))
                    assert got.status == 200

            asyncio.run(main())
            assert len(bad.requests) < 25
            told = asyncio.run(proxy.status())
            assert '"ejected"' in json.dumps(told) or '"open"' in json.dumps(told)


@pytest.mark.parametrize("fault", [Stall(tokens=0), Stall(tokens=3), HeartbeatOnly(tokens=3)], ids=str)
def test_portkey_timer_covers_body_after_headers(tmp_path: Path, fault: InjectedFault) -> None:
    with FakeBackend(fault, name="a") as a:
        section = {"replicas": replicas(a), "health": "off", "pipeline": PIPELINE}
        with serving(tmp_path, {"backends": section}) as proxy:

            async def main() -> None:
                calls = [
                    ask(proxy.port, CHAT, body_for("chat", stream=stream), seconds=30)
                    for stream in (True, False)
                ]
                for stream, got in zip((True, False), await asyncio.gather(*calls), strict=True):
                    assert outcome("chat", got, stream=stream).error is not None
                    assert got.seconds < 6.0 + 6.0  # tolerance for a busy machine: without the timer it is 30

            asyncio.run(main())


@pytest.mark.parametrize(
    "fault",
    [
        Reset(),
        Hang(),
        StatusFault(status=500),
        StatusFault(status=503, retry_after="0"),
        Truncate(framing="length"),
        InvalidResponse(kind="html"),
        Reset(tokens=3),
        StatusFault(status=504),
    ],
    ids=str,
)
def test_langgraph_8702_openai_agents_4254_crewai_5802_agent_framework_3938_effect_is_not_repeated(
    pair: tuple[Proxy, FakeBackend, FakeBackend], fault: InjectedFault
) -> None:
    """A retry may repeat a query, never an effect: a background response, or an unknown POST."""
    proxy, first, fallback = pair
    first.set_script(fault)

    async def send_effect(path: str) -> None:
        mark = f"effect-{path}-{type(fault).__name__}-{time.monotonic_ns()}"
        body = body_for("responses", text=f"[[{mark}]]", background=True)
        got = await ask(proxy.port, path, body, seconds=20)
        assert len(first.list_attempts(mark)) + len(fallback.list_attempts(mark)) == 1, path
        assert got.status >= 400 or path == "/v1/batches"

    async def main() -> None:
        await asyncio.gather(*map(send_effect, (PATHS["responses"], "/v1/batches")))

    asyncio.run(main())
    first.set_script(Ok())
