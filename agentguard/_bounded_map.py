"""Map with an upper bound on its entries, for caches and for state of runs that may never end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedMap(MutableMapping[K, V]):
    """Map that removes its oldest entry above a limit; an assignment makes its entry the newest one.

    Each operation takes constant time. `popitem` removes the oldest entry.

    Args:
        max_entries: upper bound on the number of entries.
        on_evict: called with the value of each entry that the bound removes.
    """

    __slots__ = ("_entries", "_max_entries", "_on_evict")

    def __init__(self, max_entries: int, *, on_evict: Callable[[V], None] | None = None) -> None:
        self._max_entries, self._on_evict = max_entries, on_evict
        # ``next(iter(…))`` of a dict scans over the places of the entries that were removed from its front.
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __getitem__(self, key: K) -> V:
        return self._entries[key]

    def __setitem__(self, key: K, value: V) -> None:
        entries = self._entries
        entries[key] = value
        entries.move_to_end(key)
        while len(entries) > self._max_entries:
            _, evicted = entries.popitem(last=False)
            if self._on_evict is not None:
                self._on_evict(evicted)

    def __delitem__(self, key: K) -> None:
        del self._entries[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def use(self, key: K) -> V | None:
        """Return the value of a key and make its entry the newest one; None without an entry."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]
