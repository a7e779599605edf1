"""Saved views: named filters and orders of the list of runs, for all users of a tenant."""

from __future__ import annotations

from typing import Final

from sqlalchemy import select

from agentguard.errors import StoreError
from agentguard.store.db.row_mapping import sanitize_text, to_row, validate_query_tenant
from agentguard.store.db.rows import SavedViewRow
from agentguard.store.db.tables import SAVED_VIEWS
from agentguard.store.store import Store

MAX_SAVED_VIEWS: Final = 100
"""Maximum number of saved views of a tenant."""

_MAX_NAME_CHARS: Final = 60
_MAX_QUERY_CHARS: Final = 4_000
_DURABILITY_TIMEOUT_S: Final = 5.0


def list_saved_views(store: Store, *, tenant: str = "") -> tuple[SavedViewRow, ...]:
    """Return the saved views by name. Raises StoreUnavailable if the database cannot be read now."""
    query = select(SAVED_VIEWS).where(SAVED_VIEWS.c.tenant == validate_query_tenant(tenant))
    with store.begin_read() as connection:
        found = [to_row(SavedViewRow, row) for row in connection.execute(query).mappings()]
    return tuple(sorted(found, key=lambda view: view.name.lower()))


def save_view(store: Store, name: str, query: str, *, tenant: str = "") -> SavedViewRow:
    """Save a view.

    Args:
        store: the store.
        name: name of the view, at most 60 characters; several blanks count as one.
        query: query string of the list of runs.
        tenant: tenant that owns the view.

    Raises:
        StoreError: the name is empty, too long or used, the query is too long, or there are
            `MAX_SAVED_VIEWS` views.
        StoreUnavailable: the database cannot be read or written now.
    """
    name = sanitize_text(" ".join(name.split()))
    if not name:
        raise StoreError("the name of a view is empty")
    if len(name) > _MAX_NAME_CHARS:
        raise StoreError(
            f"the name of a view has {len(name)} characters, at most {_MAX_NAME_CHARS} are allowed"
        )
    if len(query) > _MAX_QUERY_CHARS:
        raise StoreError(f"the query of a view has {len(query)} characters, more than {_MAX_QUERY_CHARS}")
    views = list_saved_views(store, tenant=tenant)
    if any(view.name == name for view in views):
        raise StoreError(f"there is a view {name!r} already: choose another name, or delete that view first")
    if len(views) >= MAX_SAVED_VIEWS:
        raise StoreError(f"there are {MAX_SAVED_VIEWS} views already: delete one first")
    row = SavedViewRow(name=name, query=query, tenant=tenant)
    store.write(row).wait(_DURABILITY_TIMEOUT_S)
    return row
