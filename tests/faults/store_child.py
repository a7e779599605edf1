"""Process that writes to a store and claims effects until it is killed; it reports acknowledged rows.

It is forked from a server that has loaded everything (multiprocessing's forkserver), so that fifty processes
take seconds. It appends each report to a file in one system call, so that reports survive the kill.
"""

from __future__ import annotations

import os

from agentguard.store import Store
from agentguard.store.db.rows import EffectRow, FindingRow
from agentguard.store.options import StoreOptions

EFFECTS = 40


def work(url: str, life: int, said: str, world: str) -> None:
    """Write rows, wait for some of them, and execute effects as the ledger allows."""
    store = Store.open(
        url, options=StoreOptions(lock_timeout_s=30.0)
    )  # another process may pause while it holds the lock
    number = 0
    while True:
        for _ in range(3):
            store.write(FindingRow(id=f"loose-{life}-{number}", run_id="r", detector="d" * 200))
            number += 1
        kept = f"kept-{life}-{number}"
        store.write(FindingRow(id=kept, run_id="r", detector="d")).wait(20)
        append(said, kept)
        _act(store, str((number + life) % EFFECTS), world)
        number += 1


def _act(store: Store, which: str, world: str) -> None:
    """Execute an effect if it was never claimed; there is no undo."""
    effect = EffectRow(run_id="r", tool="book", arguments=which)
    if store.claim(effect).state == "new":
        append(world, which)
        store.settle(effect, "done", result={"booked": which})


def append(path: str, line: str) -> None:
    """Add a line to a file."""
    file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def squeeze(path: str) -> None:
    """Write rows under a file size limit of 400 KB, then without it; print the health after each."""
    import json
    import resource
    from dataclasses import asdict

    with Store.open(path) as store:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
        write_until_it_fails(store)
        print(json.dumps(asdict(store.get_health())), flush=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        store.flush(20)
        print(json.dumps(asdict(store.get_health())), flush=True)


def write_until_it_fails(store: Store) -> int:
    """Write rows of 4 KB until the store fails; return their number."""
    for count in range(1, 2000):
        store.write(FindingRow(run_id="r", detector="d", step=count, data={"x": os.urandom(2000).hex()}))
        if count % 20 == 0:
            _settle(store)
            if not store.get_health().ok:
                return count
    raise AssertionError("8 MB were written to a disk that is full")


def _settle(store: Store) -> None:
    """Wait until the last rows are written or have failed."""
    import time

    while store.get_health().ok and store.get_health().pending:
        time.sleep(0.002)
