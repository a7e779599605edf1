"""Adapter that completes a plug-in localizer with the members of `Localizer` that it lacks."""

from __future__ import annotations

from collections.abc import Sequence

from agentguard.detect.base import Finding
from agentguard.localize.base import Diagnosis, Localizer, SimpleLocalizer
from agentguard.localize.base_localizer import BaseLocalizer
from agentguard.trajectory.model import Trajectory


class LocalizerAdapter:
    """Complete localizer around a plug-in that has at least ``name`` and ``locate``.

    The defaults are those of `BaseLocalizer`. A plug-in that has one of the optional members of `Localizer`
    keeps it.
    """

    def __init__(self, localizer: SimpleLocalizer) -> None:
        self.localizer = localizer
        self._without_group = getattr(localizer, "without_group", None)
        self._close = getattr(localizer, "close", None)

    @property
    def name(self) -> str:
        """Name of the plug-in."""
        return self.localizer.name

    @property
    def immediate_localizer(self) -> Localizer:
        """Localizer of the plug-in for live runs; the plug-in itself if it does not have one."""
        immediate = getattr(self.localizer, "immediate_localizer", None)
        return self if immediate is None else adapt_localizer(immediate)

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Call ``locate`` of the plug-in."""
        return self.localizer.locate(trajectory, findings)

    def without_group(self, group: str) -> Localizer:
        """Call ``without_group`` of the plug-in; return the plug-in itself if it does not have one."""
        return self if self._without_group is None else adapt_localizer(self._without_group(group))

    def close(self) -> None:
        """Call ``close`` of the plug-in, if it has one."""
        if self._close is not None:
            self._close()


def adapt_localizer(localizer: Localizer | SimpleLocalizer) -> Localizer:
    """Return a localizer with all members of `Localizer`: ``localizer``, or an adapter around it."""
    if isinstance(localizer, BaseLocalizer | LocalizerAdapter):
        return localizer
    return LocalizerAdapter(localizer)
