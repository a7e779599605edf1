"""Engine of batch jobs on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agentguard._lazy import import_extra
from agentguard.batch.chunks import Chunk
from agentguard.batch.engines import ProcessorFactory, process_alone
from agentguard.batch.processor import ChunkProcessor, ChunkResult, ProcessorConfig
from agentguard.errors import ConfigError

_ADDRESS_VARIABLE = "RAY_ADDRESS"
_MAX_STARTS = 3  # attempts to start a local cluster


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Engine with actors on a Ray cluster; an actor holds the model or the judge of its worker.

    Attributes:
        workers: number of actors, one core each.
        address: address of the cluster. None uses ``RAY_ADDRESS``; without that variable, the engine starts
            a local cluster and stops it at the end.
        build_processor: function that builds the processor of a worker.
    """

    workers: int
    address: str | None = None
    build_processor: ProcessorFactory = ChunkProcessor

    def run(self, chunks: Iterator[Chunk], config: ProcessorConfig) -> Iterator[tuple[Chunk, ChunkResult]]:
        """Yield each chunk once with its result; see `agentguard.batch.Engine.run`.

        Raises ConfigError if the cluster cannot be reached or does not start.
        """
        with _connect(self.address, self.workers) as ray:
            actors = _ActorPool(ray, self.workers, self.build_processor, config)
            while actors.submit_chunks(chunks):
                yield from actors.take_results()


class _ActorPool:
    """Actors with one chunk each: the end of an actor affects no other chunk."""

    def __init__(
        self, ray: Any, workers: int, build_processor: ProcessorFactory, config: ProcessorConfig
    ) -> None:
        self._ray, self._config = ray, config
        self._actor_class = ray.remote(max_restarts=0)(_Worker)
        self._build_processor = build_processor
        self._idle = [self._start_actor() for _ in range(workers)]
        self._pending: dict[Any, tuple[Any, Chunk]] = {}

    def submit_chunks(self, chunks: Iterator[Chunk]) -> bool:
        """Give each idle actor a chunk; return False if no chunk is left and none is in flight."""
        while self._idle and (chunk := next(chunks, None)) is not None:
            actor = self._idle.pop()
            self._pending[actor.process.remote(chunk)] = actor, chunk
        return bool(self._pending)

    def take_results(self) -> Iterator[tuple[Chunk, ChunkResult]]:
        """Wait for a result and yield all finished chunks."""
        finished, _ = self._ray.wait(list(self._pending), num_returns=1)
        for reference in finished:
            actor, chunk = self._pending.pop(reference)
            try:
                result = self._ray.get(reference)
                self._idle.append(actor)
            except self._ray.exceptions.RayActorError:
                result = process_alone(chunk, self._process_in_new_actor, self._config)
                self._replace_actor()
            yield chunk, result

    def _replace_actor(self) -> None:
        """Start an actor in place of a dead one if a core is left; without a core, it would never start."""
        if not (self._idle or self._pending) or self._ray.available_resources().get("CPU", 0) >= 1:
            self._idle.append(self._start_actor())

    def _process_in_new_actor(self, chunk: Chunk) -> ChunkResult | None:
        actor = self._start_actor(num_cpus=0)  # after the loss of a node, all cores may be taken
        try:
            result: ChunkResult = self._ray.get(actor.process.remote(chunk))
        except self._ray.exceptions.RayActorError:
            return None
        self._ray.kill(actor)
        return result

    def _start_actor(self, *, num_cpus: int = 1) -> Any:
        return self._actor_class.options(num_cpus=num_cpus).remote(self._build_processor, self._config)


class _Worker:
    """Actor with one processor."""

    def __init__(self, build_processor: ProcessorFactory, config: ProcessorConfig) -> None:
        self._processor = build_processor(config)

    def process(self, chunk: Chunk) -> ChunkResult:
        return self._processor.process(chunk)


@contextmanager
def _connect(address: str | None, workers: int) -> Iterator[Any]:
    """Connect to a cluster, or start a local one for the time of the job."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reads it at import and reports by default.
    ray = import_extra("ray", "ray")
    if ray.is_initialized():
        yield ray
        return
    address = address or os.environ.get(_ADDRESS_VARIABLE)
    if address:
        options: dict[str, Any] = {"address": address}
    else:
        options = {"address": "local", "num_cpus": workers, "include_dashboard": False}
    _initialize(ray, options)
    try:
        yield ray
    finally:
        ray.shutdown()


def _initialize(ray: Any, options: Mapping[str, Any]) -> None:
    """Initialize Ray.

    Raises:
        ConfigError: the cluster cannot be reached, or does not start.
    """
    for attempt in range(1, _MAX_STARTS + 1):
        try:
            ray.init(log_to_driver=False, configure_logging=False, **options)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            # On a busy machine, a local cluster may exceed Ray's own start deadlines.
            ray.shutdown()
            if options["address"] != "local" or attempt == _MAX_STARTS:
                raise ConfigError(_describe_failure(options["address"], error)) from error
        else:
            return


def _describe_failure(address: str, error: Exception) -> str:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if address == "local":
        return f"the local Ray cluster does not start: {reason}; use the engine local, or `ray start --head`"
    return (
        f"the Ray cluster at {address} cannot be reached: {reason}; check the address, or unset "
        f"{_ADDRESS_VARIABLE} to start a local cluster"
    )
