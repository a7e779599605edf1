import asyncio

import pytest

from agentguard.backends.config import ReplicaOptions
from agentguard.errors import ConfigError
from tests.unit.backends.pool_fixtures import Scene, fail, ok, read, stream, texts


def replica(scene, name, **more):
    return ReplicaOptions.model_validate({**scene.replica(name), **more})


def test_added_replica_gets_requests():
    scene = Scene(a=[ok()], load_balancing="round_robin")

    async def main():
        await scene.pool.add(replica(scene, "b"))
        assert {(await scene.ask()).replica for _ in range(4)} == {"a", "b"}
        with pytest.raises(ConfigError, match="already"):
            await scene.pool.add(replica(scene, "b"))
        assert [one.name for one in scene.pool.options.replicas] == ["a", "b"]

    scene.run(main)


def test_draining_replica_finishes_requests_and_gets_no_new_ones():
    scene = Scene(a=[ok(seconds=5)], b=[ok()], load_balancing="priority", order={"hedge": "off"})

    async def main():
        task = asyncio.create_task(scene.ask())
        await scene.clock.sleep(1)
        await scene.pool.drain("a")
        assert [(await scene.ask()).replica for _ in range(3)] == ["b"] * 3
        state = scene.pool.status()["replicas"][0]
        assert (state["state"], state["inflight"]) == ("draining", 1)
        await scene.pool.wait_idle("a")
        assert task.done() or (await task).replica == "a"
        assert scene.clock.now() >= 5
        await scene.pool.drain("a", on=False)
        assert (await scene.ask()).replica == "a"

    scene.run(main)


def test_removed_replica_finishes_its_stream_and_is_closed():
    scene = Scene(a=[stream("he", "llo", gap=2.0)], b=[ok()], load_balancing="priority")

    async def main():
        answer = await scene.ask(stream=True)
        await scene.pool.remove("a")
        assert (await scene.ask()).replica == "b"
        assert not scene.ones["a"].closed
        assert scene.pool.status()["replicas"][-1]["state"] == "leaving"
        got, error = await read(answer)
        assert (texts(got)[1:], error) == (("hello", True), None)
        await scene.clock.sleep(0.1)
        assert scene.ones["a"].closed
        assert [one["name"] for one in scene.pool.status()["replicas"]] == ["b"]
        with pytest.raises(ConfigError, match="no replica a"):
            await scene.pool.remove("a")

    scene.run(main)


def test_membership_changes_lose_no_request():
    scene = Scene(a=[ok(seconds=0.5)], b=[ok(seconds=0.5)], load_balancing="round_robin")
    found = []

    async def traffic():
        tasks = []
        for _ in range(200):
            tasks.append(asyncio.create_task(scene.attempt()))
            await scene.clock.sleep(0.05)
        found.extend(await asyncio.gather(*tasks))

    async def main():
        running = asyncio.create_task(traffic())
        for step in range(8):
            await scene.clock.sleep(1.0)
            names = ("a", "c") if step % 2 else ("b", "d", "c")
            await scene.pool.apply(scene.options(*names))
        await running
        assert len(found) == 200
        assert {type(one).__name__ for one in found} == {"Response"}
        assert {one.replica for one in found} == {"a", "b", "c", "d"}

    scene.run(main)
    assert all(one.closed for one in scene.made)


def test_compatible_changes_keep_the_connection():
    scene = Scene(a=[ok()], b=[ok()], load_balancing="priority")

    async def main():
        await scene.ask()
        scene.per["a"] = {"priority": 3, "weight": 2}
        await scene.pool.apply(scene.options("a", "b"))
        assert (await scene.ask()).replica == "b"
        assert len(scene.made) == 2
        assert scene.pool.status()["replicas"][0]["good"] == 1

    scene.run(main)


def test_new_url_replaces_and_closes_connection():
    scene = Scene(a=[ok(seconds=3)])

    async def main():
        running = asyncio.create_task(scene.ask())
        await scene.clock.sleep(1)
        scene.per["a"] = {"url": "http://elsewhere/v1"}
        await scene.pool.apply(scene.options("a"))
        old, new = scene.made
        assert (await scene.ask()).replica == "a"
        assert (len(old.asked), len(new.asked)) == (1, 1)
        assert (await running).status == 200
        await scene.clock.sleep(0.1)
        assert (old.closed, new.closed) == (True, False)

    scene.run(main)


def test_new_key_replaces_connection(monkeypatch):
    monkeypatch.setenv("POOL_TEST_KEY", "one")
    scene = Scene(a=[ok()], per={"a": {"api_key_env": "POOL_TEST_KEY"}})

    async def main():
        await scene.pool.apply(scene.options("a"))
        assert len(scene.made) == 1
        monkeypatch.setenv("POOL_TEST_KEY", "two")
        await scene.pool.apply(scene.options("a"))
        assert len(scene.made) == 2
        await scene.clock.sleep(0.1)

    scene.run(main)


def test_invalid_config_changes_nothing():
    scene = Scene(a=[ok()], load_balancing="priority")
    connect = scene.connect

    def refusing(options):
        if options.name == "c":
            raise ConfigError("no key")
        return connect(options)

    async def main():
        scene.pool._membership._connect = refusing
        with pytest.raises(ConfigError, match="no key"):
            await scene.pool.apply(scene.options("b", "c", load_balancing="round_robin"))
        assert (await scene.ask()).replica == "a"
        assert [one["name"] for one in scene.pool.status()["replicas"]] == ["a"]
        assert scene.pool.options.load_balancing.name == "priority"

    scene.run(main)


def test_new_pipeline_and_policy_apply_to_next_request():
    scene = Scene(a=[fail()], b=[ok()], load_balancing="priority")

    async def main():
        await scene.pool.apply(
            scene.options("a", "b", pipeline=[], load_balancing="round_robin", outlier="off")
        )
        found = [await scene.attempt() for _ in range(4)]
        assert sum(isinstance(one, Exception) for one in found) == 2
        assert scene.pool.status()["load_balancing"] == "round_robin"
        assert [line for line in scene.pool.explain() if line.startswith("1.")] == [
            "1. choice of 2 replicas: round_robin"
        ]

    scene.run(main)


def test_health_checks_start_and_stop_with_their_options():
    scene = Scene(a=[ok()])

    async def main():
        await scene.clock.sleep(30)
        assert scene.ones["a"].beats == []
        await scene.pool.apply(scene.options("a", health={"interval_s": 5}))
        await scene.clock.sleep(30)
        beats = len(scene.ones["a"].beats)
        assert 5 <= beats <= 7
        await scene.pool.apply(scene.options("a"))
        await scene.clock.sleep(30)
        assert len(scene.ones["a"].beats) == beats

    scene.run(main)


def test_close_ends_requests_of_removed_replicas():
    scene = Scene(a=[stream("he", "llo", gap=3.0)], b=[ok()], load_balancing="priority")

    async def main():
        answer = await scene.ask(stream=True)
        await scene.pool.remove("a")
        await scene.clock.sleep(1)
        await scene.pool.aclose()
        assert scene.ones["a"].closed
        await answer.aclose()

    scene.run(main)


def test_new_deadline_applies_at_once_and_budgets_remain():
    scene = Scene(a=[ok(seconds=50)])

    async def main():
        over = scene.pool._pool_pipeline
        await scene.pool.apply(scene.options("a", pipeline={"timeout": {"total_s": 2}}))
        assert scene.pool._pool_pipeline is over
        error = await scene.attempt()
        assert error.code == "deadline_exceeded"
        assert scene.clock.now() == pytest.approx(2.0)

    scene.run(main)
