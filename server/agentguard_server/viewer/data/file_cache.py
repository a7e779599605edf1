"""Cache of the contents of files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from agentguard._bounded_map import BoundedMap

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
        self._contents = BoundedMap[_FileVersion, T](_MAX_FILES)

    def read(self, path: Path) -> T:
        """Return the content of a file. Raises OSError, and the errors of the function that reads it."""
        stat = path.stat()
        version = (str(path), stat.st_size, stat.st_mtime_ns)
        with self._lock:
            content = self._contents.use(version)
        if content is not None:
            return content
        content = self._read_file(path)
        with self._lock:
            self._contents[version] = content
        return content
