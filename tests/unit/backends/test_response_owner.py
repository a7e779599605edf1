"""A request for a stored response goes to the replica that owns it while that replica is available."""

from agentguard.errors import RetriesExhausted
from tests.unit.backends.pool_fixtures import Scene, ok, refuse


def test_owner_is_used_regardless_of_policy():
    scene = Scene(a=[ok()], b=[ok()], load_balancing="priority")

    async def main():
        assert [
            (await scene.ask(pinned_replica=name)).replica for name in ("b", "b", "a", "", "gone")
        ] == list("bbaaa")

    scene.run(main)


def test_request_for_owner_does_not_fail_over():
    scene = Scene(a=[ok()], b=[refuse(500)], load_balancing="priority")

    async def main():
        assert isinstance(await scene.attempt(pinned_replica="b"), RetriesExhausted)
        assert scene.counts() == {"a": 0, "b": 3}

    scene.run(main)
