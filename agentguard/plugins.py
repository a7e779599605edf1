"""Registry of named plug-ins of one kind, built in or installed as entry points.

Each package with plug-ins creates its own registry. Third-party plug-ins follow the rules of built-in ones,
but cannot replace them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast

from agentguard.errors import ConfigError, UnknownPlugin

T = TypeVar("T")


def import_function(reference: str, *, place: str = "", default: str = "") -> Any:
    """Import ``MODULE:FUNCTION``; the module may be in the current folder.

    Args:
        reference: the module and the function.
        place: prefix of the message, such as the option with the reference and a space.
        default: name of the function if the reference has only a module.

    Raises:
        ConfigError: the module or the function does not exist, or is not a function.
    """
    module, _, name = reference.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        function = getattr(import_module(module), name or default)
    except (ImportError, AttributeError, ValueError, TypeError, SyntaxError) as error:
        raise ConfigError(f"{place}{reference} cannot be imported: {error}. Give MODULE:FUNCTION.") from None
    if not callable(function):
        kind = type(function).__name__
        raise ConfigError(f"{place}{reference} is a {kind} value. Give MODULE:FUNCTION.")
    return function


def format_unknown_name(name: str, names: Sequence[str]) -> str:
    """Return a name with the most similar one of ``names`` and the list of all, for a message."""
    similar = get_close_matches(name, names, 1)
    hint = f" (did you mean {similar[0]}?)" if similar else ""
    return f"{name!r}{hint}; there are: {', '.join(names)}"


class Registry(Generic[T]):
    """Plug-ins by name, imported at first use.

    Args:
        kind: name of the kind in messages, e.g. ``"detector"``.
        group: entry-point group of third-party plug-ins, e.g. ``"agentguard.detectors"``.
        builtin: location of each built-in plug-in as ``"module:attribute"``, by name.
        aliases: former names of built-in plug-ins, which `names` does not list.

    Attributes:
        change_count: number of plug-ins that were registered from code.
    """

    def __init__(
        self, kind: str, *, group: str, builtin: Mapping[str, str], aliases: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self.group = group
        self._aliases = dict(aliases or {})
        self._entry_points = dict(builtin)
        self._plugins: dict[str, T] = {}
        self._has_scanned = False
        self._names: tuple[str, ...] = ()
        self.change_count = 0

    def register(self, name: str, plugin: T) -> None:
        """Add a plug-in from code. Raises ConfigError if the name is taken."""
        if name in self.names() or name in self._aliases:
            raise ConfigError(f"a {self.kind} named {name!r} is already registered")
        self._plugins[name] = plugin
        self._names = ()
        self.change_count += 1

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted; scan the installed entry points once."""
        if not self._names:
            self._scan_entry_points()
            self._names = tuple(sorted({*self._entry_points, *self._plugins}))
        return self._names

    def get(self, name: str) -> T:
        """Return the plug-in called ``name``. Raises UnknownPlugin with the known names."""
        name = self._aliases.get(name, name)
        if name not in self._plugins:
            if name not in self._entry_points:
                self._scan_entry_points()
            if name not in self._entry_points:
                raise UnknownPlugin(f"no {self.kind} named {format_unknown_name(name, self.names())}")
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
            # A third party cannot replace a built-in plug-in: its name in a policy must mean that plug-in.
            self._entry_points.setdefault(point.name, point.value)
