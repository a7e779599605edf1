import pytest

from agentguard.backends.config import ProbeOptions, ReplicaOptions
from agentguard.backends.health.checker import KnownAnswerProbe
from agentguard.errors import CircuitOpen
from tests.unit.backends.pool_fixtures import Scene, fail, hang, ok, refuse, stream

BEAT = {"interval_s": 1, "timeout_s": 0.5, "unhealthy_threshold": 2, "healthy_threshold": 2}
SONG = {"prompt": "2+2?", "expected": "Four", "interval_s": 1, "timeout_s": 0.5}


async def replicas(scene, count=6):
    return {(await scene.ask()).replica for _ in range(count)}


@pytest.mark.parametrize("sick", [fail("unsent"), hang(), refuse(500), refuse(503)])
def test_replica_without_heartbeat_is_unused_until_it_recovers(sick):
    scene = Scene(a=[ok()], b=[ok()], health=BEAT, load_balancing="round_robin")

    async def main():
        assert await replicas(scene) == {"a", "b"}
        scene.ones["a"].beat = sick
        await scene.clock.sleep(5)
        assert await replicas(scene) == {"b"}
        assert scene.pool.status()["replicas"][0]["down"] == ["heartbeat"]
        scene.ones["a"].beat = ok(seconds=0)
        await scene.clock.sleep(5)
        assert await replicas(scene) == {"a", "b"}
        assert [str(event.kind) for event in scene.events if event.source == "heartbeat"] == ["down", "up"]

    scene.run(main)


@pytest.mark.parametrize("well", [refuse(401), refuse(404), refuse(429), stream("x")])
def test_any_answer_except_server_error_is_a_heartbeat(well):
    scene = Scene(a=[ok()], b=[ok()], health=BEAT, load_balancing="round_robin")

    async def main():
        scene.ones["a"].beat = well
        await scene.clock.sleep(10)
        assert await replicas(scene) == {"a", "b"}

    scene.run(main)


def test_single_missed_heartbeats_do_not_count():
    scene = Scene(a=[ok()], b=[ok()], health={**BEAT, "unhealthy_threshold": 3})
    beats = [fail(), fail(), ok(seconds=0)] * 10

    async def irregular(one, request):
        return await beats.pop()(one, request)

    async def main():
        scene.ones["a"].beat = irregular
        await scene.clock.sleep(20)
        assert scene.events == []

    scene.run(main)


def test_unexpected_check_error_does_not_stop_checks():
    scene = Scene(a=[ok()], b=[ok()], health=BEAT)

    async def odd(one, request):
        raise ZeroDivisionError

    async def main():
        scene.ones["a"].beat = odd
        await scene.clock.sleep(5)
        scene.ones["a"].beat = fail()
        await scene.clock.sleep(5)
        assert scene.pool.status()["replicas"][0]["down"] == ["heartbeat"]

    scene.run(main)


def asked(scene, name):
    """Return the requests that are not canaries."""
    return [one for one in scene.ones[name].asked if b"2+2" not in one.body]


def singing(right):
    """Return an act that answers probes correctly or wrongly, and all other requests normally."""

    async def act(one, request):
        return await ok("FOUR." if right() else "five", seconds=0.01)(one, request)

    return act


def test_wrong_probe_answer_removes_replica_despite_heartbeat():
    true = {"a": True}
    scene = Scene(a=[singing(lambda: true["a"])], b=[singing(lambda: True)], health=BEAT, probe=SONG)

    async def main():
        await scene.clock.sleep(5)
        true["a"] = False
        await scene.clock.sleep(4)
        state = scene.pool.status()["replicas"][0]
        assert (state["state"], state["probe"], state["down"]) == ("corrupt", "wrong", [])
        before = len(asked(scene, "a"))
        assert await replicas(scene) == {"b"}
        assert len(asked(scene, "a")) == before
        true["a"] = True
        await scene.clock.sleep(4)
        assert scene.pool.status()["replicas"][0]["state"] == "up"

    scene.run(main)


def test_corrupting_replica_is_unused_even_in_panic():
    scene = Scene(a=[singing(lambda: False)], probe=SONG)

    async def main():
        await scene.clock.sleep(5)
        error = await scene.attempt()
        assert isinstance(error, CircuitOpen)
        assert "wrong answers" in str(error)

    scene.run(main)


def test_hanging_engine_behind_healthy_server_is_detected():
    scene = Scene(a=[ok("four", seconds=0.01), hang()], b=[ok("four", seconds=0.01)], health=BEAT, probe=SONG)

    async def main():
        await scene.clock.sleep(8)
        state = scene.pool.status()["replicas"][0]
        assert (state["down"], state["probe"]) == (["probe"], "silent")
        assert await replicas(scene) == {"b"}

    scene.run(main)


def test_refused_probe_is_inconclusive():
    scene = Scene(a=[refuse(404)], probe=SONG)

    async def main():
        await scene.clock.sleep(8)
        state = scene.pool.status()["replicas"][0]
        assert (state["state"], state["probe"]) == ("up", "unclear")

    scene.run(main)


def test_probe_uses_the_model_name_of_the_replica():
    def model(**options):
        scene = Scene(a=[ok()], per={"a": options})
        one = scene.pool._load_balancer.replicas["a"]
        return KnownAnswerProbe(ProbeOptions(prompt="q", expected="e"), one).build_request()

    assert model(models={"m": "served"}).model == "served"
    assert model(models={"*": "served"}).model == "served"
    assert model(models={"m": "*"}).model == "m"
    assert model(apis=["messages"]).target == "/messages"
    assert model().target == "/chat/completions"


def test_probe_skips_replicas_without_a_chat_api():
    scene = Scene(a=[ok()], per={"a": {"apis": ["embeddings"]}}, probe=SONG)

    async def main():
        await scene.clock.sleep(5)
        assert scene.ones["a"].asked == []

    scene.run(main)
    assert ReplicaOptions(name="a", url="http://a").probe


class Wire:
    """Transport of hints between pools, driven by the test."""

    def __init__(self):
        self.published, self.receive = [], None

    def publish(self, hint):
        self.published.append(hint)

    def subscribe(self, receive):
        self.receive = receive


def test_hint_of_another_machine_applies_for_a_while():
    here, there = Wire(), Wire()
    first = Scene(a=[ok()], b=[ok()], health=BEAT, hints=here)

    async def finding():
        first.ones["a"].beat = fail()
        await first.clock.sleep(5)

    first.run(finding)
    assert [(hint.replica, hint.problem) for hint in here.published] == [("a", "down")]
    second = Scene(a=[ok()], b=[ok()], hints=there, load_balancing="round_robin")

    async def heeding():
        there.receive(here.published[0])
        assert await replicas(second) == {"b"}
        assert second.pool.status()["replicas"][0]["state"] == "hinted"
        await second.clock.sleep(31)
        assert await replicas(second) == {"a", "b"}
        there.receive(here.published[0])
        there.receive(type(here.published[0])(replica="a", problem=None))
        assert await replicas(second) == {"a", "b"}

    second.run(heeding)


def test_hints_against_all_replicas_are_ignored():
    wire = Wire()
    source = Wire()
    scene = Scene(a=[ok()], b=[ok()], hints=wire, load_balancing="round_robin")
    teller = Scene(a=[ok()], b=[ok()], hints=source, health=BEAT)

    async def telling():
        for one in teller.ones.values():
            one.beat = fail()
        await teller.clock.sleep(5)

    teller.run(telling)

    async def main():
        for hint in source.published:
            wire.receive(hint)
        assert await replicas(scene) == {"a", "b"}

    scene.run(main)


def test_only_changed_state_is_checked_at_short_interval():
    scene = Scene(
        a=[ok()],
        b=[ok()],
        health={"interval_s": 50, "timeout_s": 1, "unhealthy_threshold": 3, "healthy_threshold": 2},
    )

    async def main():
        await scene.clock.sleep(5)
        scene.ones["a"].beat = fail()
        await scene.clock.sleep(75)
        assert scene.pool.status()["replicas"][0]["down"] == ["heartbeat"]
        beats = len(scene.ones["a"].beats)
        await scene.clock.sleep(200)
        assert len(scene.ones["a"].beats) - beats == 4

    scene.run(main)
