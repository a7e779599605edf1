"""Sources and targets of ``agentguard export`` beside formats: stored runs, and documents for people."""

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
        """The document of a run that was read from a file."""
        ...

    def of_stored(self, store: Store, run_id: str, *, tenant: str = "") -> bytes | None:
        """The document of a run in a store, with all that the store knows of it; None if it is not there."""
        ...


_EXPORTER_REGISTRY: Registry[Exporter] = Registry("exporter", group="agentguard.exporters", builtin={})


def exporter_registry() -> Registry[Exporter]:
    """The registry of exporters: installed ones; the viewer brings ``html``."""
    return _EXPORTER_REGISTRY


def read_stored_records(url: str, ids: list[str], *, tenant: str = "") -> Iterator[tuple[str, Record | None]]:
    """A tenant's runs of a store by their ids; None for one that is not there."""
    from agentguard.store.store import Store

    with Store.open(url) as store:
        for id in ids:
            yield id, store.get_record(id, tenant=tenant)


def export_stored_document(url: str, id: str, target: str, *, tenant: str = "") -> bytes:
    """The document of a tenant's stored run. Raises ConfigError if it is not in the store."""
    from agentguard.store.store import Store

    with Store.open(url) as store:
        document = exporter_registry().get(target).of_stored(store, id, tenant=tenant)
    if document is None:
        raise ConfigError(f"there is no run {id} in the store {store.address}")
    return document


def export_record_document(records: list[Record], name: str, target: str) -> bytes:
    """The document of the one run that was read. Raises ConfigError if there are more, or none."""
    if len(records) != 1:
        raise ConfigError(f"{target} takes one run a document; {name} has {len(records)}")
    return exporter_registry().get(target).of_record(records[0])
