"""Cluster services of a proxy: health hints, conversations and effects in one database."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from agentguard.errors import ConfigError
from agentguard_server.proxy.cluster.conversation_store import SharedConversationStore
from agentguard_server.proxy.cluster.effect_replicator import EffectReplicator
from agentguard_server.proxy.cluster.health_hints import SharedHealthHints
from agentguard_server.proxy.config.schema import ClusterOptions
from agentguard_server.proxy.telemetry.metrics import MetricSample

if TYPE_CHECKING:
    from agentguard.store.store import Store

_CLOSE_TIMEOUT_S: Final = 2.0


class ClusterServices:
    """State that this process shares with other proxies.

    Args:
        options: section ``cluster`` of the configuration.
        fallback_url: URL of the store if the options name none: that of ``capture``. Without it,
            ``AGENTGUARD_STORE`` names the store.

    Attributes:
        store: the database. The proxy starts without waiting for it. While the database is unavailable,
            rows wait in a queue; rows beyond its limit are dropped.
        health_hints: health hints for the pool; None if they are not shared.
        conversations: conversations for the inline guard; None if they are not shared.
        effect_replicator: effects of guarded runs; None if they are not shared.

    Raises:
        ConfigError: no store is configured.
        MissingExtra: the driver of the database is not installed.
    """

    def __init__(self, options: ClusterOptions, *, fallback_url: str | None = None) -> None:
        from agentguard.store.default_location import ENVIRONMENT_VARIABLE
        from agentguard.store.options import StoreOptions
        from agentguard.store.store import Store

        address = options.store or fallback_url or os.environ.get(ENVIRONMENT_VARIABLE)
        if not address:
            raise ConfigError(
                f"cluster.store: give a database here, in capture.store or in {ENVIRONMENT_VARIABLE}"
            )
        self.store: Store = Store.open(
            address, connect=False, options=StoreOptions(lock_timeout_s=options.lookup_timeout_s)
        )
        self.health_hints = (
            SharedHealthHints(
                self.store, poll_interval_s=options.poll_interval_s, conversation_ttl_s=options.ttl_s
            )
            if options.health_hints
            else None
        )
        self.effect_replicator = EffectReplicator(self.store) if options.sessions else None
        self.conversations = (
            SharedConversationStore(
                self.store,
                lookup_timeout_s=options.lookup_timeout_s,
                effect_replicator=self.effect_replicator,
            )
            if options.sessions
            else None
        )

    def start(self) -> None:
        """Start to poll for health hints; call it in the event loop of the pool."""
        if self.health_hints is not None:
            self.health_hints.start()

    def collect_metrics(self) -> Iterable[MetricSample]:
        """Yield the error counters of the shared database."""
        if self.health_hints is not None:
            yield "cluster_store_errors", ("hints",), self.health_hints.failed_polls
        if self.conversations is not None:
            yield "cluster_store_errors", ("sessions",), self.conversations.missed_lookups
        if self.effect_replicator is not None:
            yield "cluster_store_errors", ("effects",), self.effect_replicator.dropped
        yield "cluster_store_errors", ("lost",), self.store.get_health().lost

    def status(self) -> dict[str, Any]:
        """Return the state for ``/status``, without the URL of the database, which may have a password."""
        health = self.store.get_health()
        return {
            "database": self.store.address.kind,
            "ok": health.ok,
            "waiting": health.pending
            + (0 if self.effect_replicator is None else self.effect_replicator.pending),
            "lost": health.lost,
            "hints": self.health_hints is not None,
            "sessions": self.conversations is not None,
        }

    def close(self) -> None:
        """Stop all services; wait briefly until queued rows are written."""
        if self.health_hints is not None:
            self.health_hints.close()
        if self.conversations is not None:
            self.conversations.close()
        if self.effect_replicator is not None:
            self.effect_replicator.close()
        self.store.close(_CLOSE_TIMEOUT_S)
