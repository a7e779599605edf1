"""API key in a file that another program renews, such as an access token of a cloud."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agentguard.errors import ConfigError

_LOGGER = logging.getLogger(__name__)
_CHECK_INTERVAL_S: Final = 1.0
_MAX_BYTES: Final = 65_536


class ApiKeyFile:
    """API key that follows the changes of its file.

    Args:
        path: file with the key and nothing else, except white space around it.
        clock: monotonic time in seconds.

    Attributes:
        key: the current key.

    Raises:
        ConfigError: the file cannot be read, is empty, or is longer than a key.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._checked_at, self._state = clock(), _read_state(path)
        self.key = _read_key(path)

    def refresh(self) -> bool:
        """Read the file again if it has changed; return whether the key has changed.

        The file is checked at most once a second. If it cannot be read, the old key remains in use.
        """
        now = self._clock()
        if now - self._checked_at < _CHECK_INTERVAL_S:
            return False
        self._checked_at = now
        try:
            state = _read_state(self._path)
            if state == self._state:
                return False
            key = _read_key(self._path)
        except ConfigError as error:
            if self._state is not None:
                _LOGGER.warning("%s; the old key remains in use", error)
            self._state = None
            return False
        has_changed = key != self.key
        self._state, self.key = state, key
        return has_changed


def _read_state(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}") from None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read_key(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}") from None
    key = data.decode("utf-8", "replace").strip()
    if not key or len(data) > _MAX_BYTES or not key.isprintable() or not key.isascii():
        raise ConfigError(
            f"the key file {path} has no key: it must contain only the key, in ASCII and on one line"
        )
    return key
