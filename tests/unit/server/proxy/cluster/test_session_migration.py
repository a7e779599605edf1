"""Migration of runs to another proxy: effects and history are available there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from agentguard_server.proxy.cluster.services import ClusterServices
from agentguard_server.proxy.config.schema import ClusterOptions
from agentguard_server.proxy.guard.inline_guard import InlineGuard
from agentguard_server.proxy.guard.options import GuardOptions

from agentguard.config.policy import Policy
from agentguard.intercept.guarded_apis import GUARDED_APIS as DIALECTS
from agentguard.intercept.history_edits import build_turn_key
from tests.postgres import postgres, postgres_url  # noqa: F401
from tests.unit.server.proxy.guard.scripted_model import APIS, CHAT, RESPONSES, Api, Played, Turn, calls

ROLLBACK = {
    "localizer": {"name": "first_finding"},
    "recover": {"on_fail": ["rollback"]},
    "tools": {"book": {"effect": "write"}, "find": {"effect": "read"}},
}
TASK = {"role": "user", "content": "Book seat 4."}
RANDOM = ["call_9f8e7d6c5b4a3210", "call_1a2b3c4d5e6f7081", "call_77aa66bb55cc44dd", "call_0123456789abcdef"]

each_api = pytest.mark.parametrize("api", list(APIS.values()), ids=list(APIS))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: Any, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    found: str = request.getfixturevalue("postgres_url")
    return found


class Two:
    """Two proxies over one database, and their client."""

    def __init__(self, url: str) -> None:
        self.shared = [ClusterServices(ClusterOptions(store=url, lookup_timeout_s=5)) for _ in range(2)]
        self.proxies = [
            InlineGuard(GuardOptions(policy=Policy.parse(ROLLBACK)), conversations=one.conversations)
            for one in self.shared
        ]
        self.world = Played(api=CHAT, guarding=self.proxies[0], turns=iter(()))
        self.history: list[Any] = []

    def plays(self, api: Api, turns: Sequence[Turn], **more: str) -> None:
        self.world = Played(api=api, guarding=self.proxies[0], turns=iter(turns), **more)
        self.history = [TASK]

    def at(self, number: int) -> InlineGuard:
        """Switch to this proxy, after all rows are in the database."""
        for one in self.shared:
            assert one.effect_replicator is not None
            assert one.effect_replicator.flush(10)
            one.store.flush(10)
        self.world.guarding = self.proxies[number]
        return self.proxies[number]

    def turn(self) -> dict[str, Any]:
        """Send one request with the whole history."""
        made = self.world.ask(self.world.api.body(self.history))
        self.took(made)
        return made

    def took(self, made: dict[str, Any]) -> None:
        api = self.world.api
        self.history += api.given(made)
        self.history += [api.result(id, "booked as 77") for id in api.calls(made)]


@pytest.fixture
def two(url: str) -> Iterator[Two]:
    made = Two(url)
    yield made
    for one in made.shared:
        one.close()


def told(two: Two) -> str:
    return json.dumps(two.world.sent[-1])


@each_api
@pytest.mark.parametrize("named", [True, False])
def test_effect_is_not_repeated_at_another_proxy_after_client_drops_it(
    two: Two, api: Api, named: bool
) -> None:
    ids = ["b", "find1", "find2", "find3"] if named else RANDOM
    turns: list[Turn] = [("call", "book", ids[0], "4")]
    turns += [("call", "find", id, "aisle") for id in ids[1:]]
    turns += [("call", "find", "f4-0a1b2c3d", "door"), ("call", "book", "again", "4"), ("say", "Done.")]
    two.plays(api, turns, run_id="job" if named else "")
    for _ in range(5):
        two.turn()
    assert any("rollback" in head.get("agentguard-recoveries", "") for head in two.world.heads)
    del two.history[1:3]  # the client drops the booking, which was its first turn
    two.at(1)
    made = two.turn()
    assert api.text(made) == "Done."
    assert "already taken effect" in told(two)
    assert "booked as 77" in told(two)
    assert not any(inline._interceptors[""].failures for inline in two.proxies)


@each_api
def test_rolled_back_effects_are_known_from_history(two: Two, api: Api) -> None:
    """Even if only the rolled-back turns of the run are known."""
    turns: list[Turn] = [("call", "book", "b", "4"), ("call", "find", "f1", "x")]
    two.plays(api, [*turns, ("call", "book", "again", "4"), ("say", "Done.")])
    two.turn()
    booked = two.history[1:]
    two.turn()
    left = [build_turn_key(DIALECTS[api.name].adapter, booked)]

    async def found(keys: Sequence[bytes], *, tenant: str) -> Any:
        return {"left": left, "notes": [], "told": [], "withheld": [], "spent": {}}

    inline = two.at(1)
    inline._conversations.load = found  # type: ignore[union-attr,method-assign]
    made = two.turn()
    assert '"b"' not in told(two)
    assert "already taken effect" in told(two)
    assert api.text(made) == "Done."


@each_api
def test_same_effect_in_another_task_is_executed(two: Two, api: Api) -> None:
    once, again = ("call", "book", "b1", "4"), ("call", "book", "b2", "4")
    two.plays(api, [once, ("say", "Done."), again, ("say", "Again.")])
    two.turn()
    two.turn()
    two.history.append({"role": "user", "content": "And once more, for my friend."})
    two.at(1)
    assert api.calls(two.turn()) == ["b2"]
    assert api.text(two.turn()) == "Again."
    assert "already taken effect" not in told(two)


def test_effects_expire_with_the_last_state_of_their_run(two: Two) -> None:
    two.plays(CHAT, [("call", "book", "b1", "4"), ("call", "find", "f", "x")], run_id="job")
    two.turn()
    two.turn()
    two.at(1)
    store = two.shared[1].store
    (effect,) = store.list_effects("job")
    assert (effect.state, effect.tool, effect.data["result"]) == ("done", "book", "booked as 77")
    assert store.delete_expired_shared_state(session_ttl_s=3600, hint_ttl_s=3600) == 0
    assert store.delete_expired_shared_state(session_ttl_s=-5, hint_ttl_s=3600) > 1
    assert store.list_effects("job") == ()
    assert store.delete_expired_shared_state(session_ttl_s=-5, hint_ttl_s=3600) == 0


class Named:
    """Client of the Responses API that names the previous response."""

    def __init__(self, two: Two, turns: Sequence[Turn], *, stream: bool = False, **more: str) -> None:
        self.two, self.stream = two, stream
        two.plays(RESPONSES, turns, **more)
        self.before: str | None = None

    def ask(self, *items: Any, **more: Any) -> dict[str, Any]:
        body = {**RESPONSES.body(list(items)), **more}
        if self.before is not None:
            body["previous_response_id"] = self.before
        made = self.two.world.ask(body)
        self.before = made["id"]
        return made

    def results(self, made: dict[str, Any]) -> list[Any]:
        return [RESPONSES.result(id, "nothing found") for id in RESPONSES.calls(made)]


def test_run_with_previous_response_id_continues_at_another_proxy(two: Two) -> None:
    turns: list[Turn] = [
        *calls("find", 3),
        ("call", "book", "b", "4"),
        ("call", "find", "f4", "z"),
        ("say", "Done."),
    ]
    client = Named(two, turns)
    given: list[Any] = [TASK]
    for number in range(6):  # alternates
        two.at(number % 2)
        made = client.ask(*given)
        given = client.results(made)
    assert RESPONSES.text(made) == "Done."
    assert any("rollback" in head.get("agentguard-recoveries", "") for head in two.world.heads)
    last = two.world.sent[-1]
    assert "previous_response_id" not in last, "any replica may be asked: none has to have the response"
    assert last["input"][0] == TASK
    shown = [id for id in ("find0", "find1", "find2", "b", "f4") if f'"{id}"' in json.dumps(last)]
    assert shown == ["find0", "b", "f4"], "what was taken back stays so"
    assert [int(head["agentguard-step"]) for head in two.world.heads][-1] >= 5
    assert not any(inline._interceptors[""].failures for inline in two.proxies)
    assert two.world.unguarded == 0


def test_previous_response_id_is_kept_at_the_same_proxy(two: Two) -> None:
    client = Named(two, [*calls("find", 2), ("say", "Done.")])
    made = client.ask(TASK)
    first = client.before
    made = client.ask(*client.results(made))
    assert two.world.sent[-1]["previous_response_id"] == first
    assert len(two.world.sent[-1]["input"]) == 1


@pytest.mark.parametrize("why", ["store", "tenant", "gone"])
def test_unavailable_history_forwards_request_unchanged(two: Two, why: str) -> None:
    client = Named(two, [*calls("find", 2), ("say", "Done.")], tenant="team")
    made = client.ask(TASK, **({"store": False} if why == "store" else {}))
    two.at(1)
    if why == "tenant":
        two.world.tenant = "other"
    if why == "gone":
        two.shared[0].store.delete_expired_shared_state(session_ttl_s=-5, hint_ttl_s=3600)
    kept = two.shared[0].store.get_stats().rows["sessions"]
    assert (kept > 0) == (why == "tenant")
    client.ask(*client.results(made))
    assert two.world.sent[-1]["previous_response_id"] == made["id"]
    assert len(two.world.sent[-1]["input"]) == 1
