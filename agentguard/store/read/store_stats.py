"""Statistics of a store: counts, ages, sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, func, select, text

from agentguard.store.db.database_address import DatabaseAddress
from agentguard.store.db.migration import get_revision
from agentguard.store.db.row_mapping import validate_query_tenant
from agentguard.store.db.tables import RUN_COUNTS, RUNS, SEARCH_DOCUMENTS, TABLES
from agentguard.store.write.retention import measure_used_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """Statistics of a store.

    Attributes:
        address: address of the database, without the password.
        version: version of its tables.
        rows: number of rows by table.
        tenants: number of tenants with runs.
        oldest, newest: creation times of the first and the last run, in epoch seconds; None without runs.
        bytes_on_disk: size of the database with its log and indexes; of all tenants.
        bytes_in_use: size that `prune` compares with its limit; of all tenants.
    """

    address: str
    version: str
    rows: Mapping[str, int]
    tenants: int
    oldest: float | None
    newest: float | None
    bytes_on_disk: int
    bytes_in_use: int


def collect_stats(connection: Connection, address: DatabaseAddress, tenant: str | None) -> StoreStats:
    """Return the statistics of a tenant; None means all tenants."""
    tenant_filter = [] if tenant is None else [validate_query_tenant(tenant)]
    rows = {}
    for name, table in TABLES.items():
        query = select(func.count()).select_from(table)
        for tenant_id in tenant_filter:
            query = query.where(table.c.tenant == tenant_id)
        rows[name] = connection.execute(query).scalar_one()
    ages = select(
        func.min(RUNS.c.created_at), func.max(RUNS.c.created_at), func.count(RUNS.c.tenant.distinct())
    )
    for tenant_id in tenant_filter:
        ages = ages.where(RUNS.c.tenant == tenant_id)
    oldest, newest, tenants = connection.execute(ages).one()
    return StoreStats(
        address=str(address),
        version=get_revision(connection),
        rows=rows,
        tenants=tenants,
        oldest=oldest,
        newest=newest,
        bytes_on_disk=_measure_disk_bytes(connection, address.path),
        bytes_in_use=measure_used_bytes(connection),
    )


def _measure_disk_bytes(connection: Connection, path: Path | None) -> int:
    if path is not None:
        files = (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm"))
        return sum(file.stat().st_size for file in files if file.exists())
    size = text("SELECT pg_total_relation_size(CAST(:name AS regclass))")
    tables = (*TABLES.values(), RUN_COUNTS, SEARCH_DOCUMENTS)
    return sum(int(connection.execute(size, {"name": one.name}).scalar_one()) for one in tables)
