"""``agentguard judge serve`` around a real vLLM: its engine killed during a diagnosis, and a drain.

Deadlines are typical user settings with a margin for a busy machine; vLLM takes up to some minutes to start.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentguard.evals.judge_checks.attack_runner import build_targets
from agentguard.guard import Guard
from agentguard.judge.base import RUN_FAILED, TEXT_SCHEMA
from agentguard.judge.llm.chat_judge import ChatJudge, ChatOptions
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import EndpointOptions
from agentguard.judge.vllm.server_metrics import fetch_counters
from agentguard.localize.llm.fused import FusedLocalizer
from agentguard.trajectory.model import Source, Step, Trajectory
from tests.judge_process import Serving, children, get, gone
from tests.proxy_server import within

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

DEADLINE_S = 20.0
MARGIN_S = 15.0


def long_run() -> Trajectory:
    """Return a run that takes seconds to read, in which a rule always finds a loop."""
    plain = build_targets()[0].run
    said = "The hall has rows of seats, and each row has a letter and a light of its own. " * 3
    steps = [
        Step(index=place, source=Source.AGENT, agent="assistant", content=f"{place}: {said}")
        for place in range(len(plain.steps), len(plain.steps) + 40)
    ]
    return Trajectory(id="long", format="test", task=plain.task, steps=(*plain.steps, *steps))


def engine_of(pid: int) -> int:
    """Return the server's process that has the model, not the one that serves HTTP."""
    held = children(pid)
    named = [child for child, name in held.items() if "Engine" in name]
    assert named, held
    return named[0]


def test_engine_killed_during_diagnosis_restarts(served: Serving) -> None:
    ready = served.until("ready")
    assert ready["probe"]["asked"] == 3
    assert get(ready["state_url"])[0] == 200
    endpoint = JudgeEndpoint(ready["url"], options=EndpointOptions(deadline_s=DEADLINE_S))
    judge = ChatJudge(endpoint, options=ChatOptions(deadline_s=DEADLINE_S))
    guard = Guard(localizer=FusedLocalizer(judge=judge))
    try:
        judge.decide(
            build_targets()[2].run, (RUN_FAILED,)
        )  # warm: the kill must come in the middle of a call
        run, began = long_run(), time.monotonic()
        killer = threading.Timer(0.3, os.kill, (engine_of(ready["pid"]), signal.SIGKILL))
        killer.start()
        told = guard.diagnose(run)
        took = time.monotonic() - began
        killer.join()
        assert took < DEADLINE_S + MARGIN_S
        assert any(one.detector == "exact_loop" for one in told.findings)
        assert any("judge" in one.detector for one in told.failures)
        assert any("the judge" in note for note in told.notes)
        alone = Guard(localizer="embedded").diagnose(run)
        assert (told.verdict, told.hypotheses[0].step) == (alone.verdict, alone.hypotheses[0].step)
        again = served.until("ready")
        while again["restarts"] == 0:  # a slow machine may miss a heartbeat before the kill
            again = served.until("ready")
        assert again["url"] == ready["url"]
        assert again["restarts"] == 1
        assert again["pid"] != ready["pid"]
        (answer,) = judge.decide(build_targets()[3].run, (RUN_FAILED,))
        assert answer.error is None
        assert not guard.diagnose(build_targets()[3].run).failures
    finally:
        judge.close()
    _drains(served, again["url"], again["pid"])


def running(url: str) -> bool:
    """Return whether the server reports an active request."""
    return dict(fetch_counters(url.removesuffix("/v1"))).get("vllm:num_requests_running", 0) > 0


def _drains(served: Serving, url: str, pid: int) -> None:
    """Send SIGTERM during a request: it is answered, and no process remains."""
    below = children(pid)
    endpoint = JudgeEndpoint(url, options=EndpointOptions(deadline_s=120))
    asked = ({"role": "user", "content": "Tell a long story of a harbour, as JSON with the one field text."},)
    try:
        # Warm, so that the active request ends within the drain time: the schema is compiled once.
        endpoint.loop.run(endpoint.generate_json(asked, TEXT_SCHEMA, max_tokens=2, deadline_s=120))
        with ThreadPoolExecutor(1) as pool:
            under_way = pool.submit(
                lambda: endpoint.loop.run(
                    endpoint.generate_json(asked, TEXT_SCHEMA, max_tokens=24, deadline_s=120)
                )
            )
            within(60, lambda: under_way.done() or running(url))
            served.process.send_signal(signal.SIGTERM)
            written = under_way.result(timeout=120)
        # Cut at 24 tokens, or complete: a server that drops the request would be unreachable.
        assert isinstance(written, tuple) or written.kind in {"cut", "malformed"}
        assert served.until("stopped")["pid"] is None
        assert served.process.wait(60) == 0
        assert all(gone(child) for child in (pid, *below))
    finally:
        endpoint.close()
