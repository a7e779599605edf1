"""Start of a Ray cluster with a scripted Ray; `tests/integration/test_ray_engine.py` runs the real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentguard.batch import RayEngine, ray_engine
from agentguard.batch.processor import ProcessorConfig
from agentguard.errors import ConfigError


class _RayError(Exception):
    pass


class ScriptedRay:
    """Ray whose first starts fail."""

    exceptions = SimpleNamespace(RayError=_RayError)

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.addresses: list[str] = []
        self.shutdowns = 0

    def is_initialized(self) -> bool:
        return False

    def init(self, *, address: str, **_: Any) -> None:
        self.addresses.append(address)
        if self.failures:
            raise self.failures.pop(0)

    def shutdown(self) -> None:
        self.shutdowns += 1

    def remote(self, **_: Any) -> Any:
        actor = SimpleNamespace(remote=lambda *_: None)
        return lambda _: SimpleNamespace(options=lambda **_: actor)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def run_without_chunks(ray: ScriptedRay, address: str | None = None) -> None:
        monkeypatch.setattr(ray_engine, "import_extra", lambda *_: ray)
        assert list(RayEngine(1, address).run(iter(()), ProcessorConfig.__new__(ProcessorConfig))) == []

    return run_without_chunks


def test_local_cluster_whose_start_fails_twice_starts(run: Any) -> None:
    ray = ScriptedRay(RuntimeError("node timed out"), _RayError("no session"))
    run(ray)
    assert ray.addresses == ["local"] * 3
    assert ray.shutdowns == 3  # after each failure, and at the end


def test_local_cluster_that_never_starts_raises_the_cause_and_the_way_out(run: Any) -> None:
    ray = ScriptedRay(*(RuntimeError("\nnode timed out\nmore") for _ in range(4)))
    with pytest.raises(ConfigError, match="does not start: node timed out; use the engine local"):
        run(ray)
    assert len(ray.addresses) == 3


def test_unreachable_cluster_is_tried_once(run: Any) -> None:
    ray = ScriptedRay(ConnectionError("refused"))
    with pytest.raises(
        ConfigError, match=r"at 10\.0\.0\.1:6379 cannot be reached: refused; check the address"
    ):
        run(ray, "10.0.0.1:6379")
    assert ray.addresses == ["10.0.0.1:6379"]
