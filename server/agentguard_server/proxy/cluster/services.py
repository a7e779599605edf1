"""All that is shared, made from its options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from agentguard.errors import ConfigError
from agentguard_server.proxy.cluster.effects import SharedEffects
from agentguard_server.proxy.cluster.health_hints import SharedHints
from agentguard_server.proxy.cluster.options import SharedOptions
from agentguard_server.proxy.cluster.session_store import SharedSessions
from agentguard_server.proxy.telemetry.counters import Figure

if TYPE_CHECKING:
    from agentguard.store.store import Store

_CLOSE_S: Final = 2.0


class ClusterServices:
    """What this process shares with others.

    Args:
        options: what is shared.
        url: of the store where the options name none; that of the capture.

    Attributes:
        store: the database. It is opened without waiting for it: while it is away rows wait, and are lost
            once there are too many of them.
        hints: for the pool; None if they are not shared.
        sessions: for who guards; None if they are not shared.
        effects: what was done in these runs; None if they are not shared.

    Raises:
        ConfigError: no store is named.
        MissingExtra: its driver is not installed.
    """

    def __init__(self, options: SharedOptions, *, url: str | None = None) -> None:
        from agentguard.store.options import StoreOptions
        from agentguard.store.store import Store

        address = options.store or url
        if address is None:
            raise ConfigError("shared.store: name a database, or one in capture.store")
        self.store: Store = Store.open(address, connect=False, options=StoreOptions(busy_s=options.wait_s))
        self.hints = (
            SharedHints(self.store, every_s=options.every_s, keep_s=options.keep_s) if options.hints else None
        )
        self.effects = SharedEffects(self.store) if options.sessions else None
        self.sessions = (
            SharedSessions(self.store, wait_s=options.wait_s, effects=self.effects)
            if options.sessions
            else None
        )

    def start(self) -> None:
        """Begin to look for what others say; in the loop that is to hear of it."""
        if self.hints is not None:
            self.hints.start()

    def figures(self) -> Iterable[Figure]:
        """How often the database was missed."""
        if self.hints is not None:
            yield "shared_errors", ("hints",), self.hints.failed
        if self.sessions is not None:
            yield "shared_errors", ("sessions",), self.sessions.missed
        if self.effects is not None:
            yield "shared_errors", ("effects",), self.effects.lost
        yield "shared_errors", ("lost",), self.store.health().lost

    def status(self) -> dict[str, Any]:
        """How it does, for ``/status``; no address, which may hold a password, is in it."""
        health = self.store.health()
        return {
            "database": self.store.address.kind,
            "ok": health.ok,
            "waiting": health.pending + (0 if self.effects is None else self.effects.waiting),
            "lost": health.lost,
            "hints": self.hints is not None,
            "sessions": self.sessions is not None,
        }

    def close(self) -> None:
        """Write what waits, for a moment at most."""
        if self.hints is not None:
            self.hints.close()
        if self.sessions is not None:
            self.sessions.close()
        if self.effects is not None:
            self.effects.close()
        self.store.close(_CLOSE_S)
