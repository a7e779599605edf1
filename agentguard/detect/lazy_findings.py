"""Findings of a run, computed on first access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from agentguard.detect.base import Finding
from agentguard.detect.detection import detect
from agentguard.trajectory.model import Trajectory


class LazyFindings(Sequence[Finding]):
    """Findings of all detectors in a run, computed on first access, because many callers never read them."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._findings: tuple[Finding, ...] | None = None

    @overload
    def __getitem__(self, place: int) -> Finding: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Finding]: ...
    def __getitem__(self, place: int | slice) -> Finding | Sequence[Finding]:
        """Return one finding, or a slice of them."""
        return self._load()[place]

    def __len__(self) -> int:
        return len(self._load())

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._load())

    def _load(self) -> tuple[Finding, ...]:
        if self._findings is None:
            self._findings = tuple(detect(self._trajectory).findings)
        return self._findings
