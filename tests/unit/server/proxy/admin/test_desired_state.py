"""Desired state of replicas, sent to every worker of the machine."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from agentguard_server.proxy.admin.desired_state import DesiredReplicaState

from agentguard.errors import ConfigError


class Pool:
    """Pool that records its requests and knows some replicas."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.done: list[tuple[str, str]] = []

    async def drain(self, name: str, *, on: bool = True) -> None:
        self._know(name)
        self.done.append((name, "drain" if on else "undrain"))

    async def remove(self, name: str) -> None:
        self._know(name)
        self.names.discard(name)
        self.done.append((name, "remove"))

    def _know(self, name: str) -> None:
        if name not in self.names:
            raise ConfigError(f"there is no replica {name}")


def test_desired_state_is_applied_and_reverted_once_per_worker(tmp_path: Path) -> None:
    async def go_on() -> None:
        workers = [(DesiredReplicaState(tmp_path), Pool("a", "b")) for _ in range(2)]
        workers[0][0].set("a", "drain")
        for _ in range(3):
            for desired_state, pool in workers:
                await desired_state.reconcile(pool)
        workers[1][0].set("a", None)
        workers[1][0].set("b", "remove")
        for _ in range(3):
            for desired_state, pool in workers:
                await desired_state.reconcile(pool)
        for _, pool in workers:
            assert sorted(pool.done) == [("a", "drain"), ("a", "undrain"), ("b", "remove")]
            assert pool.done[0] == ("a", "drain")

    asyncio.run(go_on())


def test_late_worker_applies_current_state(tmp_path: Path) -> None:
    async def go_on() -> None:
        DesiredReplicaState(tmp_path).set("a", "drain")
        late, pool = DesiredReplicaState(tmp_path), Pool("a")
        await late.reconcile(pool)
        assert pool.done == [("a", "drain")]
        late.clear()
        assert DesiredReplicaState(tmp_path).read() == {}
        await late.reconcile(pool)
        assert pool.done == [("a", "drain")], "the configuration says what holds: nothing is taken back"

    asyncio.run(go_on())


def test_writes_within_one_file_timestamp_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All writes have the same timestamp, and the file system reuses the inode number after two writes."""
    now = time.time_ns() + 10**12
    stamp = "agentguard_server.proxy.admin.desired_state._read_stamp"
    monkeypatch.setattr(stamp, lambda path: (now, 7) if path.exists() else None)
    told, asked = DesiredReplicaState(tmp_path), DesiredReplicaState(tmp_path)
    for what, held in (("drain", {"a": "drain"}), (None, {}), ("remove", {"a": "remove"})):
        asked.set("a", what)  # type: ignore[arg-type]
        assert told.read() == held
    told.clear()
    assert told.read() == {}


def test_desired_state_of_unknown_replica_is_ignored(tmp_path: Path) -> None:
    async def go_on() -> None:
        desired_state = DesiredReplicaState(tmp_path)
        desired_state.set("gone", "drain")
        await desired_state.reconcile(Pool())

    asyncio.run(go_on())


@pytest.mark.parametrize("text", ["", "[]", '{"a": "explode"}', '{"a": 1}', "{"])
def test_malformed_file_is_read_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "desired_state.json").write_text(text)
    assert DesiredReplicaState(tmp_path).read() == {}


def test_single_worker_needs_no_file() -> None:
    desired_state = DesiredReplicaState(None)
    desired_state.set("a", "drain")
    assert desired_state.read() == {"a": "drain"}
