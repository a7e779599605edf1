"""Named plug-ins of one kind, built in or installed by others.

A registry knows no kind: each room makes its own, and built-ins and third parties come through the same door.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar, cast

from agentguard.errors import ConfigError, UnknownPlugin

T = TypeVar("T")


class Registry(Generic[T]):
    """Plug-ins by name, imported when they are first asked for.

    Args:
        kind: what a plug-in of this registry is called in messages, e.g. ``"detector"``.
        group: the entry-point group third parties register under, e.g. ``"agentguard.detectors"``.
        builtin: name to ``"module:attribute"`` of the plug-ins that ship here.
    """

    def __init__(self, kind: str, *, group: str, builtin: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = group
        self._entry_points = dict(builtin)
        self._plugins: dict[str, T] = {}
        self._has_scanned = False

    def register(self, name: str, plugin: T) -> None:
        """Add a plug-in from code. Raises ConfigError if the name is taken."""
        if name in self.names():
            raise ConfigError(f"a {self.kind} named {name!r} is already registered")
        self._plugins[name] = plugin

    def names(self) -> tuple[str, ...]:
        """All names, sorted; looks for installed entry points once."""
        self._scan_entry_points()
        return tuple(sorted({*self._entry_points, *self._plugins}))

    def get(self, name: str) -> T:
        """Return the plug-in called ``name``. Raises UnknownPlugin with the names there are."""
        if name not in self._plugins:
            if name not in self._entry_points:
                self._scan_entry_points()
            if name not in self._entry_points:
                raise UnknownPlugin(f"no {self.kind} named {name!r}; there are: {', '.join(self.names())}")
            module, _, attribute = self._entry_points[name].partition(":")
            self._plugins[name] = cast(T, getattr(import_module(module), attribute))
        return self._plugins[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def _scan_entry_points(self) -> None:
        if self._has_scanned:
            return
        self._has_scanned = True
        for point in entry_points(group=self.group):
            # A third party cannot replace what ships here: a policy names a detector and must get that one.
            self._entry_points.setdefault(point.name, point.value)
