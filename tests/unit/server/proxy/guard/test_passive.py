"""Passive correlation yields the same runs for any order and concurrency of the exchanges."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
from agentguard_server.proxy.capture.correlator import RunCorrelator
from agentguard_server.proxy.capture.protocol import CapturedExchange
from agentguard_server.proxy.capture.run_writer import RunWriter
from agentguard_server.proxy.guard.options import GuardOptions
from hypothesis import given, settings, strategies as st

from agentguard.config.policy import Policy
from agentguard.guard import Guard
from agentguard.intercept.guarded_apis import GUARDED_APIS as DIALECTS
from agentguard.intercept.interceptor import Interceptor
from agentguard.recover.capabilities import Capabilities
from agentguard.runtime.session import Session
from agentguard.runtime.session_config import SessionConfig
from agentguard.store import Store
from agentguard.trajectory.model import Trajectory
from tests.unit.server.proxy.guard.scripted_model import APIS, CHAT, Api, calls

GUARD = Guard.from_policy(Policy.parse({"localizer": {"name": "first_finding"}}))
SECRET = "sk-" + "a1B2" * 12
TURNS: list[Any] = [
    ("say", "The next train leaves at 8:11."),
    ("say", "I can't help with that."),
    *calls("find", 2),
    ("say", "It has been booked successfully."),
]


def seen(api: Api, body: Any, answer: Any, *, run: str = "", repeat: bool = False) -> CapturedExchange:
    said = b"" if answer is None else json.dumps(answer).encode()
    return CapturedExchange(
        tenant="t",
        run_id=run,
        api=api.name,
        is_retry=repeat,
        request_body=json.dumps(body).encode(),
        response=said,
        started_at=1.0,
        ended_at=2.0,
    )


def conversation(
    api: Api, run: str, picks: list[int], *, system: bool, drops: bool
) -> list[CapturedExchange]:
    """Return the requests of one client, which loses one answer in three and requests it again."""
    history: list[Any] = [{"role": "system", "content": "You plan journeys."}] if system else []
    history.append({"role": "user", "content": f"How do I get to {run}?"})
    made: list[CapturedExchange] = []
    for number, pick in enumerate(picks):
        answer = api.answer(TURNS[pick % len(TURNS)])
        if pick % 3 == 0:
            made.append(seen(api, api.body(history), None, run=run))
        made.append(seen(api, api.body(history), answer, run=run, repeat=pick % 3 == 0))
        history += api.given(answer)
        results = [api.result(id, f"nothing {number}") for id in api.calls(answer)]
        history += results or [{"role": "user", "content": f"And then, {number}?"}]
        if drops and results and number > 1:
            history = [history[0], *history[-2:]]
    return made


def as_acted(messages: list[CapturedExchange]) -> dict[str, Trajectory]:
    """Return the runs of the inline engine, one request after another."""
    sessions: dict[str, Session] = {}
    now = 0.0
    rules = replace(
        cast(SessionConfig, GUARD.components.session_config), finding_threshold=2.0, clock=lambda: now
    )  # no finding leads to a plan

    def begin(meta: Trajectory) -> Session:
        sessions[meta.id] = Session(rules, meta, Capabilities())
        return sessions[meta.id]

    engine = Interceptor(GUARD, create_session=begin)
    for one in messages:
        body, now = json.loads(one.request_body), one.started_at
        exchange = engine.open_request(
            DIALECTS[one.api].adapter, body, run_name=one.run_id, is_retry=one.is_retry
        )
        now = one.ended_at
        if one.response:
            exchange.record_answer(json.loads(one.response))
        exchange.settle()
    return {name: session.run for name, session in sessions.items()}


def as_kept(messages: list[CapturedExchange], folder: Path, *, at_once: int, **options: Any) -> Store:
    store = Store.open(folder / "runs.db")
    kept = RunWriter(store, None if options.get("diagnose") is False else GUARD, redact=True)
    observer = RunCorrelator(GUARD, kept, GuardOptions())
    for begin in range(0, len(messages), at_once):
        with kept.unit_of_work():
            for message in messages[begin : begin + at_once]:
                observer.process(message)
    kept.close()
    assert kept.failed_runs == 0
    store.flush(20)
    return store


picks = st.lists(st.integers(0, 11), min_size=1, max_size=5)


@given(
    st.lists(st.tuples(picks, st.booleans(), st.booleans()), min_size=1, max_size=3),
    st.sampled_from(sorted(APIS)),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_passive_runs_are_independent_of_order_and_concurrency(
    conversations: list[Any], name: str, at_once: int, order: Any
) -> None:
    api = APIS[name]
    waiting = [
        conversation(api, f"town{i}", turns, system=system and name == "chat", drops=drops)
        for i, (turns, system, drops) in enumerate(conversations)
    ]
    messages: list[CapturedExchange] = []
    while waiting:
        chosen = order.choice(waiting)
        started_at = 1_700_000_000.0 + 10 * len(messages)
        messages.append(
            msgspec.structs.replace(chosen.pop(0), started_at=started_at, ended_at=started_at + 3)
        )
        waiting = [one for one in waiting if one]
    expected = as_acted(messages)
    with tempfile.TemporaryDirectory() as folder, as_kept(messages, Path(folder), at_once=at_once) as store:
        for run in expected.values():
            assert store.get_trajectory(run.id, tenant="t") == run
        assert {row.id for row in store.list_runs(tenant="t").rows} == set(expected)


def test_findings_without_calls_are_stored(tmp_path: Path) -> None:
    body = CHAT.body([{"role": "user", "content": f"My key is {SECRET}, what is it?"}])
    passed = [seen(CHAT, body, CHAT.answer(("say", f"I can't help with that, nor with {SECRET}.")), run="a")]
    with as_kept(passed, tmp_path, at_once=1) as store:
        (found,) = store.list_findings("a", tenant="t")
        assert found.detector == "refusal"
        run = store.get_trajectory("a", tenant="t")
        assert run is not None
        quote = found.data["evidence"][0]
        assert run.steps[1].text(quote["field"])[quote["start"] : quote["end"]] == quote["quote"]
        assert SECRET not in repr((run, store.get_run("a", tenant="t"), found))
        assert not store.list_diagnoses("a", tenant="t"), "tools were not called in it"


def test_captured_turn_has_the_times_of_its_exchange(tmp_path: Path) -> None:
    body = CHAT.body([{"role": "user", "content": "Where is it?"}])
    passed = [seen(CHAT, body, CHAT.answer(("say", "In Bern.")), run="a")]
    with as_kept(passed, tmp_path, at_once=1) as store:
        run = store.get_trajectory("a", tenant="t")
    assert run is not None
    assert [(step.started_at, step.ended_at) for step in run.steps] == [(None, None), (1.0, 2.0)]


def test_disabled_detection_finds_nothing(tmp_path: Path) -> None:
    body = CHAT.body([{"role": "user", "content": "Where is it?"}])
    passed = [seen(CHAT, body, CHAT.answer(("say", "I can't help with that.")), run="a")]
    with as_kept(passed, tmp_path, at_once=1, diagnose=False) as store:
        assert store.get_trajectory("a", tenant="t") is not None
        assert not store.list_findings("a", tenant="t")


def test_secret_in_one_run_does_not_change_others(tmp_path: Path) -> None:
    tasks = {"a": "Where is Bern?", "b": f"The password is {SECRET}", "c": "Who is secretary: Ann?"}
    passed = [
        seen(
            CHAT,
            CHAT.body([{"role": "user", "content": task}]),
            CHAT.answer(("say", f"{task} I do not know.")),
            run=run,
        )
        for run, task in tasks.items()
    ]
    with as_kept(passed, tmp_path, at_once=3) as store:
        said = {name: store.get_trajectory(name, tenant="t") for name in tasks}
        rows = {name: store.get_run(name, tenant="t") for name in tasks}
    for name in "ac":
        run, row = said[name], rows[name]
        assert run is not None
        assert row is not None
        assert [step.content for step in run.steps] == [tasks[name], f"{tasks[name]} I do not know."]
        assert (row.length, row.data["ended"]) == (2, True)
    assert SECRET not in repr((said, rows))
    assert "[redacted:" in repr(said["b"])


def test_continued_run_is_stored_up_to_its_current_step(tmp_path: Path) -> None:
    history: list[Any] = [{"role": "user", "content": "Find it."}]
    asked = CHAT.answer(calls("find", 1)[0])
    passed = [seen(CHAT, CHAT.body(history), asked, run="a")]
    history += [*CHAT.given(asked), CHAT.result(CHAT.calls(asked)[0], "nothing found")]
    passed.append(seen(CHAT, CHAT.body(history), CHAT.answer(calls("find", 2)[1]), run="a"))
    with as_kept(passed, tmp_path, at_once=1) as store:
        run, row = store.get_trajectory("a", tenant="t"), store.get_run("a", tenant="t")
    assert run is not None
    assert row is not None
    assert [[one.content for one in step.observations] for step in run.steps] == [[], ["nothing found"]]
    assert "ended" not in row.data
