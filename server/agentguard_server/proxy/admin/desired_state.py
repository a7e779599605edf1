"""Desired states of replicas, set at runtime and shared by all workers of the machine.

A desired state applies until it is unset or until the next reload of the configuration.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Protocol

import orjson

from agentguard.errors import ConfigError
from agentguard_server.file_lock import lock_file

DesiredState = Literal["drain", "remove"]

_DESIRED_STATES: Final = ("drain", "remove")
_MAX_REPLICAS: Final = 4096
_CLOCK_TICK_NS: Final = 100_000_000
"""Clock tick of the file system; two writes within it may leave the same time and inode number."""
_UNCERTAIN_STAMP: Final = (0, 0)


class ReplicaControl(Protocol):
    """Operations on the replicas of a pool: `agentguard.backends.pool.Pool`."""

    async def drain(self, name: str, *, on: bool = True) -> None:
        """Start to drain a replica, or stop with ``on=False``. Raises ConfigError if the name is unknown."""
        ...

    async def remove(self, name: str) -> None:
        """Remove a replica. Raises ConfigError if the name is unknown."""
        ...


class DesiredReplicaState:
    """Desired states by replica.

    Args:
        folder: folder of the workers' snapshots; None for a single worker.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / "desired_state.json"
        self._desired: dict[str, DesiredState] = {}
        self._applied: dict[str, DesiredState] = {}
        self._stamp: tuple[int, int] | None = None

    def set(self, replica: str, desired: DesiredState | None) -> None:
        """Set the desired state of a replica, or unset it with None. Raises OSError."""
        if self._file is None:
            _update(self._desired, replica, desired)
            return
        with lock_file(self._file.with_suffix(".lock")):
            states = _read_file(self._file)
            _update(states, replica, desired)
            temporary = self._file.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_bytes(orjson.dumps(states))
            temporary.replace(self._file)

    def read(self) -> Mapping[str, DesiredState]:
        """Return the desired states of all replicas that have one."""
        if self._file is not None:
            stamp = _read_stamp(self._file)
            if stamp != self._stamp:
                settled = stamp is None or time.time_ns() - stamp[0] > _CLOCK_TICK_NS
                self._desired, self._stamp = _read_file(self._file), stamp if settled else _UNCERTAIN_STAMP
        return self._desired

    async def reconcile(self, pool: ReplicaControl) -> None:
        """Apply changed desired states to this worker's pool; unknown replicas are skipped."""
        all_desired = dict(self.read())
        for replica in [*all_desired, *(set(self._applied) - set(all_desired))]:
            desired = all_desired.get(replica)
            if desired == self._applied.get(replica):
                continue
            with contextlib.suppress(ConfigError):
                if desired == "remove":
                    await pool.remove(replica)
                else:
                    await pool.drain(replica, on=desired == "drain")
            _update(self._applied, replica, desired)

    def clear(self) -> None:
        """Unset all desired states after a reload of the configuration."""
        self._desired, self._applied = {}, {}
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)


def _update(states: dict[str, DesiredState], replica: str, desired: DesiredState | None) -> None:
    if desired is None:
        states.pop(replica, None)
    else:
        states[replica] = desired


def _read_stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _read_file(path: Path) -> dict[str, DesiredState]:
    try:
        data = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {str(name): one for name, one in list(data.items())[:_MAX_REPLICAS] if one in _DESIRED_STATES}
