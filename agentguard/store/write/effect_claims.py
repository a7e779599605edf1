"""Claims of side effects in the database: an effect is claimed at most once across all processes.

The removal of a tool call from a conversation does not undo its effect. So a call with an effect is claimed
durably before its execution. A repeated claim, by another process or after a crash, returns the recorded
state of the effect. A compensation is an effect, too: claim it under the name of the compensating tool.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import Connection, Executable, and_, bindparam, literal_column, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from agentguard.errors import StoreError
from agentguard.store.db.compiled_statements import execute_query
from agentguard.store.db.database import Database
from agentguard.store.db.engine import IMMEDIATE_TRANSACTION, to_unavailable_error
from agentguard.store.db.payload import RowRejected
from agentguard.store.db.row_mapping import to_parameters, to_row
from agentguard.store.db.rows import EffectRow, RowData
from agentguard.store.db.tables import EFFECTS

SHARED_BRANCH_PREFIX = "shared-"
"""Prefix of ``line`` of effects that a proxy shares with other proxies; no branch of a stored run has it."""

SettledState = Literal["ambiguous", "done", "reconciled", "compensated"]
EffectClaimState = Literal["new", "attempted"] | SettledState

_UNSETTLED = ("attempted", "ambiguous")
_ALLOWED_SOURCE_STATES = {
    "ambiguous": ("attempted",),
    "done": _UNSETTLED,
    "reconciled": _UNSETTLED,
    "compensated": (*_UNSETTLED, "done", "reconciled"),
}

# Statements are constants that the driver executes: SQLAlchemy takes longer to process one than SQLite.
_IS_EFFECT = and_(EFFECTS.c.tenant == bindparam("of_tenant"), EFFECTS.c.key == bindparam("of_key"))
_FIND_EFFECT = select(EFFECTS).where(_IS_EFFECT)
_INSERT_CLAIM = {
    "postgresql": postgresql.insert(EFFECTS).on_conflict_do_nothing(index_elements=["tenant", "key"]),
    "sqlite": sqlite.insert(EFFECTS).on_conflict_do_nothing(index_elements=["tenant", "key"]),
}


def _build_settlement(source_states: tuple[str, ...], columns: tuple[str, ...]) -> Executable:
    states: list[Any] = [literal_column(f"'{state}'") for state in source_states]
    changes: dict[str, Any] = {name: bindparam(f"new_{name}") for name in columns}
    return update(EFFECTS).where(and_(_IS_EFFECT, EFFECTS.c.state.in_(states))).values(changes)


_SETTLE_EFFECT = {
    state: _build_settlement(sources, ("state", "settled_at"))
    for state, sources in _ALLOWED_SOURCE_STATES.items()
}
_SETTLE_EFFECT_WITH_RESULT = {
    state: _build_settlement(sources, ("state", "settled_at", "data"))
    for state, sources in _ALLOWED_SOURCE_STATES.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEffectClaim:
    """Result of a claim.

    Attributes:
        state: ``"new"``: execute the effect; no other caller received this state. All other states mean that
            it was claimed before: ``"attempted"``, ``"ambiguous"``: its outcome is unknown; ``"done"``,
            ``"reconciled"``: it was executed, and ``effect.data`` has the recorded result;
            ``"compensated"``: it was executed and undone.
        effect: the stored row.
    """

    state: EffectClaimState
    effect: EffectRow


class EffectClaims:
    """Claims and settlements of effects.

    Args:
        claims_database: database whose commits wait for the disk. Without its claim, an effect could be
            executed twice after a power failure.
        database: database for the settlements. A settlement that a power failure loses leaves the effect
            attempted, and an attempted effect is not executed again.
    """

    def __init__(self, claims_database: Database, database: Database) -> None:
        self._claims_database, self._database = claims_database, database

    def claim(self, effect: EffectRow) -> StoredEffectClaim:
        """Claim an effect; return after the claim is on disk.

        Raises:
            StoreUnavailable: the claim may not be durable; do not execute the effect. The next claim returns
                ``"attempted"`` if this one was stored.
            StoreError: the row cannot be stored.
        """
        claimed_effect = replace(effect, state="attempted", settled_at=None)
        values = _to_effect_parameters(claimed_effect)
        with _open_transaction(self._claims_database) as connection:
            if execute_query(connection, _INSERT_CLAIM[connection.dialect.name], values).rowcount == 1:
                row = None
            else:
                row = execute_query(connection, _FIND_EFFECT, _build_key_parameters(effect)).mappings().one()
        if row is None:
            return StoredEffectClaim(state="new", effect=claimed_effect)
        stored_effect = to_row(EffectRow, row)
        return StoredEffectClaim(state=stored_effect.state, effect=stored_effect)

    def settle(self, effect: EffectRow, state: SettledState, result: RowData | None) -> bool:
        """Record the outcome of a claimed effect; return False if it has no claim or has that outcome.

        The outcome survives a crash of the process.

        Raises:
            StoreUnavailable: the outcome could not be committed.
            StoreError: ``state`` is invalid, or the result cannot be stored.
        """
        if state not in _ALLOWED_SOURCE_STATES:
            raise StoreError(f"the outcome of an effect must be one of {', '.join(_ALLOWED_SOURCE_STATES)}")
        changes = {"new_state": state, "new_settled_at": time.time(), **_build_key_parameters(effect)}
        statements = _SETTLE_EFFECT
        if result is not None:
            statements = _SETTLE_EFFECT_WITH_RESULT
            changes["new_data"] = _to_effect_parameters(replace(effect, data=result))["data"]
        with _open_transaction(self._database) as connection:
            return execute_query(connection, statements[state], changes).rowcount == 1


@contextmanager
def _open_transaction(database: Database) -> Iterator[Connection]:
    """Open a transaction and commit it at the end of the block. Raises StoreUnavailable if that fails."""
    try:
        engine = database.get_engine()
        with engine.connect().execution_options(**IMMEDIATE_TRANSACTION) as connection, connection.begin():
            yield connection
        database.verify_file(engine)
    except (SQLAlchemyError, OSError) as error:
        raise to_unavailable_error(error, database.address) from None


def _to_effect_parameters(effect: EffectRow) -> dict[str, object]:
    try:
        return to_parameters(effect)
    except RowRejected as error:
        raise StoreError(f"the effect cannot be stored: {error}") from None


def _build_key_parameters(effect: EffectRow) -> dict[str, object]:
    return {"of_tenant": effect.tenant, "of_key": effect.key}
