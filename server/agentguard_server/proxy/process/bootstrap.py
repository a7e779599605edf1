"""Puts a gateway together from its settings, and exchanges its parts when they change."""

from __future__ import annotations

import logging
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentguard.config.policy import Policy
from agentguard.errors import MissingExtra
from agentguard_server.proxy.auth.api_keys import Keyring
from agentguard_server.proxy.auth.rate_limits import Quotas
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.state import AppState

if TYPE_CHECKING:
    from agentguard_server.proxy.capture.recorder import Capture
    from agentguard_server.proxy.guard.interceptor import InlineGuard

logger = logging.getLogger("agentguard.proxy")

_NEEDED: Final = ("uvicorn", "httptools", "msgspec")
_FIXED: Final = ("listen", "capture", "runs", "metrics", "logs", "spans", "shared", "ui")


def check_installed() -> None:
    """Raises MissingExtra if a package that the proxy needs is not there."""
    needed = _NEEDED if sys.platform == "win32" else (*_NEEDED, "uvloop")
    for package in needed:
        if find_spec(package) is None:
            raise MissingExtra(package, "serve")


class Bootstrap:
    """A gateway with the parts that were made for it; for one event loop.

    Args:
        settings: the configuration.
        worker: number of this process, from 0 on.
        folder: where workers of one machine tell each other of themselves; None if there is one.

    Attributes:
        gateway: what the application works with.
        pool: who answers requests.

    Raises:
        ConfigError: a part can't be made as it is configured.
        MissingExtra: a package that a part needs is not installed.
    """

    def __init__(self, settings: ProxySettings, *, worker: int = 0, folder: Path | None = None) -> None:
        from agentguard.backends.pool import Pool
        from agentguard_server.proxy.process.services import WorkerServices

        self._worker, self._policy = worker, settings.policy()
        self._operation = operation = WorkerServices(settings, worker=worker, board=folder)
        self.pool = Pool(settings.backends, observers=operation.observers, hints=operation.hints)
        self._capture = capture = self._made_capture(settings)
        self._guarding = self._made_guarding(settings, self._policy)
        self.gateway = AppState(
            settings,
            self.pool,
            guarding=self._guarding,
            recorders=() if capture is None else (capture,),
            capture_bytes=0 if capture is None else capture.most_bytes,
        )
        self.gateway.worker = worker
        workers = settings.listen.workers
        self._share = 1 / workers
        self._quotas = None if folder is None else Quotas(folder, worker=worker, workers=workers)
        self.gateway.keys = Keyring.of(settings.keys, share=self._share, quotas=self._quotas)
        operation.join(self.gateway, self.pool)

    async def start(self) -> None:
        """Begin: heartbeats, the keeper, and whatever else runs beside the requests."""
        await self._operation.start()
        if self._capture is not None:
            self._capture.start()
        await self.pool.start()

    async def apply(self, settings: ProxySettings) -> None:
        """Exchange what has changed; requests that are under way go on as they began.

        Raises:
            ConfigError: a part can't be made of the new settings; the old ones hold then.
        """
        gateway, before, guarding = self.gateway, self.gateway.settings, self._guarding
        policy = settings.policy()
        if policy != self._policy or settings.stream != before.stream:
            guarding = self._made_guarding(settings, policy)
        await self.pool.apply(settings.backends)
        keys = Keyring.of(settings.keys, share=self._share, quotas=self._quotas)
        if keys is not None and gateway.keys is not None:
            keys.inherit(gateway.keys)
        if guarding is not self._guarding and self._guarding is not None:
            self._guarding.close()
        self._policy, self._guarding = policy, guarding
        gateway.take(settings, keys=keys, guarding=guarding)
        self._operation.reloaded()
        stays = [name for name in _FIXED if getattr(settings, name) != getattr(before, name)]
        if stays:
            logger.warning("changes of %s hold once the proxy is started anew", ", ".join(stays))

    async def aclose(self) -> None:
        """End what runs beside the requests; what waits to be kept, told or sent is, for a moment."""
        if self._guarding is not None:
            self._guarding.close()
        await self.pool.aclose()
        if self._capture is not None:
            await self._capture.aclose()
        await self._operation.aclose()

    def _made_capture(self, settings: ProxySettings) -> Capture | None:
        if settings.capture is None:
            return None
        from agentguard_server.proxy.capture.recorder import Capture

        policy = self._policy or Policy()
        parent = os.getppid() if settings.listen.workers > 1 else None
        return Capture(settings.capture, policy, runs=settings.runs, worker=self._worker, parent=parent)

    def _made_guarding(self, settings: ProxySettings, policy: Policy | None) -> InlineGuard | None:
        if policy is None or settings.stream == "pass":
            return None
        from agentguard_server.proxy.guard import build

        log = None if self._capture is None else self._capture.link
        tag = f"-w{self._worker}" if settings.listen.workers > 1 else ""
        held = self._operation.shared
        shared = None if held is None else held.sessions
        return build(policy, stream=settings.stream, runs=settings.runs, log=log, tag=tag, shared=shared)
