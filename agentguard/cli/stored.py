"""Runs in a store that are diagnosed there: what the proxy kept, for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from agentguard.errors import StoreError
from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.store import Store

_FLUSH_S = 60.0

Results = Iterator[tuple[Trajectory, Diagnosis]]


class Stored:
    """Some runs of a store.

    Args:
        ids: of the runs.
        url: of the store; the default one if absent.
        tenant: whose runs they are.
    """

    def __init__(self, ids: list[str], url: str | None, *, tenant: str) -> None:
        self._ids, self._url, self._tenant = ids, url, tenant

    @contextmanager
    def diagnosed(
        self, guard: Guard, diagnosed: Callable[[Iterator[Trajectory]], Results]
    ) -> Iterator[Results]:
        """The runs with their diagnoses, which are kept beside those that the store has.

        Raises:
            StoreError: there is no such run, or the store cannot be read; said as the results are asked for.
        """
        from agentguard.localize.keep import diagnosis_rows
        from agentguard.store import Store

        with Store.open(self._url) as store, guard.override(store=store):

            def keep() -> Results:
                for trajectory, diagnosis in diagnosed(self._found(store)):
                    store.write(*diagnosis_rows(diagnosis, tenant=self._tenant))
                    yield trajectory, diagnosis

            yield keep()
            flushed(store)

    def _found(self, store: Store) -> Iterator[Trajectory]:
        for id in self._ids:
            run = store.trajectory(id, tenant=self._tenant)
            if run is None:
                of = f" of tenant {self._tenant!r}" if self._tenant else ""
                raise StoreError(f"{store.address} has no run {id!r}{of}")
            yield run


def flushed(store: Store) -> None:
    """Wait until all is written, and say what is not."""
    store.flush(_FLUSH_S)
    health = store.health()
    if health.lost or health.refused:
        typer.echo(f"not kept: {health.lost + health.refused} rows; {health.last_error}", err=True)
