"""Folder to which a guard writes the bundles of its runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from agentguard.bundles.archive import build_file_name, write_bundle
from agentguard.bundles.captured_run import build_run_bundle
from agentguard.detect.base import Finding
from agentguard.errors import AgentGuardError
from agentguard.guard import diagnose
from agentguard.runtime.background_queue import BackgroundQueue
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import Verdict

logger = logging.getLogger("agentguard.bundles")

_MAX_JOBS: Final = 1_024


class BundleFolder:
    """Observer that diagnoses each ended run in the background and writes its bundle.

    ::

        guard = Guard(run_observers=[BundleFolder("bundles/", on_failure=True)])

    Args:
        folder: the folder; it is created with access for the owner only.
        on_failure: write only runs whose diagnosis is a failure.
        method: localizer of the diagnosis.
        effects: effect class of each tool by name, for replays in the mode ``decisions``.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        on_failure: bool = False,
        method: str = "embedded",
        effects: Mapping[str, str] | None = None,
    ) -> None:
        self._folder, self._on_failure, self._method = Path(folder), on_failure, method
        self._effects = dict(effects or {})
        self._queue = BackgroundQueue("agentguard-bundles", max_jobs=_MAX_JOBS)

    def __call__(self, run: Trajectory, findings: Sequence[Finding]) -> None:
        """Queue a run that has ended; beyond 1,024 waiting runs the oldest gets no bundle."""
        del findings
        if run.steps:
            self._queue.put(partial(self._write, run))

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all ended runs are written; return False after the timeout."""
        return self._queue.flush(timeout_s)

    def _write(self, run: Trajectory) -> None:
        diagnosis = diagnose(run, method=self._method)
        if self._on_failure and diagnosis.verdict is not Verdict.FAILED:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            bundle = build_run_bundle(run, diagnosis, self._effects)
            write_bundle(bundle, self._folder / build_file_name(run.id))
        except (AgentGuardError, OSError) as error:
            logger.warning("the bundle of a run was not written: %s", error)
