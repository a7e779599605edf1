"""Membership of a pool: adds, changes, drains and removes replicas without losing requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from agentguard.backends import pipeline_config
from agentguard.backends.backend_factory import build_connection_key
from agentguard.backends.config import BackendsOptions, ReplicaOptions
from agentguard.backends.health.checker import HealthChecker
from agentguard.backends.load_balancer import LoadBalancer
from agentguard.backends.replica import Connect, Replica
from agentguard.errors import ConfigError
from agentguard.resilience import Runtime
from agentguard.resilience.stream_timeout import close_response


class PoolMembership:
    """Membership of a pool: it applies the configuration and administrative commands to the load balancer.

    A removed replica gets no new requests, and is closed when its last request ends.

    Attributes:
        leaving: removed replicas that still have requests.
    """

    def __init__(
        self, options: BackendsOptions, load_balancer: LoadBalancer, runtime: Runtime, connect: Connect
    ) -> None:
        self._load_balancer, self._runtime, self._connect = load_balancer, runtime, connect
        self._options = options
        self._health_checker = self._build_health_checker(options)
        self._connection_keys: dict[Replica, tuple[object, ...]] = {}
        self._close_tasks: set[asyncio.Task[None]] = set()
        self._is_started = False
        self.leaving: set[Replica] = set()
        load_balancer.set_replicas([self._build_replica(one, options) for one in options.replicas])

    def start(self) -> None:
        """Start the health checks; needs a running event loop."""
        if not self._is_started:
            self._is_started = True
            for replica in self._load_balancer.replicas.values():
                self._health_checker.watch(replica)

    async def apply(self, options: BackendsOptions) -> None:
        """Apply a configuration.

        Raises:
            ConfigError: a replica cannot be created; nothing has changed.
        """
        old_options, old_replicas = self._options, dict(self._load_balancer.replicas)
        replicas = {
            one.name: self._find_reusable(one) or self._build_replica(one, options)
            for one in options.replicas
        }
        self._options = options
        strategies = pipeline_config.select_replica_strategies(options.pipeline)
        has_new_strategies = strategies != pipeline_config.select_replica_strategies(old_options.pipeline)
        for one in options.replicas:
            replica = replicas[one.name]
            replica.update_options(one)
            if has_new_strategies and old_replicas.get(one.name) is replica:
                replica.set_strategies(strategies)
        self._load_balancer.set_replicas(replicas.values())
        removed_replicas = [
            replica for name, replica in old_replicas.items() if replicas.get(name) is not replica
        ]
        new_replicas = [
            replica for name, replica in replicas.items() if old_replicas.get(name) is not replica
        ]
        await self._update_health_checks(options, old_options, new_replicas, removed_replicas)

    async def add(self, options: ReplicaOptions) -> None:
        """Add a replica. Raises ConfigError if its name is taken or it cannot be created."""
        if options.name in self._load_balancer.replicas:
            raise ConfigError(f"there is a replica {options.name} already")
        replica = self._build_replica(options, self._options)
        self._set_replicas([*self._load_balancer.replicas.values(), replica])
        if self._is_started:
            self._health_checker.watch(replica)

    def drain(self, name: str, *, on: bool = True) -> None:
        """Stop or resume new requests to a replica. Raises ConfigError if the name is unknown."""
        self._find(name).is_draining = on
        self._load_balancer.invalidate()

    async def remove(self, name: str) -> None:
        """Remove a replica; it is closed when idle. Raises ConfigError if the name is unknown."""
        replica = self._find(name)
        self._set_replicas(one for one in self._load_balancer.replicas.values() if one is not replica)
        await self._retire([replica])

    async def wait_idle(self, name: str) -> None:
        """Wait until a current or removed replica has no requests; return at once if the name is unknown."""
        for replica in [*self._load_balancer.replicas.values(), *self.leaving]:
            if replica.name == name and replica.inflight:
                await _wait_idle(replica)

    async def aclose(self) -> None:
        """Close all replicas; their pending requests fail."""
        await self._health_checker.aclose()
        for task in self._close_tasks:
            task.cancel()
        if self._close_tasks:
            await asyncio.wait(self._close_tasks)
        for replica in [*self._load_balancer.replicas.values(), *self.leaving]:
            await close_response(replica.backend)
        self.leaving.clear()

    def _build_health_checker(self, options: BackendsOptions) -> HealthChecker:
        return HealthChecker(options.health, options.probe, self._runtime, self._load_balancer.invalidate)

    def _build_replica(self, options: ReplicaOptions, section: BackendsOptions) -> Replica:
        strategies = pipeline_config.select_replica_strategies(section.pipeline)
        replica = Replica(options, self._connect(options), strategies, self._runtime)
        self._connection_keys[replica] = build_connection_key(options)
        return replica

    def _find_reusable(self, options: ReplicaOptions) -> Replica | None:
        """Return the replica of this name if the options need the same connections."""
        replica = self._load_balancer.replicas.get(options.name)
        same = replica is not None and self._connection_keys[replica] == build_connection_key(options)
        return replica if same else None

    def _find(self, name: str) -> Replica:
        replica = self._load_balancer.replicas.get(name)
        if replica is None:
            raise ConfigError(
                f"there is no replica {name}; there are: {', '.join(self._load_balancer.replicas)}"
            )
        return replica

    def _set_replicas(self, replicas: Iterable[Replica]) -> None:
        members = tuple(replicas)
        self._load_balancer.set_replicas(members)
        self._options = self._options.model_copy(update={"replicas": tuple(one.options for one in members)})

    async def _update_health_checks(
        self, options: BackendsOptions, before: BackendsOptions, new: list[Replica], gone: list[Replica]
    ) -> None:
        if (options.health, options.probe) != (before.health, before.probe):
            await self._health_checker.aclose()
            self._health_checker = self._build_health_checker(options)
            for replica in self._load_balancer.replicas.values():
                replica.failed_checks.clear()  # the failed check may not run any more
                replica.is_corrupt = False
            self._load_balancer.invalidate()
            new = [*self._load_balancer.replicas.values()]
        if self._is_started:
            for replica in new:
                self._health_checker.watch(replica)
        await self._retire(gone)

    async def _retire(self, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            replica.is_draining = True
            self._connection_keys.pop(replica, None)
            self.leaving.add(replica)
            task = asyncio.create_task(self._close(replica), name=f"close {replica.name}")
            self._close_tasks.add(task)
            task.add_done_callback(self._close_tasks.discard)
            await self._health_checker.unwatch(replica)

    async def _close(self, replica: Replica) -> None:
        await _wait_idle(replica)
        self.leaving.discard(replica)
        await close_response(replica.backend)


async def _wait_idle(replica: Replica) -> None:
    while replica.inflight:
        replica.idle_event = replica.idle_event or asyncio.Event()
        replica.idle_event.clear()
        await replica.idle_event.wait()
