"""Engines of batch jobs: they run chunks on workers and return results in any order."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from typing import Protocol

from agentguard.batch.chunks import Chunk
from agentguard.batch.processor import ChunkProcessor, ChunkResult, ProcessorConfig, iter_failures

_CHUNKS_IN_FLIGHT_PER_WORKER = 3
_MAX_CRASHES = 3


class Processor(Protocol):
    """Processor of chunks in a worker, such as `ChunkProcessor`."""

    def process(self, chunk: Chunk) -> ChunkResult:
        """Return the result of a chunk; never raise for bad input."""
        ...


ProcessorFactory = Callable[[ProcessorConfig], Processor]


class Engine(Protocol):
    """Engine that runs chunks on workers."""

    def run(self, chunks: Iterator[Chunk], config: ProcessorConfig) -> Iterator[tuple[Chunk, ChunkResult]]:
        """Yield each chunk once with its result, in any order; take chunks as workers get free.

        A row that crashes its worker several times gets an error row; it does not stop the job.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Engine with a pool of processes on this machine.

    Attributes:
        workers: number of processes.
        build_processor: function that builds the processor of a worker; importable, for the workers.
    """

    workers: int
    build_processor: ProcessorFactory = ChunkProcessor

    def run(self, chunks: Iterator[Chunk], config: ProcessorConfig) -> Iterator[tuple[Chunk, ChunkResult]]:
        """Yield each chunk once with its result; see `Engine.run`."""
        pool = _WorkerPool(self.workers, self.build_processor, config)
        try:
            while pool.submit_chunks(chunks):
                yield from pool.take_results()
        finally:
            pool.close()


class _WorkerPool:
    """Pool of worker processes that is replaced when a worker dies."""

    def __init__(self, workers: int, build_processor: ProcessorFactory, config: ProcessorConfig) -> None:
        self._workers, self._build_processor, self._config = workers, build_processor, config
        self._pool = _ProcessPool(workers, build_processor, config)
        self._pending: dict[Future[ChunkResult], Chunk] = {}
        self._suspects: list[Chunk] = []

    def submit_chunks(self, chunks: Iterator[Chunk]) -> bool:
        """Fill the queue of the workers; return False if no chunk is left and none is in flight."""
        room = self._workers * _CHUNKS_IN_FLIGHT_PER_WORKER - len(self._pending)
        for chunk in islice(chunks, room):
            try:
                self._pending[self._pool.submit(chunk)] = chunk
            except BrokenProcessPool:
                self._suspects.append(chunk)
        return bool(self._pending or self._suspects)

    def take_results(self) -> Iterator[tuple[Chunk, ChunkResult]]:
        """Wait for a result and yield all finished chunks."""
        for future in wait(self._pending, return_when=FIRST_COMPLETED).done if self._pending else ():
            chunk = self._pending.pop(future)
            if isinstance(future.exception(), BrokenProcessPool):
                self._suspects.append(chunk)
            else:
                yield chunk, future.result()
        if self._suspects:
            yield from self._replace_pool()

    def close(self) -> None:
        """Stop the workers; chunks in flight are dropped."""
        wait([future for future in self._pending if not future.cancel()])
        self._pool.close()

    def _replace_pool(self) -> Iterator[tuple[Chunk, ChunkResult]]:
        """Process the chunks that were in flight when a worker died, each alone, and start a new pool.

        A broken pool does not report at which chunk its worker died, so each of them may be the reason.
        """
        self.close()
        for future, chunk in self._pending.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                yield chunk, future.result()
            else:
                self._suspects.append(chunk)
        self._pending.clear()
        for chunk in self._suspects:
            yield chunk, process_alone(chunk, self._process_in_new_pool, self._config)
        self._suspects.clear()
        self._pool = _ProcessPool(self._workers, self._build_processor, self._config)

    def _process_in_new_pool(self, chunk: Chunk) -> ChunkResult | None:
        """Return the result of a chunk in a new process; None if the process died."""
        pool = _ProcessPool(1, self._build_processor, self._config)
        try:
            return pool.submit(chunk).result()
        except BrokenProcessPool:
            return None
        finally:
            pool.close()


class _ProcessPool:
    """Processes that end when the driver closes its end of a pipe, or dies."""

    def __init__(self, workers: int, build_processor: ProcessorFactory, config: ProcessorConfig) -> None:
        # A forked child would inherit threads' locks of the driver in an unknown state.
        context = multiprocessing.get_context("spawn")
        self._receiver, self._sender = context.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            workers,
            mp_context=context,
            initializer=_start_worker,
            initargs=(self._receiver, build_processor, config),
        )

    def submit(self, chunk: Chunk) -> Future[ChunkResult]:
        """Submit a chunk. Raises BrokenProcessPool if a worker has died."""
        return self._executor.submit(_process_chunk, chunk)

    def close(self) -> None:
        """End the workers; they must not process a chunk."""
        # A worker that dies during `shutdown` can hold the lock of the queue. The others never read its end.
        self._sender.close()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._receiver.close()


def process_alone(
    chunk: Chunk, process: Callable[[Chunk], ChunkResult | None], config: ProcessorConfig
) -> ChunkResult:
    """Process a chunk that was in flight when a worker died; after repeated crashes, row by row.

    Args:
        chunk: the chunk.
        process: function that processes a chunk in a new worker; it returns None if the worker died.
        config: configuration of the job, for the error row of a row that crashes each worker.
    """
    for _ in range(_MAX_CRASHES):
        if (result := process(chunk)) is not None:
            return result
    result = ChunkResult(is_retryable=True)
    if chunk.rows is not None and len(chunk.rows) > 1:
        for place in range(len(chunk.rows)):
            single = process_alone(chunk.select(place), process, config)
            result.rows += single.rows
            result.dead_letters += single.dead_letters
    else:
        error = f"the worker process ended {_MAX_CRASHES} times on this row"
        for row, letter in iter_failures(chunk, error, config):
            result.rows.append(row)
            result.dead_letters.append(letter)
    return result


_processor: Processor | None = None


def _start_worker(receiver: Connection, build_processor: ProcessorFactory, config: ProcessorConfig) -> None:
    global _processor
    threading.Thread(target=_exit_at_end, args=(receiver,), daemon=True).start()
    _processor = build_processor(config)


def _exit_at_end(receiver: Connection) -> None:
    """End this worker when the driver has closed the pipe: a killed driver cannot stop its pool."""
    with suppress(OSError):
        receiver.poll(None)
    os._exit(1)


def _process_chunk(chunk: Chunk) -> ChunkResult:
    assert _processor is not None
    return _processor.process(chunk)
