"""Lazy evaluation: a cached property without a lock, and package exports that are imported at first use.

Up to Python 3.11, `functools.cached_property` takes a lock at the first use. Only one thread uses an object
with a `lazy_property`, and the lock costs more than most of the cached values.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar, overload

from agentguard.errors import MissingExtra

T = TypeVar("T")


class lazy_property(Generic[T]):
    """Property that is computed at its first use; the instance attribute then shadows this descriptor."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> lazy_property[T]: ...

    @overload
    def __get__(self, owner: object, kind: type) -> T: ...

    def __get__(self, owner: object | None, kind: type) -> lazy_property[T] | T:
        if owner is None:
            return self
        value = self._compute(owner)
        owner.__dict__[self._name] = value
        return value


def lazy_exports(
    package: str, homes: Mapping[str, str], *, extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that imports a name at its first use.

    Args:
        package: the package's ``__name__``.
        homes: exported name to the module that defines it.
        extra: the optional extra that the modules need, named by the error if it is not installed.

    Raises:
        MissingExtra: from ``__getattr__``, if a third-party module of ``extra`` is not installed.
    """

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(home), name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").split(".")[0]
            if extra is None or missing.startswith("agentguard"):
                raise
            raise MissingExtra(missing, extra) from None
        vars(sys.modules[package])[name] = value
        return value

    return load, lambda: sorted(homes)


def require_packages(packages: Iterable[str], extra: str) -> None:
    """Check that packages are installed, without an import. Raises MissingExtra for the first missing one."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, extra)


def import_extra(module: str, extra: str) -> Any:
    """Return an optional module. Raises MissingExtra with the command that installs ``extra``."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise MissingExtra(module.split(".")[0], extra) from None
