"""Export of runs as documents for people (``agentguard convert --to html``), from files and from a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from agentguard.errors import ConfigError
from agentguard.plugins import Registry
from agentguard.trajectory.model import Record

if TYPE_CHECKING:
    from agentguard.store.store import Store


class Exporter(Protocol):
    """Writer of a document for people, which cannot be imported."""

    def of_record(self, record: Record) -> bytes:
        """Return the document of a run from a file."""
        ...

    def of_stored(self, store: Store, run_id: str, *, tenant: str = "") -> bytes | None:
        """Return the document of a stored run with its diagnosis; None if the run does not exist."""
        ...


_EXPORTER_REGISTRY: Registry[Exporter] = Registry("exporter", group="agentguard.exporters", builtin={})


def exporter_registry() -> Registry[Exporter]:
    """Return the registry of exporters, which are all installed ones; ``html`` is part of the viewer."""
    return _EXPORTER_REGISTRY


def read_stored_records(url: str, ids: list[str], *, tenant: str = "") -> Iterator[tuple[str, Record | None]]:
    """Yield the stored runs of a tenant with these ids; None for a run that does not exist."""
    from agentguard.store.store import Store

    with Store.open(url) as store:
        for id in ids:
            yield id, store.get_record(id, tenant=tenant)


def export_stored_document(url: str, id: str, target: str, *, tenant: str = "") -> bytes:
    """Return the document of a stored run of a tenant. Raises ConfigError if the run does not exist."""
    from agentguard.store.store import Store

    with Store.open(url) as store:
        document = exporter_registry().get(target).of_stored(store, id, tenant=tenant)
    if document is None:
        raise ConfigError(f"there is no run {id} in the store {store.address}")
    return document


def export_record_document(records: list[Record], name: str, target: str) -> bytes:
    """Return the document of the only record. Raises ConfigError unless there is exactly one."""
    if len(records) != 1:
        raise ConfigError(f"{target} writes one run to a document; {name} has {len(records)}")
    return exporter_registry().get(target).of_record(records[0])
