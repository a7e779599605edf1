"""Base class of the built-in localizers: the defaults of `Localizer`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentguard.detect.base import Finding
from agentguard.localize.base import Diagnosis, Localizer
from agentguard.trajectory.model import Trajectory


class BaseLocalizer(ABC):
    """Base of the built-in localizers; a plug-in need not derive from it.

    A subclass sets ``name`` and defines `locate`. The other members are described in `Localizer`.
    """

    __slots__ = ()

    name: str = ""

    @abstractmethod
    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Return a diagnosis; see `Localizer.locate`."""

    @property
    def immediate_localizer(self) -> Localizer:
        """This localizer; see `Localizer.immediate_localizer`."""
        return self

    def without_group(self, group: str) -> Localizer:
        """Return this localizer; see `Localizer.without_group`."""
        del group
        return self

    def close(self) -> None:  # noqa: B027
        """Do nothing; see `Localizer.close`."""
