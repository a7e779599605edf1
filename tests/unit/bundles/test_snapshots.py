"""Saved states of the environment: a bundle has them, and a replay returns them instead of live states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentguard import Guard
from agentguard.bundles import RunBinding, minimize_bundle, record_run, replay_bundle
from agentguard.chaos import InjectionBinding
from agentguard.cli.app import build_app
from agentguard.errors import BundleError
from agentguard.localize.baselines.last_error import LastErrorLocalizer
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.recover.snapshots.manager import SnapshotOptions
from agentguard.trajectory.model import Trajectory
from tests.unit.integrations.test_loop_snapshots import FORK, moves

SECRET = "sk-proj-0123456789abcdefghijklmnopqrstuvwxyz"


class Walk:
    """Agent whose tool changes an environment that a rollback restores."""

    def __init__(self, save: Callable[[], Any] | None = None) -> None:
        self.world: dict[str, Any] = {"at": 0, "key": SECRET}
        self.guard = Guard(localizer=LastErrorLocalizer(), recover=RecoveryPolicy(on_fail=FORK))
        self.guard.tool(effect="read")(self.move)
        self.live_states: list[Any] = []
        self.restored: list[Any] = []
        self._save = save or self.save

    def move(self, by: int) -> str:
        """Move."""
        self.world["at"] += by
        return "still no seat"

    def save(self) -> dict[str, Any]:
        """Return the state of the environment."""
        self.live_states.append(dict(self.world))
        return dict(self.world)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state of the environment."""
        self.restored.append(state)
        self.world.update(state)

    def run(self, binding: RunBinding) -> Trajectory:
        """Move until the guard rolls the run back."""
        model, tools = binding.bind_model(moves(1, 2, 7, 7, 7, 3)), binding.bind_tools([self.move])
        save, restore = binding.bind_environment(self._save, self.restore)
        options = SnapshotOptions(max_turns=1)
        with self.guard.run(
            "Move.", tools=tools, id=binding.run_id, save=save, restore=restore, snapshots=options
        ) as run:
            while not run.done:
                run.tools(run.model(model))
        return run.trajectory


def test_bundle_has_each_saved_state_and_no_secret(tmp_path: Path) -> None:
    walk = Walk()
    bundle = record_run(walk.run, tmp_path / "a.agb", guard=walk.guard)
    assert walk.restored, "the run has a rollback that restores a state"
    assert [one.state["at"] for one in bundle.snapshots] == [state["at"] for state in walk.live_states]
    assert (bundle.snapshots[0].model_calls, bundle.snapshots[-1].tool_calls) == (0, len(bundle.tool_calls))
    assert SECRET.encode() not in (tmp_path / "a.agb").read_bytes()
    lines = CliRunner().invoke(build_app(), ["bundle", "inspect", str(tmp_path / "a.agb")]).output
    assert 'after 0 model calls and 0 tool calls: {"at":0,' in lines


def test_replay_returns_recorded_states_and_touches_no_environment(tmp_path: Path) -> None:
    walk = Walk()
    bundle = record_run(walk.run, tmp_path / "a.agb", guard=walk.guard)
    other = Walk()
    assert replay_bundle(bundle, other.run).is_equal
    assert (other.world["at"], other.live_states, other.restored) == (0, [], [])


def test_replay_of_bundle_without_snapshots_saves_an_empty_state(tmp_path: Path) -> None:
    walk = Walk()
    bundle = record_run(walk.run, tmp_path / "a.agb", guard=walk.guard)
    assert replay_bundle(replace(bundle, snapshots=()), Walk().run).is_equal


def test_smaller_bundle_has_its_states(tmp_path: Path) -> None:
    walk = Walk()
    bundle = record_run(walk.run, tmp_path / "a.agb", guard=walk.guard)
    smallest = minimize_bundle(bundle, Walk().run)
    assert 0 < len(smallest.snapshots) <= len(bundle.snapshots)


@pytest.mark.parametrize("state", [{1, 2}, b"raw", (1, 2)])
def test_state_that_is_not_json_is_refused_with_a_remedy(tmp_path: Path, state: Any) -> None:
    walk = Walk(save=lambda: state)
    with pytest.raises(BundleError, match="unbound"):
        record_run(walk.run, tmp_path / "a.agb", guard=walk.guard)


def test_campaign_saves_and_restores_the_live_environment() -> None:
    walk = Walk()
    walk.run(InjectionBinding())
    assert len(walk.live_states) > len(walk.restored) > 0
