"""The model's input after any rollback: whole turns of the current branch, and no others."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx2
from hypothesis import given, settings, strategies as st

from agentguard.guard import Guard
from agentguard.intercept.adapters.openai_chat import ChatAdapter
from agentguard.intercept.conversation import BranchStep, ConversationBranch, build_prefix_keys, resolve_items
from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from agentguard.verdict import Verdict
from tests.unit.integrations.openai_server import Body, completion
from tests.unit.integrations.test_loop import whole
from tests.unit.integrations.test_openai import ids

TASK: Body = {"role": "user", "content": "Find a seat."}


class Drawn:
    """A localizer and an acceptance test with random results."""

    name = "drawn"

    def __init__(self, data: Any) -> None:
        self._data = data

    def locate(self, trajectory: Any, findings: Any) -> Diagnosis:
        step = self._data.draw(st.integers(0, len(trajectory.steps) - 1))
        held = Hypothesis(step=step, agent="assistant", reason="It is said so.")
        return Diagnosis(
            trajectory_id=trajectory.id,
            method="drawn",
            verdict=Verdict.FAILED,
            probability=1,
            hypotheses=(held,),
        )

    def accept(self, run: Any) -> bool:
        return bool(self._data.draw(st.booleans()))


class Model(httpx2.BaseTransport):
    """Model with a random number of unique calls per answer; it checks its input."""

    def __init__(self, data: Any, sessions: list[Session]) -> None:
        self._data, self._sessions, self._count = data, sessions, itertools.count()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        messages = body["messages"]
        assert whole(messages)
        assert messages[0] == TASK
        live = [[c.id for s in one.run.steps for c in s.tool_calls] for one in self._sessions]
        left = {
            c.id for one in self._sessions for b in one.run.branches for s in b.steps for c in s.tool_calls
        }
        assert not left & set(ids(body)), "what was taken back is out of sight"
        assert ids(body) in live, "and nothing else is"
        return httpx2.Response(200, json=completion(self._answer()))

    def _answer(self) -> Body:
        names = [f"c{next(self._count)}" for _ in range(self._data.draw(st.integers(0, 2)))]
        if not names:
            return {"content": f"Seat {next(self._count)}."}
        made = [
            {"id": n, "type": "function", "function": {"name": "find", "arguments": f'{{"n": "{n}"}}'}}
            for n in names
        ]
        return {"content": None, "tool_calls": made}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_model_sees_complete_turns_of_the_current_branch(data: Any) -> None:
    drawn, sessions = Drawn(data), list[Session]()
    unlimited = RecoveryBudget(rollbacks=None, rollbacks_per_step=None)
    guard = Guard(
        detectors={},
        localizer=drawn,
        accept=drawn.accept,
        recover=RecoveryPolicy(on_fail=[{"rollback": {}}], budget=unlimited),
    )
    guard.tool(effect="read", name="find")(len)
    transport = guard.transport(inner=Model(data, sessions), on_run=sessions.append)
    with httpx2.Client(transport=transport) as client:
        runs: list[list[Body]] = [[TASK], [TASK]]
        open_runs = [0, 1]
        for _ in range(8):
            if not open_runs:
                break
            which = data.draw(st.sampled_from(open_runs))
            body = {"model": "m", "messages": runs[which]}
            given_back = client.post("http://model/v1/chat/completions", json=body).json()
            answer = given_back["choices"][0]["message"]
            runs[which].append(answer)
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": "no seat"}
                for call in answer.get("tool_calls") or ()
            ]
            runs[which] += results
            if not results:
                open_runs.remove(which)
    assert not transport.interceptor.failures
    assert len(sessions) <= 2


@given(st.lists(st.one_of(st.integers(0, 9), st.sampled_from(["agent", "user", "told"])), max_size=30))
def test_branch_drops_agent_steps_and_keeps_user_messages(moves: list[int | str]) -> None:
    line, history, model = ConversationBranch(), list[Body](), list[tuple[str, str]]()
    for move in moves:
        if isinstance(move, int):
            keep = min(move, len(line))
            kept = [i for i, (kind, _) in enumerate(model) if kind != "told"][:keep]
            end = kept[-1] + 1 if kept else 0
            model = model[:end] + [one for one in model[end:] if one[0] == "user"]
            line.truncate(keep)
        elif move == "told":
            line.add_guard_item({"content": f"t{len(model)}"})
            model.append(("told", f"t{len(model)}"))
        else:
            text = f"{move}{len(history)}"
            history.append({"content": text})
            line.add_step(BranchStep(items=[len(history) - 1], is_prompt=move == "user"))
            model.append((move, text))
    assert [item["content"] for item in resolve_items(line.collect_item_refs(), history)] == [
        text for _, text in model
    ]


messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", "tool"]), "content": st.text(max_size=3)}
)


@given(st.lists(messages, max_size=6), st.lists(messages, max_size=6))
def test_keys_are_equal_exactly_for_equal_histories(left: list[Body], right: list[Body]) -> None:
    dialect = ChatAdapter()
    one, two = (
        build_prefix_keys(left, dialect.build_item_key),
        build_prefix_keys(right, dialect.build_item_key),
    )
    for place in range(min(len(one), len(two))):
        same = [dialect.build_item_key(m) for m in left[:place]] == [
            dialect.build_item_key(m) for m in right[:place]
        ]
        assert (one[place] == two[place]) is same
    assert not set(build_prefix_keys(left, dialect.build_item_key, seed="run")) & set(one)


def test_answer_is_recognised_in_any_client_notation() -> None:
    key = ChatAdapter().build_item_key
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"a": 1, "b": 2}'}}
    again = {"id": "c", "function": {"name": "find", "arguments": '{"b":2,"a":1}', "parsed_arguments": None}}
    given = {"role": "assistant", "content": "I look.", "tool_calls": [call], "refusal": None}
    assert key(given) == key({"role": "assistant", "tool_calls": [again], "content": None})
    assert key(given) != key({"role": "assistant", "content": "I look."})
    parts = [{"type": "text", "text": "I look."}]
    assert key({"role": "assistant", "content": "I look. "}) == key({"role": "assistant", "content": parts})
    assert key({"role": "assistant", "refusal": "No."}) != key({"role": "assistant", "refusal": "Never."})
