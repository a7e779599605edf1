"""Time of a request of a guarded run with a faulty judge beside it: no request waits for the judge."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from agentguard_server.proxy.guard.inline_guard import InlineGuard
from agentguard_server.proxy.guard.options import GuardOptions

from agentguard.config.policy import Policy
from tests.unit.judge.chat_server import LONG_S, Script, closed_port, serving
from tests.unit.server.proxy.guard.scripted_model import CHAT, Played

TURNS = 40
MAX_REQUEST_CPU_S = 0.001
RULES: dict[str, Any] = {
    "enabled_detectors": ["exact_loop"],
    "budgets": {"hints": 0},
    "localizer": {"name": "first_finding"},
    "tools": {"find": {"effect": "read"}},
}


def play_requests(policy: dict[str, Any], *, after_second: Callable[[], object] = bool) -> float:
    """Run an agent behind the guard; return the median CPU time of a request in the thread of the proxy."""
    inline = InlineGuard(GuardOptions(policy=Policy.parse(policy)))
    turns = iter([("call", "find", f"c{number}", f"row {number}") for number in range(TURNS)])
    world = Played(api=CHAT, guarding=inline, turns=turns)
    history: list[Any] = [{"role": "user", "content": "Find a seat."}]
    seconds = []
    for number in range(TURNS):
        body = CHAT.body(history)
        began = time.thread_time()
        made = world.ask(body)
        seconds.append(time.thread_time() - began)
        if number == 1:
            after_second()
        history += [*CHAT.given(made), CHAT.result(f"c{number}", f"nothing in row {number}")]
    assert len({head["agentguard-run"] for head in world.heads}) == 1
    assert inline.sessions.list_summaries()[0]["length"] >= TURNS
    inline.close()
    return statistics.median(seconds)


@pytest.mark.parametrize("fault", ["unreachable", "hang", "500", "lie"])
def test_faulty_judge_adds_less_than_a_millisecond_to_a_request(fault: str) -> None:
    script = Script(
        always=None if fault in ("unreachable", "lie") else fault, prefer=lambda prompt, label: 0.5
    )
    with serving(script) as (url, _):
        address = f"http://127.0.0.1:{closed_port()}/v1" if fault == "unreachable" else url
        judge = {"base_url": address, "deadline_s": 1, "live": {"threshold": 0.4}}
        alone = play_requests(RULES)
        assert play_requests({**RULES, "judge": judge}) < alone + MAX_REQUEST_CPU_S


def test_hanging_judge_holds_no_request() -> None:
    """The judge answers only after all requests: a request that waited for it would not end before."""
    released, asked = threading.Event(), threading.Event()

    def hold() -> None:
        asked.set()
        released.wait(LONG_S)

    with serving(Script(hold=hold)) as (url, script):
        judge = {"base_url": url, "deadline_s": LONG_S, "live": {"threshold": 0.4}}
        play_requests({**RULES, "judge": judge}, after_second=lambda: asked.wait(LONG_S))
        assert asked.is_set()
        assert not released.is_set()
        assert len(script.seen) <= 1, "the judge still has its first question"
        released.set()
