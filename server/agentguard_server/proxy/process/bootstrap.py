"""Composition root of a worker: creates its components from the settings and replaces them on a reload."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentguard.errors import ConfigError
from agentguard_server.proxy.auth.authorization import Keyring
from agentguard_server.proxy.auth.shared_counters import SharedCounters
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.guard.options import GuardOptions
from agentguard_server.proxy.state import AppState

if TYPE_CHECKING:
    from agentguard_server.proxy.auth.spending_ledger import SpendingLedger
    from agentguard_server.proxy.capture.recorder import CaptureRecorder
    from agentguard_server.proxy.guard.inline_guard import InlineGuard

logger = logging.getLogger("agentguard.proxy")

_RESTART_SECTIONS: Final = ("listen", "capture", "metrics", "logs", "tracing", "cluster", "ui")


class Bootstrap:
    """Components of one worker, for one event loop.

    Args:
        settings: the configuration.
        worker: number of this process, from 0.
        folder: folder that the workers of the machine share; None for a single worker.

    Attributes:
        app_state: state of the application.
        pool: replicas that serve requests.

    Raises:
        ConfigError: a component cannot be created from its configuration.
        MissingExtra: a required package is not installed.
    """

    def __init__(self, settings: ProxySettings, *, worker: int = 0, folder: Path | None = None) -> None:
        from agentguard.backends.pool import Pool
        from agentguard_server.proxy.process.services import WorkerServices

        self._worker, self._guard = worker, _resolve_guard(settings)
        self._services = services = WorkerServices(settings, worker=worker, snapshot_folder=folder)
        self.pool = Pool(settings.backends, observers=services.event_observers, hints=services.health_hints)
        self._capture = capture = self._build_capture(settings)
        self._interceptor = self._build_interceptor(settings, self._guard)
        self.app_state = AppState(
            settings,
            self.pool,
            interceptor=self._interceptor,
            request_observers=() if capture is None else (capture,),
            max_captured_bytes=0 if capture is None else capture.max_captured_bytes,
        )
        self.app_state.worker = worker
        workers = settings.listen.workers
        self._counters = SharedCounters(folder, worker=worker, workers=workers)
        self._spending = _open_spending(settings)
        self.app_state.keyring = self._build_keyring(settings)
        services.attach(self.app_state, self.pool, capture=capture)
        services.add_status_source("spending", self._describe_spending)

    def fork_collector(self) -> None:
        """Fork the collector, while this process has one thread and no event loop."""
        if self._capture is not None:
            self._capture.fork_collector()

    async def start(self) -> None:
        """Start the background services: telemetry, collector and health checks."""
        await self._services.start()
        if self._capture is not None:
            self._capture.start()
        if self._spending is not None:
            self._spending.start()
        await self.pool.start()

    async def apply(self, settings: ProxySettings) -> None:
        """Replace the components whose settings have changed; requests in flight keep the old components.

        Raises:
            ConfigError: a component cannot be created from the new settings; the old settings stay in effect.
        """
        old_settings, interceptor = self.app_state.settings, self._interceptor
        guard = _resolve_guard(settings)
        if guard != self._guard:
            interceptor = self._build_interceptor(settings, guard)
        spending = self._spending or _open_spending(settings)
        await self.pool.apply(settings.backends)
        self._spending = spending
        if spending is not None:
            spending.start()
        keys = self._build_keyring(settings)
        if interceptor is not self._interceptor and self._interceptor is not None:
            self._interceptor.close()
        self._guard, self._interceptor = guard, interceptor
        self.app_state.apply_settings(settings, keyring=keys, interceptor=interceptor)
        self._services.on_reload()
        pending = [one for one in _RESTART_SECTIONS if getattr(settings, one) != getattr(old_settings, one)]
        if pending:
            logger.warning("changes of %s take effect when the proxy restarts", ", ".join(pending))

    async def aclose(self) -> None:
        """Stop all components; wait briefly until captured requests, telemetry and spans are written."""
        if self._interceptor is not None:
            self._interceptor.close()
        await self.pool.aclose()
        if self._spending is not None:
            await asyncio.to_thread(self._spending.close)
        if self._capture is not None:
            await self._capture.aclose()
        await self._services.aclose()

    def _build_keyring(self, settings: ProxySettings) -> Keyring | None:
        return Keyring.from_settings(settings, counters=self._counters, spending=self._spending)

    def _describe_spending(self) -> dict[str, Any]:
        """Return spent and maximum US dollars by key and tenant, for ``/status``."""
        settings = self.app_state.settings
        if self._spending is None or not settings.has_budgets:
            return {}
        limits = {f"tenant:{name}": one for name, one in settings.tenants.items()}
        limits |= {f"key:{key.name}": key.limits for key in settings.keys or ()}
        return {
            subject: {
                "period": one.budget.period,
                "max_usd": one.budget.max_usd,
                "spent_usd": round(self._spending.get_spent(subject, one.budget.period), 6),
            }
            for subject, one in limits.items()
            if one.budget is not None
        } | {"failed_syncs": self._spending.failed_syncs}

    def _build_capture(self, settings: ProxySettings) -> CaptureRecorder | None:
        if settings.capture is None:
            return None
        from agentguard_server.proxy.capture.recorder import CaptureRecorder

        parent = os.getppid() if settings.listen.workers > 1 else None
        unguarded_suffix = (
            "" if settings.guard is None or settings.guard.stream_mode == "observe" else "-unguarded"
        )
        return CaptureRecorder(
            settings.capture,
            self._guard or GuardOptions(),
            worker=self._worker,
            parent=parent,
            run_name_suffix=unguarded_suffix + _build_run_name_suffix(settings, is_per_worker=False),
        )

    def _build_interceptor(self, settings: ProxySettings, guard: GuardOptions | None) -> InlineGuard | None:
        if guard is None or guard.stream_mode == "observe":
            return None
        from agentguard_server.proxy.guard.inline_guard import InlineGuard

        cluster = self._services.cluster
        return InlineGuard(
            guard,
            run_log_factory=None if self._capture is None else self._capture.client,
            run_name_suffix=_build_run_name_suffix(settings, is_per_worker=True),
            conversations=None if cluster is None else cluster.conversations,
        )


def _build_run_name_suffix(settings: ProxySettings, *, is_per_worker: bool) -> str:
    """Return a random suffix if several of these processes may write runs to one store, else no suffix.

    Args:
        settings: the configuration.
        is_per_worker: each worker names runs; otherwise one process names those of all workers.
    """
    locations = [settings.capture.store or os.environ.get("AGENTGUARD_STORE")] if settings.capture else []
    is_shared = (
        settings.cluster is not None
        or (is_per_worker and settings.listen.workers > 1)
        or any(str(one).startswith("postgresql") for one in locations)
    )
    return f"-{secrets.token_hex(3)}" if is_shared else ""


def _open_spending(settings: ProxySettings) -> SpendingLedger | None:
    """Return the ledger of the budgets in the store of ``cluster`` or ``capture``; None without budgets.

    Raises:
        ConfigError: no store is configured.
    """
    if not settings.has_budgets:
        return None
    from agentguard.store.db.database_address import resolve_address
    from agentguard.store.default_location import ENVIRONMENT_VARIABLE
    from agentguard_server.proxy.auth.spending_ledger import SpendingLedger

    sections = (settings.cluster, settings.capture)
    url = next((one.store for one in sections if one is not None and one.store), None)
    if url is None and settings.capture is None and not os.environ.get(ENVIRONMENT_VARIABLE):
        raise ConfigError(
            f"a budget needs a store for the spending: set capture.store, cluster.store or "
            f"{ENVIRONMENT_VARIABLE}"
        )
    return SpendingLedger(resolve_address(url))


def _resolve_guard(settings: ProxySettings) -> GuardOptions | None:
    """Return the section ``guard`` with the policy itself in place of its path."""
    guard = settings.guard
    if guard is None:
        return None
    from agentguard.schemata.persistence import resolve_location

    policy = guard.load_policy()
    # A worker's guard has no store: all workers and the collector share the schemata of the captured runs.
    schemata = resolve_location(policy.schemata, settings.capture.store if settings.capture else None)
    return guard.model_copy(update={"policy": policy.model_copy(update={"schemata": schemata})})
