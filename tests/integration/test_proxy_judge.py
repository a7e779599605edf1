"""Requests of a guarded run behind the proxy to the policy's judge, at its end and beside the agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentguard.store import Store
from tests.contract.test_judge_requests import COUNTS
from tests.proxy_server import CHAT, Proxy, serving, within
from tests.unit.integrations import openai_server as model_server
from tests.unit.judge.chat_server import Script, serving as serving_judge

pytestmark = pytest.mark.slow

LONG_S = 60.0
SCHEMA = {"type": "object", "properties": {"where": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in ("find", "book")]
TURNS = [
    model_server.call("find", "c1", where="aisle"),
    model_server.call("book", "c2", where="4"),
    model_server.say("Seat 4 is booked."),
]


def run_agent(proxy: Proxy) -> str:
    """Run an agent to its end behind the proxy; return the id of its run."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Book seat 4."}]
    while True:
        status, headers, body = proxy.ask({"model": "m", "messages": messages, "tools": TOOLS}, path=CHAT)
        assert status == 200, body
        message = json.loads(body)["choices"][0]["message"]
        messages.append(message)
        calls = message.get("tool_calls")
        if not calls:
            return headers["agentguard-run"]
        messages += [{"role": "tool", "tool_call_id": one["id"], "content": "seat 4"} for one in calls]


@pytest.mark.parametrize(("column", "options"), [(0, {}), (1, {"live": {}})])
def test_run_behind_the_proxy_asks_the_judge_as_often_as_documented(
    tmp_path: Path, column: int, options: dict[str, Any]
) -> None:
    script = Script(prefer=lambda prompt, label: 0.3)
    with serving_judge(script) as (url, _):
        turns: list[Any] = []

        def answer(body: Any) -> Any:
            if column:  # the judge has been asked about each earlier turn, so that it skips none
                within(LONG_S, lambda: len(script.seen) >= len(turns))
            turns.append(body)
            return model_server.completion(TURNS[len(turns) - 1])

        with model_server.serving(answer) as backend:
            policy = {"judge": {"base_url": url, **options}, "detector_deadline_s": 60}
            policy["tools"] = {"find": {"effect": "read"}, "book": {"effect": "write"}}
            document = {
                "backends": {"replicas": [{"name": "a", "url": backend.url}], "health": "off"},
                "guard": {"policy": policy},
                "capture": {"store": str(tmp_path / "runs.db")},
            }
            with serving(tmp_path, document) as proxy:
                run_id = run_agent(proxy)
                within(LONG_S, lambda: len(script.seen) >= COUNTS["proxy"][column])
                within(LONG_S, lambda: has_diagnosis(tmp_path / "runs.db", run_id))
    assert len(script.seen) == COUNTS["proxy"][column]


def has_diagnosis(path: Path, run_id: str) -> bool:
    """Return whether the store has the diagnosis of the run, by the judge."""
    with Store.open(path) as store:
        return any(row.data["judge"] for row in store.list_diagnoses(run_id))
