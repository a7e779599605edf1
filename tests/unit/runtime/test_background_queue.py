"""Queue of background jobs: order, bound, failures, and the end of the process."""

from __future__ import annotations

import subprocess
import sys
import threading

from agentguard.runtime.background_queue import BackgroundQueue

_TIMEOUT_S = 60.0


def test_jobs_run_in_order() -> None:
    queue, done = BackgroundQueue("test", max_jobs=8), list[int]()
    for number in range(5):
        queue.put(lambda number=number: done.append(number))  # type: ignore[misc]
    assert queue.flush(_TIMEOUT_S)
    assert done == list(range(5))


def test_full_queue_drops_the_oldest_job_and_counts_it() -> None:
    queue, done = BackgroundQueue("test", max_jobs=2), list[int]()
    has_started, may_start = threading.Event(), threading.Event()
    queue.put(lambda: (has_started.set(), may_start.wait(_TIMEOUT_S)))
    assert has_started.wait(_TIMEOUT_S)
    for number in range(4):
        queue.put(lambda number=number: done.append(number))  # type: ignore[misc]
    assert not queue.flush(0)
    may_start.set()
    assert queue.flush(_TIMEOUT_S)
    assert (done, queue.dropped_jobs) == ([2, 3], 2)


def test_failed_job_does_not_stop_the_next() -> None:
    queue, done = BackgroundQueue("test", max_jobs=8), list[int]()
    queue.put(lambda: 1 / 0)
    queue.put(lambda: done.append(1))
    assert queue.flush(_TIMEOUT_S)
    assert (done, list(queue.failures)) == ([1], ["ZeroDivisionError"])


def test_interpreter_exit_waits_for_queued_jobs() -> None:
    program = (
        "from agentguard.runtime.background_queue import BackgroundQueue\n"
        "queue = BackgroundQueue('test', max_jobs=8)\n"
        "for number in range(3):\n"
        "    queue.put(lambda number=number: print(number, flush=True))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=_TIMEOUT_S, check=True
    )
    assert ended.stdout.split() == [b"0", b"1", b"2"]
