"""Who is in the pool: replicas come, change, drain and go while requests run, and none is lost by it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from agentguard.backends import pipeline_config
from agentguard.backends.config import BackendsOptions, ReplicaOptions
from agentguard.backends.health.checker import HealthChecker
from agentguard.backends.load_balancer import LoadBalancer
from agentguard.backends.replica import Connect, Replica
from agentguard.backends.replica_factory import connection_key
from agentguard.errors import ConfigError
from agentguard.resilience import Runtime
from agentguard.resilience.stream_timeout import discard


class PoolMembership:
    """Keeps the choice's replicas in step with the configuration, and with what an administrator says.

    A replica that goes gets no new requests at once, and is closed when its last one is over.

    Attributes:
        leaving: replicas that are no members any more and still have requests.
    """

    def __init__(
        self, options: BackendsOptions, choice: LoadBalancer, runtime: Runtime, connect: Connect
    ) -> None:
        self._choice, self._runtime, self._connect = choice, runtime, connect
        self._options = options
        self._health = self._new_health(options)
        self._identities: dict[Replica, tuple[object, ...]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._started = False
        self.leaving: set[Replica] = set()
        choice.set_members([self._make(one, options) for one in options.replicas])

    def start(self) -> None:
        """Begin to look after the replicas; in the running loop."""
        if not self._started:
            self._started = True
            for replica in self._choice.replicas.values():
                self._health.watch(replica)

    async def apply(self, options: BackendsOptions) -> None:
        """Become what a configuration says.

        Raises:
            ConfigError: a replica can't be made; nothing was changed.
        """
        before, old = self._options, dict(self._choice.replicas)
        made = {one.name: self._kept(one) or self._make(one, options) for one in options.replicas}
        self._options = options
        strategies = pipeline_config.at_replica(options.pipeline)
        afresh = strategies != pipeline_config.at_replica(before.pipeline)
        for one in options.replicas:
            replica = made[one.name]
            replica.change(one)
            if afresh and old.get(one.name) is replica:
                replica.arrange(strategies)
        self._choice.set_members(made.values())
        gone = [replica for name, replica in old.items() if made.get(name) is not replica]
        new = [replica for name, replica in made.items() if old.get(name) is not replica]
        await self._look_after(options, before, new, gone)

    async def add(self, options: ReplicaOptions) -> None:
        """A new replica. Raises ConfigError if there is one of that name, or it can't be made."""
        if options.name in self._choice.replicas:
            raise ConfigError(f"there is a replica {options.name} already")
        replica = self._make(options, self._options)
        self._set([*self._choice.replicas.values(), replica])
        if self._started:
            self._health.watch(replica)

    def drain(self, name: str, *, on: bool = True) -> None:
        """Give a replica no new requests, or give it some again. Raises ConfigError if there is none."""
        self._find(name).draining = on
        self._choice.touch()

    async def remove(self, name: str) -> None:
        """Take a replica out; it is closed when nothing runs on it. Raises ConfigError if there is none."""
        replica = self._find(name)
        self._set(one for one in self._choice.replicas.values() if one is not replica)
        await self._part([replica])

    async def idle(self, name: str) -> None:
        """Wait until nothing runs on a replica, be it a member or leaving; at once if there is none."""
        for replica in [*self._choice.replicas.values(), *self.leaving]:
            if replica.name == name and replica.inflight:
                await _idle(replica)

    async def aclose(self) -> None:
        """Close all replicas; what runs on them fails."""
        await self._health.aclose()
        for task in self._closing:
            task.cancel()
        if self._closing:
            await asyncio.wait(self._closing)
        for replica in [*self._choice.replicas.values(), *self.leaving]:
            await discard(replica.backend)
        self.leaving.clear()

    def _new_health(self, options: BackendsOptions) -> HealthChecker:
        return HealthChecker(options.health, options.canary, self._runtime, self._choice.touch)

    def _make(self, options: ReplicaOptions, section: BackendsOptions) -> Replica:
        strategies = pipeline_config.at_replica(section.pipeline)
        replica = Replica(options, self._connect(options), strategies, self._runtime)
        self._identities[replica] = connection_key(options)
        return replica

    def _kept(self, options: ReplicaOptions) -> Replica | None:
        """The replica of that name, if its connections are those that the options ask for."""
        replica = self._choice.replicas.get(options.name)
        same = replica is not None and self._identities[replica] == connection_key(options)
        return replica if same else None

    def _find(self, name: str) -> Replica:
        replica = self._choice.replicas.get(name)
        if replica is None:
            raise ConfigError(f"there is no replica {name}; there are: {', '.join(self._choice.replicas)}")
        return replica

    def _set(self, replicas: Iterable[Replica]) -> None:
        members = tuple(replicas)
        self._choice.set_members(members)
        self._options = self._options.model_copy(update={"replicas": tuple(one.options for one in members)})

    async def _look_after(
        self, options: BackendsOptions, before: BackendsOptions, new: list[Replica], gone: list[Replica]
    ) -> None:
        if (options.health, options.canary) != (before.health, before.canary):
            await self._health.aclose()
            self._health = self._new_health(options)
            for replica in self._choice.replicas.values():
                replica.down.clear()  # who found it down may look no more
                replica.corrupt = False
            self._choice.touch()
            new = [*self._choice.replicas.values()]
        if self._started:
            for replica in new:
                self._health.watch(replica)
        await self._part(gone)

    async def _part(self, gone: Iterable[Replica]) -> None:
        for replica in gone:
            replica.draining = True
            self._identities.pop(replica, None)
            self.leaving.add(replica)
            task = asyncio.create_task(self._close(replica), name=f"close {replica.name}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            await self._health.unwatch(replica)

    async def _close(self, replica: Replica) -> None:
        await _idle(replica)
        self.leaving.discard(replica)
        await discard(replica.backend)


async def _idle(replica: Replica) -> None:
    while replica.inflight:
        replica.idle = replica.idle or asyncio.Event()
        replica.idle.clear()
        await replica.idle.wait()
