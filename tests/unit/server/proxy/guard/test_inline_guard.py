"""Inline guard of requests: the same contract for each API, called through the interface of the proxy."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from agentguard_server.proxy.guard.inline_guard import InlineGuard
from agentguard_server.proxy.guard.options import GuardOptions

from agentguard.backends.base import Response
from agentguard.config.policy import Policy
from agentguard.guard import Guard
from tests.unit.server.proxy.guard.scripted_model import APIS, CHAT, RESPONSES, Api, Played, Turn, calls

TASK: Any = {"role": "user", "content": "Book seat 4."}
LOOP = [*calls("find", 3), ("call", "book", "b", "hall"), ("say", "Done.")]
ROLLBACK = {"recover": {"on_fail": ["rollback"]}}

each_api = pytest.mark.parametrize("api", list(APIS.values()), ids=list(APIS))


def guarding(
    policy: dict[str, Any] | None = None, *, options: dict[str, Any] | None = None, **more: Any
) -> InlineGuard:
    tools = {"book": {"effect": "write"}, "find": {"effect": "read"}}
    given = {"localizer": {"name": "first_finding"}, "tools": tools, **(policy or {})}
    return InlineGuard(GuardOptions(policy=Policy.parse(given), **(options or {})), **more)


def played(api: Api, turns: Sequence[Turn], policy: dict[str, Any] | None = None, **more: Any) -> Played:
    options = {key: more.pop(key) for key in ("options",) if key in more}
    return Played(api=api, guarding=guarding(policy, **options), turns=iter(turns), **more)


@each_api
def test_loop_rollback_persists_in_later_requests(api: Api) -> None:
    world = played(api, LOOP, ROLLBACK)
    assert world.agent([TASK]) == "Done."
    last = json.dumps(world.sent[-1])
    assert [id for id in ("find0", "find1", "find2", "b") if f'"{id}"' in last] == ["find0", "b"]
    assert "[guard]" in last
    assert "rollback@" in world.heads[3]["agentguard-recoveries"]
    assert "agentguard-recoveries" not in world.heads[4]
    assert len({head["agentguard-run"] for head in world.heads}) == 1
    inline = world.guarding
    assert isinstance(inline, InlineGuard)
    (run,) = inline.sessions.list_summaries()
    assert run["ended"]
    assert run["recoveries"] == {"pending": 0, "confirmed": 0, "refuted": 0, "unknown": 1}
    whole = inline.sessions.describe(run["id"], "")
    assert whole is not None
    assert whole["recoveries"][0]["strategy"] == "rollback"
    assert [step["tools"] for step in whole["steps"]] == [[], ["find"], ["book"], []]
    assert inline.sessions.describe(run["id"], "another") is None


@each_api
def test_call_of_unknown_tool_is_refused_before_client_sees_it(api: Api) -> None:
    world = played(api, [("call", "fly", "x", "hall"), ("call", "book", "b", "hall")], ROLLBACK)
    made = world.ask(api.body([TASK]))
    assert api.calls(made) == ["b"]
    assert "[guard]" in json.dumps(world.sent[1])


@each_api
def test_stream_contains_only_accepted_answer(api: Api) -> None:
    world = played(api, [("call", "fly", "x", "hall"), ("call", "book", "b", "hall")], ROLLBACK)
    seen = world.raw(json.dumps({**api.body([TASK]), "stream": True}).encode(), stream=True)
    assert b"fly" not in seen
    assert b"book" in seen
    assert world.heads[0]["agentguard-stream-mode"] == "buffer_tool_calls"


@each_api
@pytest.mark.parametrize("stream", [False, True])
def test_clean_exchange_keeps_its_bytes(api: Api, stream: bool) -> None:
    world = played(api, [("call", "book", "b", "hall")])
    body = json.dumps({**api.body([TASK]), "x_new": [1, {"y": None}], "stream": stream}, indent=1).encode()
    got = world.raw(body, stream=stream)
    made = api.answer(("call", "book", "b", "hall"))
    assert got == (b"".join(api.stream(made)) if stream else json.dumps(made).encode())
    assert world.sent == [json.loads(body)]
    opened = world.guarding.intercept(world.asked(body))
    assert opened is not None
    assert not isinstance(opened, Response)
    assert opened.body is None, "the client's own bytes are sent"


@each_api
@pytest.mark.parametrize("stream", [False, True])
def test_stopped_run_is_answered_by_guard(api: Api, stream: bool) -> None:
    world = played(api, calls("find", 9), {"recover": {"on_fail": ["stop"]}})
    history: list[Any] = [TASK]
    for i in range(3):
        made = world.ask(api.body(history))
        history += [*api.given(made), api.result(f"find{i}", "nothing found")]
    asked = len(world.sent)
    got = world.raw(json.dumps({**api.body(history), "stream": stream}).encode(), stream=stream)
    assert b"[guard] The run was stopped" in got
    assert len(world.sent) == asked, "the model is not asked"
    assert (b"data: " in got) is stream


@each_api
def test_request_of_unknown_run_is_reported_as_unjoined(api: Api) -> None:
    world, other = played(api, calls("find", 3)), played(api, calls("find", 1))
    history: list[Any] = [TASK, *api.given(other.ask(api.body([TASK]))), api.result("find0", "none")]
    made = world.ask(api.body(history))
    history += [*api.given(made), api.result("find0", "none")]
    world.ask(api.body(history))
    assert ["agentguard-unjoined" in head for head in world.heads] == [True, False]
    assert isinstance(world.guarding, InlineGuard)
    assert (world.guarding.counts.guarded, world.guarding.counts.unjoined) == (1, 1)


def test_unknown_previous_response_is_reported_as_unjoined() -> None:
    world = played(RESPONSES, [("call", "find", "a", "hall"), ("say", "Done.")])
    first = world.ask({**RESPONSES.body([TASK]), "previous_response_id": "resp_of_another_worker"})
    item = RESPONSES.result("a", "none")
    world.ask({**RESPONSES.body([item]), "previous_response_id": first["id"]})
    assert ["agentguard-unjoined" in head for head in world.heads] == [True, False]


@each_api
def test_first_request_with_example_turns_is_joined(api: Api) -> None:
    world = played(api, [("say", "Hi."), ("say", "Done.")])
    example = api.given(world.ask(api.body([TASK])))
    world.ask(api.body([{"role": "user", "content": "An example."}, *example, TASK]))
    assert not any("agentguard-unjoined" in head for head in world.heads)


def test_request_that_the_guard_cannot_judge_is_counted() -> None:
    world = played(CHAT, [("say", "Hi.")] * 3)
    world.ask({**CHAT.body([TASK]), "n": 2})
    world.ask({**CHAT.body([TASK]), "functions": [{"name": "f"}]})
    world.ask({"model": "m", "n": 2, "messages": [TASK]})
    assert isinstance(world.guarding, InlineGuard)
    assert (world.guarding.counts.unsupported, world.guarding.counts.guarded, world.unguarded) == (2, 0, 3)


@each_api
def test_request_without_tools_passes_unguarded(api: Api) -> None:
    world = played(api, [("say", "Hello.")] * 4)
    plain = {key: value for key, value in api.body([TASK]).items() if key != "tools"}
    world.ask(plain)
    assert world.unguarded == 1
    talk = {**plain, api.history: [{"role": "user", "content": 'What is "tools" in JSON?'}]}
    world.ask(talk)
    assert world.unguarded == 2, "the word alone offers nothing"
    world.run_id = "mine"
    world.ask(api.body([TASK]))
    world.ask(plain)
    assert world.unguarded == 2, "a run that is guarded stays so"


def test_request_without_tools_is_guarded_if_configured() -> None:
    plain = {"model": "m", "messages": [TASK]}
    for options in ({"stream_mode": "buffer_all"}, {"mode": "always"}):
        world = played(CHAT, [("say", "Hello.")], options=options)
        world.ask(plain)
        assert world.unguarded == 0


@pytest.mark.parametrize(
    ("run", "options", "too_long"),
    [
        ("off", {}, 0),
        ("", {"stream_mode": "observe"}, 0),
        ("", {"max_body_bytes": 1024}, 1),
    ],
)
def test_excluded_request_passes_unguarded(run: str, options: dict[str, Any], too_long: int) -> None:
    world = played(CHAT, [("call", "fly", "x", "hall")], run_id=run, options=options)
    body = {**CHAT.body([TASK]), "padding": "x" * 1024}
    assert CHAT.calls(world.ask(body)) == ["x"]
    assert world.unguarded == 1
    inline = world.guarding
    assert isinstance(inline, InlineGuard)
    assert inline.counts.too_long == too_long


@pytest.mark.parametrize("body", [b"", b"[]", b'{"tools": [', b"[" * 60_000 + b'"tools"', b'{"tools": 1}'])
def test_invalid_body_passes_unguarded(body: bytes) -> None:
    world = played(CHAT, [])
    assert world.guarding.intercept(world.asked(body)) is None


def test_tenants_never_share_runs() -> None:
    inline = guarding(ROLLBACK)
    first = Played(api=CHAT, guarding=inline, turns=iter(LOOP), tenant="a", run_id="same")
    history: list[Any] = [TASK]
    for i in range(2):
        made = first.ask(CHAT.body(history))
        history += [*CHAT.given(made), CHAT.result(f"find{i}", "nothing found")]
    other = Played(
        api=CHAT, guarding=inline, turns=iter([("call", "find", "f", "hall")]), tenant="b", run_id="same"
    )
    other.ask(CHAT.body(history))
    assert [run["tenant"] for run in inline.sessions.list_summaries()] == ["b", "a"]
    assert inline.sessions.list_summaries("a")[0]["length"] == 2, "what b sent is none of a's"
    assert other.heads[0]["agentguard-step"] == "3"
    assert inline.sessions.describe("same", "a") != inline.sessions.describe("same", "b")


def test_client_names_the_run() -> None:
    world = played(CHAT, [("say", "ok")] * 3, run_id="nightly-7")
    for _ in range(2):
        world.ask(CHAT.body([TASK]))
    world.run_id = "no\nname"
    world.ask(CHAT.body([TASK]))
    names = [head["agentguard-run"] for head in world.heads]
    assert names[:2] == ["nightly-7", "nightly-7.2"]
    assert names[2].startswith("run-")


@pytest.mark.parametrize("policy", ["fail_open", "fail_closed"])
@pytest.mark.parametrize("stream", [False, True])
def test_guard_error_follows_on_guard_error(policy: str, stream: bool, monkeypatch: Any) -> None:
    world = played(CHAT, [("call", "fly", "x", "hall")], {"on_guard_error": policy})
    body = json.dumps({**CHAT.body([TASK]), "stream": stream}).encode()
    monkeypatch.setattr("agentguard.runtime.session.Session.propose", None)
    got = world.raw(body, stream=stream)
    assert (b"fly" in got) is (policy == "fail_open")
    if policy == "fail_closed":
        assert b"guard failed" in got
        assert stream or world.statuses == [403]


@pytest.mark.parametrize("policy", ["fail_open", "fail_closed"])
def test_unreadable_request_follows_on_guard_error(policy: str) -> None:
    world = played(CHAT, [], {"on_guard_error": policy})
    opened = world.guarding.intercept(world.asked(json.dumps(CHAT.body([{"role": 7}])).encode()))
    assert (opened is None) is (policy == "fail_open")
    assert opened is None or (isinstance(opened, Response) and opened.status == 403)


def test_compressed_answer_counts_as_guard_error() -> None:
    world = played(CHAT, [])
    guarded = world.guarding.intercept(world.asked(json.dumps(CHAT.body([TASK])).encode()))
    assert guarded is not None
    assert not isinstance(guarded, Response)
    squeezed = Response(status=200, headers=((b"content-encoding", b"gzip"),), body=b"\x1f\x8b")
    assert asyncio.run(guarded.judge(squeezed, world._model)) is squeezed
    assert world.guarding._interceptors[""].failures  # type: ignore[attr-defined]


def test_interrupted_stream_is_not_recorded_as_answer() -> None:
    world = played(CHAT, [("call", "book", "b", "hall")])
    guarded = world.guarding.intercept(world.asked(json.dumps(CHAT.body([TASK])).encode(), stream=True))
    assert guarded is not None
    assert not isinstance(guarded, Response)
    hold = guarded.create_stream_buffer()
    pieces = CHAT.stream(CHAT.answer(("call", "book", "b", "hall")))[:-1]
    assert b"book" not in b"".join(hold.feed(piece) for piece in pieces)
    with pytest.raises(EOFError):
        asyncio.run(hold.finish(world._model))


def test_repeated_request_continues_its_run() -> None:
    world = played(CHAT, [("call", "find", "f", "hall")] * 2)
    world.ask(CHAT.body([TASK]))
    world.headers = ((b"x-stainless-retry-count", b"1"),)
    world.ask(CHAT.body([TASK]))
    assert len({head["agentguard-run"] for head in world.heads}) == 1


def test_abandoned_run_ends() -> None:
    async def wait() -> None:
        inline = guarding(options={"idle_timeout_s": 1})
        world = Played(api=CHAT, guarding=inline, turns=iter(calls("find", 1)))
        await world._whole(json.dumps(CHAT.body([TASK])).encode())
        assert not inline.sessions.list_summaries()[0]["ended"]
        for _ in range(100):
            if inline.sessions.list_summaries()[0]["ended"]:
                break
            await asyncio.sleep(0.05)
        assert inline.sessions.list_summaries()[0]["ended"]
        assert inline._sweep_timer is None

    asyncio.run(wait())


def test_response_continued_by_id_stays_guarded() -> None:
    world = played(RESPONSES, [("say", "one"), ("say", "two")])
    made = world.ask(RESPONSES.body([TASK]))
    world.ask({"model": "m", "input": "Go on.", "previous_response_id": made["id"]})
    assert world.unguarded == 0
    world.turns = iter([("say", "three")])
    world.ask({"model": "m", "input": "Go on.", "previous_response_id": "unknown"})
    assert world.unguarded == 1


def test_judge_runs_in_another_thread_and_skips_abandoned_run(monkeypatch: Any) -> None:
    threads: list[str] = []

    def accept(run: Any) -> bool:
        threads.append(threading.current_thread().name)
        return True

    accept.may_block = True  # type: ignore[attr-defined]
    monkeypatch.setattr(
        "agentguard.guard.Guard.from_policy",
        lambda policy, **more: Guard(localizer="first_finding", accept=accept),
    )
    world = played(CHAT, [("say", "Done."), ("call", "find", "f", "hall")])
    world.ask(CHAT.body([TASK]))
    assert len(threads) == 1
    assert threads != ["MainThread"]
    world.ask(CHAT.body([TASK]))
    inline = world.guarding
    assert isinstance(inline, InlineGuard)
    inline.close()
    assert len(threads) == 1
    assert all(run["ended"] for run in inline.sessions.list_summaries())


def shortened(api: Api, history: list[Any], keep: int) -> list[Any]:
    """Return a history as clients shorten it: a summary in place of all but the last turns."""
    return [{"role": "user", "content": "Book seat 4. (Some of it is done.)"}, *history[-2 * keep :]]


@each_api
def test_rewritten_history_is_correlated_by_call_ids(api: Api) -> None:
    turns = [
        *calls("find", 3),
        ("call", "book", "b", "hall"),
        ("call", "find", "f4", "here"),
        ("call", "find", "f5", "there"),
    ]
    world = played(api, turns, ROLLBACK)
    history: list[Any] = [TASK]

    def turn(sent: list[Any]) -> None:
        made = world.ask(api.body(sent))
        history.extend(api.given(made))
        history.extend(api.result(id, "nothing found") for id in api.calls(made))

    for _ in range(4):
        turn(history)
    assert "rollback" in world.heads[3]["agentguard-recoveries"]
    turn(shortened(api, history, 3))  # find1, find2 and book: the finds were rolled back
    last = json.dumps(world.sent[-1])
    assert [id for id in ("find0", "find1", "find2", "b") if f'"{id}"' in last] == ["b"]
    assert len({head["agentguard-run"] for head in world.heads}) == 1
    turn(shortened(api, history, 4))
    assert len({head["agentguard-run"] for head in world.heads}) == 1
    assert not world.guarding._interceptors[""].failures  # type: ignore[attr-defined]


def test_similar_runs_are_not_mixed() -> None:
    inline = guarding()
    for place in "ab":
        world = Played(api=CHAT, guarding=inline, turns=iter(calls("find", 1)))
        world.ask(CHAT.body([{"role": "user", "content": f"Book seat {place}."}]))
    answer = CHAT.given(CHAT.answer(calls("find", 1)[0]))
    world.turns = iter([("say", "ok")])
    world.ask(CHAT.body([TASK, *answer, CHAT.result("find0", "nothing")]))
    assert len(inline.sessions.list_summaries()) == 3, (
        "two wait for such an answer: neither is meant for sure"
    )


class Held:
    """In-memory store of the workers' shared state; values must be plain data."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, bytes], tuple[int, str]] = {}
        self.found: list[bool] = []

    def save(self, keys: Any, state: Any, *, tenant: str, run: str, version: int) -> None:
        assert run
        for key in keys:
            self.states[tenant, key] = (version, json.dumps(state))

    def create_effect_store(self, run: str, *, tenant: str) -> None:
        """Return a local effect store."""

    async def load(self, keys: Sequence[bytes], *, tenant: str) -> Any:
        found = [self.states[tenant, key] for key in keys[:16] if (tenant, key) in self.states]
        self.found.append(bool(found))
        return json.loads(found[0][1]) if found else None


@each_api
def test_rollback_of_one_worker_applies_at_another(api: Api) -> None:
    shared = Held()
    first, second, third = (
        guarding(ROLLBACK, conversations=shared, run_name_suffix=f"-w{i}") for i in range(3)
    )
    turns = [*calls("find", 3), ("call", "book", "b", "4"), ("call", "find", "f4", "there"), ("say", "Done.")]
    world = Played(api=api, guarding=first, turns=iter(turns), tenant="team")
    history: list[Any] = [TASK]

    def turn() -> None:
        made = world.ask(api.body(history))
        history.extend(api.given(made))
        history.extend(api.result(id, "nothing found") for id in api.calls(made))

    for _ in range(4):
        turn()
    assert shared.states
    assert not shared.found, "runs of its own it finds at home"
    world.guarding = second
    turn()
    assert shared.found == [True]
    last = json.dumps(world.sent[-1])
    assert [id for id in ("find0", "find1", "find2", "b") if f'"{id}"' in last] == ["find0", "b"]
    assert last.count("[guard]") == json.dumps(world.sent[-2]).count("[guard]") == 1
    inline = world.guarding
    assert isinstance(inline, InlineGuard)
    assert inline.sessions.list_summaries()[0]["length"] == 3
    world.guarding = third
    turn()
    last = json.dumps(world.sent[-1])
    assert [id for id in ("find0", "find1", "b", "f4") if f'"{id}"' in last] == ["find0", "b", "f4"]
    other = Played(api=api, guarding=third, turns=iter([("say", "ok")]), tenant="other")
    other.ask(api.body(history[:-1]))
    assert shared.found == [True, True, False], "what was done to a run of another tenant is not known"


def test_invalid_shared_edits_are_ignored() -> None:
    shared = Held()
    inline = guarding(ROLLBACK, conversations=shared)
    world = Played(api=CHAT, guarding=inline, turns=iter([("say", "ok")]))
    history = [TASK, *CHAT.given(CHAT.answer(calls("find", 1)[0])), CHAT.result("find0", "none")]
    shared.find = lambda keys, tenant: asyncio.sleep(0, {"left": 7})  # type: ignore[method-assign,assignment]
    assert CHAT.text(world.ask(CHAT.body(history))) == "ok"
    assert world.sent[-1]["messages"] == history


def test_long_body_is_parsed_in_another_thread() -> None:
    world = played(CHAT, LOOP[-2:], ROLLBACK)
    long = [{"role": "user", "content": "x" * 300_000}]

    async def left() -> None:
        opening = world.guarding.intercept(world.asked(json.dumps(CHAT.body(long)).encode()))
        assert isinstance(opening, asyncio.Future)
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        inline = world.guarding
        assert isinstance(inline, InlineGuard)
        for _ in range(2000):
            if len(inline._interceptors[""].conversations):
                break
            await asyncio.sleep(0.02)
        assert len(inline._interceptors[""].conversations) == 1, "a client that leaves takes no run with it"

    asyncio.run(left())
    world.headers = ((b"x-stainless-retry-count", b"1"),)
    assert CHAT.calls(world.ask(CHAT.body(long))) == ["b"]
    assert world.unguarded == 0


def test_session_cache_is_bounded_and_evicts_runs() -> None:
    inline = guarding(options={"max_sessions": 3, "max_session_bytes": 10_000})
    ended: list[Any] = []
    for place in range(6):
        world = Played(api=CHAT, guarding=inline, turns=iter([("call", "find", f"f{place}", "x")]))
        world.ask(CHAT.body([{"role": "user", "content": f"Book seat {place}."}]))
        ended += [run for run in inline.sessions.list_summaries() if run["ended"]]
    assert len(inline.sessions) == len(inline._interceptors[""].conversations) == 3
    world.turns = iter([("call", "find", "g", "x")])
    world.ask(CHAT.body([{"role": "user", "content": "y" * 9_900}]))
    assert len(inline.sessions) == len(inline._interceptors[""].conversations) == 1
    assert not ended, "those that ended are those that are forgotten"


@each_api
@pytest.mark.parametrize("stream", [False, True])
def test_effectful_call_is_voted_on(api: Api, stream: bool) -> None:
    policy = {"recover": {"redundancy": {"effects": ["write"], "candidates": 3, "quorum": 2}}}
    turns = [("call", "book", "b1", "9"), ("call", "book", "b2", "4"), ("call", "book", "b3", "4")]
    world = played(api, turns, policy)
    body = json.dumps({**api.body([TASK]), "stream": stream}).encode()
    got = world.raw(body, stream=stream)
    assert len(world.sent) == 3
    assert not any(one.get("stream") for one in world.sent[1:])
    assert b'"b1"' not in got
    assert b'"b2"' in got or b'"b3"' in got


def test_client_receives_heartbeat_during_long_hold(monkeypatch: Any) -> None:
    monkeypatch.setattr("agentguard_server.proxy.guard.inline_guarded_request._KEEPALIVE_INTERVAL_S", -1.0)
    world = played(CHAT, [("call", "book", "b", "4")])
    seen = world.raw(json.dumps({**CHAT.body([TASK]), "stream": True}).encode(), stream=True)
    assert b": held\n\n" in seen
    kept = seen.replace(b": held\n\n", b"")
    assert kept == b"".join(CHAT.stream(CHAT.answer(("call", "book", "b", "4"))))


def test_lone_surrogate_does_not_bypass_guard() -> None:
    world = played(CHAT, [("call", "fly", "x", "y"), ("call", "book", "b", "4")], ROLLBACK)
    task = {"role": "user", "content": "Book seat \ud83d."}
    assert CHAT.calls(world.ask(CHAT.body([task]))) == ["b"]
    assert world.sent[1]["messages"][0] == task
