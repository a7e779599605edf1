"""What was asked of replicas while the proxy runs, kept where every worker of the machine looks for it.

A wish holds until it is taken back, or until the configuration is reloaded: that counts more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from agentguard.errors import ConfigError

Wish = Literal["drain", "remove"]

_KINDS: Final = ("drain", "remove")
_MOST: Final = 4096
_TICK_NS: Final = 100_000_000
"""Within a tick of the file system's clock two wishes may leave a file of the same time and number."""
_UNSETTLED: Final = (0, 0)


class DesiredReplicaState:
    """Wishes by replica.

    Args:
        folder: that of the workers' board; None: there is one worker.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / "wishes.json"
        self._held: dict[str, Wish] = {}
        self._done: dict[str, Wish] = {}
        self._stamp: tuple[int, int] | None = None

    def set(self, replica: str, what: Wish | None) -> None:
        """Wish something of a replica, or take it back. Raises OSError."""
        if self._file is None:
            _put(self._held, replica, what)
            return
        with _locked(self._file.with_suffix(".lock")):
            held = _read(self._file)
            _put(held, replica, what)
            made = self._file.with_suffix(f".{os.getpid()}.tmp")
            made.write_bytes(orjson.dumps(held))
            made.replace(self._file)

    def read(self) -> Mapping[str, Wish]:
        """All wishes there are."""
        if self._file is not None:
            stamp = _stamp(self._file)
            if stamp != self._stamp:
                settled = stamp is None or time.time_ns() - stamp[0] > _TICK_NS
                self._held, self._stamp = _read(self._file), stamp if settled else _UNSETTLED
        return self._held

    async def reconcile(self, pool: Any) -> None:
        """Do in this worker what was wished and is not done yet; a replica that is gone needs nothing."""
        wanted = dict(self.read())
        for replica in [*wanted, *(set(self._done) - set(wanted))]:
            wish, done = wanted.get(replica), self._done.get(replica)
            if wish == done:
                continue
            with contextlib.suppress(ConfigError):
                if wish == "remove":
                    await pool.remove(replica)
                else:
                    await pool.drain(replica, on=wish == "drain")
            _put(self._done, replica, wish)

    def clear(self) -> None:
        """The configuration was read anew: it says what holds."""
        self._held, self._done = {}, {}
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)


def _put(held: dict[str, Wish], replica: str, what: Wish | None) -> None:
    if what is None:
        held.pop(replica, None)
    else:
        held[replica] = what


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _read(path: Path) -> dict[str, Wish]:
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(name): what for name, what in list(found.items())[:_MOST] if what in _KINDS}


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
