"""Cache of the contents of files."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

_MAX_FILES: Final = 32
_FileVersion = tuple[str, int, int]
T = TypeVar("T")


class FileCache(Generic[T]):
    """Thread-safe LRU cache; an entry is valid until the size or the modification time of its file changes.

    Args:
        read: function that reads a file.
    """

    def __init__(self, read: Callable[[Path], T]) -> None:
        self._read_file = read
        self._lock = threading.Lock()
        self._contents: OrderedDict[_FileVersion, T] = OrderedDict()

    def read(self, path: Path) -> T:
        """Return the content of a file. Raises OSError, and the errors of the function that reads it."""
        stat = path.stat()
        version = (str(path), stat.st_size, stat.st_mtime_ns)
        with self._lock:
            if version in self._contents:
                self._contents.move_to_end(version)
                return self._contents[version]
        content = self._read_file(path)
        with self._lock:
            self._contents[version] = content
            while len(self._contents) > _MAX_FILES:
                self._contents.popitem(last=False)
        return content
