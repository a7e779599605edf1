"""A cached property without the lock that `functools.cached_property` takes up to Python 3.11.

A view belongs to one run and one thread, and the lock alone costs more than most of what is cached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy_property(Generic[T]):
    """Compute once, at first use; the value then lies in the instance and shadows this descriptor."""

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
