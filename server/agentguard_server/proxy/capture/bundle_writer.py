"""Writer of bundles for captured runs, so that a failed run can be replayed with the code of its client."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from agentguard.bundles.archive import build_file_name, write_bundle
from agentguard.bundles.bindings import list_effects
from agentguard.bundles.captured_run import build_captured_bundle, build_exchange, build_run_bundle
from agentguard.errors import AgentGuardError
from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import Verdict
from agentguard_server.proxy.capture.protocol import CapturedExchange
from agentguard_server.proxy.guard.options import BundleCondition

logger = logging.getLogger("agentguard.collector")

_MAX_BUFFERED_BYTES: Final = 64 * 1024 * 1024


class RunBundleWriter:
    """Buffer of the exchanges of open runs, and writer of their bundles. Thread-safe.

    The buffer is bounded: above the bound, the writer discards the exchanges of the run that was idle for the
    longest time. The bundle of such a run, and of a run with an inline guard, has the steps of the run in
    place of the exchanges.

    Args:
        folder: folder for the bundles; it is created with access for the owner only.
        condition: runs that get a bundle.
        guard: guard that declares the effects of the tools.
        max_buffered_bytes: upper bound on the bodies in the buffer.
    """

    def __init__(
        self,
        folder: Path,
        condition: BundleCondition,
        guard: Guard,
        *,
        max_buffered_bytes: int = _MAX_BUFFERED_BYTES,
    ) -> None:
        self._folder, self._condition, self._guard = folder, condition, guard
        self._max_buffered_bytes, self._buffered_bytes = max_buffered_bytes, 0
        self._exchanges: OrderedDict[tuple[str, str], list[CapturedExchange]] = OrderedDict()
        self._lock = threading.Lock()

    def add_exchange(self, run_id: str, captured: CapturedExchange) -> None:
        """Buffer an exchange of a run."""
        key = (captured.tenant, run_id)
        with self._lock:
            self._exchanges.setdefault(key, []).append(captured)
            self._exchanges.move_to_end(key)
            self._buffered_bytes += _count_bytes(captured)
            while self._buffered_bytes > self._max_buffered_bytes:
                self._remove(next(iter(self._exchanges)))

    def finish_run(self, tenant: str, run: Trajectory, diagnosis: Diagnosis | None) -> None:
        """Write the bundle of an ended run if the condition holds, and release its exchanges.

        A bundle that cannot be written is logged.
        """
        with self._lock:
            exchanges = self._remove((tenant, run.id))
        failed = diagnosis is not None and diagnosis.verdict is Verdict.FAILED
        if not (failed or self._condition == "always"):
            return
        try:
            self._write(tenant, run, exchanges, diagnosis)
        except (AgentGuardError, OSError) as error:
            logger.warning("the bundle of a run was not written: %s", error)

    def _write(
        self, tenant: str, run: Trajectory, exchanges: list[CapturedExchange], diagnosis: Diagnosis | None
    ) -> None:
        calls = tuple(build_exchange(one.api, one.request_body, one.response) for one in exchanges)
        effects = list_effects(self._guard.tools)
        bundle = (
            build_captured_bundle(run, diagnosis, calls, effects)
            if calls
            else build_run_bundle(run, diagnosis, effects)
        )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_bundle(bundle, self._folder / build_file_name(run.id, scope=tenant))

    def _remove(self, key: tuple[str, str]) -> list[CapturedExchange]:
        exchanges = self._exchanges.pop(key, [])
        self._buffered_bytes -= sum(map(_count_bytes, exchanges))
        return exchanges


def _count_bytes(captured: CapturedExchange) -> int:
    return len(captured.request_body) + len(captured.response)
