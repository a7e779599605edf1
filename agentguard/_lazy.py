"""Exports of packages and optional modules that are imported at their first use."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from agentguard.errors import MissingExtra


def lazy_exports(
    package: str, homes: Mapping[str, str], *, extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that imports a name at its first use.

    Args:
        package: the package's ``__name__``.
        homes: module that defines each exported name, by name.
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
