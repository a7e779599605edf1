"""Adapter of localizers that lack the optional members of the protocol."""

from __future__ import annotations

from collections.abc import Sequence

from agentguard.detect.base import Finding
from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis, LocalizerAdapter, adapt_localizer
from agentguard.localize.baselines.last_error import LastErrorLocalizer
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import Verdict


class Minimal:
    """Localizer with the required members only."""

    name = "minimal"

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Return an undecided diagnosis."""
        return Diagnosis(
            trajectory_id=trajectory.id, method=self.name, verdict=Verdict.UNDECIDED, probability=0.5
        )


class Complete(Minimal):
    """Localizer with all members, which does not derive from the base class."""

    def __init__(self) -> None:
        self.closed = 0
        self.excluded: list[str] = []
        self.immediate_localizer = Minimal()

    def without_group(self, group: str) -> Minimal:
        """Record the group."""
        self.excluded.append(group)
        return self.immediate_localizer

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1


def test_minimal_localizer_gets_the_defaults() -> None:
    held = adapt_localizer(Minimal())
    assert isinstance(held, LocalizerAdapter)
    assert held.name == "minimal"
    assert held.immediate_localizer is held
    assert held.without_group("q") is held
    held.close()
    run = Trajectory(id="r", format="event_log", task="", steps=())
    assert held.locate(run, ()) == Minimal().locate(run, ())


def test_plug_in_keeps_its_optional_members() -> None:
    inner = Complete()
    held = adapt_localizer(inner)
    assert held.immediate_localizer.name == "minimal"
    held.without_group("q")
    assert inner.excluded == ["q"]
    with Guard(localizer=held):
        pass
    assert inner.closed == 1


def test_complete_localizers_are_not_wrapped() -> None:
    built_in = LastErrorLocalizer()
    assert adapt_localizer(built_in) is built_in
    adapted = adapt_localizer(Minimal())
    assert adapt_localizer(adapted) is adapted


def test_live_runs_use_the_immediate_localizer() -> None:
    config = Guard(localizer=Complete()).components.session_config
    assert config is not None
    assert config.run_diagnosis is not None
    assert config.localizer is not config.run_diagnosis.localizer
    assert config.localizer is not None
    assert config.localizer.name == "minimal"
