"""Effect ledger: a side effect is claimed before its execution, at most once across all processes.

Removing a tool call from a conversation does not undo its effect. So a call with an effect is first claimed
durably. A repeated claim, by another process or after a crash, returns the recorded state of the effect. A
compensation is an effect too: claim it, under the name of the compensating tool, before you execute it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Literal

from sqlalchemy import and_, bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from agentguard.errors import StoreError
from agentguard.store.db.database import Database
from agentguard.store.db.engine import IMMEDIATE_TRANSACTION, PRESERVE_ROWCOUNT, to_unavailable_error
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

# Statements are constants: SQLAlchemy takes longer to build one than SQLite to execute it.
_IS_EFFECT = and_(EFFECTS.c.tenant == bindparam("of_tenant"), EFFECTS.c.key == bindparam("of_key"))
_FIND_EFFECT = select(EFFECTS).where(_IS_EFFECT)
_INSERT_CLAIM = {
    "postgresql": postgresql.insert(EFFECTS).on_conflict_do_nothing(index_elements=["tenant", "key"]),
    "sqlite": sqlite.insert(EFFECTS).on_conflict_do_nothing(index_elements=["tenant", "key"]),
}
_SETTLE_EFFECT = {
    state: update(EFFECTS).where(and_(_IS_EFFECT, EFFECTS.c.state.in_(sources)))
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
    """Claims and settlements of effects; each method returns only after its change is durable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, effect: EffectRow) -> StoredEffectClaim:
        """Claim an effect.

        Raises:
            StoreUnavailable: the claim could not be made durable; do not execute the effect. The claim may
                have been stored all the same: the next one then returns ``"attempted"``.
            StoreError: the row cannot be stored.
        """
        claimed_effect = replace(effect, state="attempted", settled_at=None)
        values = _to_effect_parameters(claimed_effect)
        try:
            engine = self._database.get_engine()
            with (
                engine.connect().execution_options(**IMMEDIATE_TRANSACTION) as connection,
                connection.begin(),
            ):
                statement = _INSERT_CLAIM[connection.dialect.name]
                if connection.execute(statement, values, execution_options=PRESERVE_ROWCOUNT).rowcount == 1:
                    row = None
                else:
                    row = connection.execute(_FIND_EFFECT, _build_key_parameters(effect)).mappings().one()
            self._database.verify_file(engine)
        except (SQLAlchemyError, OSError) as error:
            raise to_unavailable_error(error, self._database.address) from None
        if row is None:
            return StoredEffectClaim(state="new", effect=claimed_effect)
        stored_effect = to_row(EffectRow, row)
        return StoredEffectClaim(state=stored_effect.state, effect=stored_effect)

    def settle(self, effect: EffectRow, state: SettledState, result: RowData | None) -> bool:
        """Record the outcome of a claimed effect; return False if it has no claim or had that outcome before.

        Raises:
            StoreUnavailable: the outcome could not be made durable.
            StoreError: ``state`` is invalid, or the result cannot be stored.
        """
        if state not in _ALLOWED_SOURCE_STATES:
            raise StoreError(f"the outcome of an effect must be one of {', '.join(_ALLOWED_SOURCE_STATES)}")
        row = effect if result is None else replace(effect, data=result)
        parameters = _to_effect_parameters(row)
        changes = {"state": state, "settled_at": time.time(), **_build_key_parameters(effect)}
        if result is not None:
            changes["data"] = parameters["data"]
        try:
            engine = self._database.get_engine()
            with (
                engine.connect().execution_options(**IMMEDIATE_TRANSACTION) as connection,
                connection.begin(),
            ):
                settled = connection.execute(_SETTLE_EFFECT[state], changes).rowcount == 1
            self._database.verify_file(engine)
        except (SQLAlchemyError, OSError) as error:
            raise to_unavailable_error(error, self._database.address) from None
        return settled


def _to_effect_parameters(effect: EffectRow) -> dict[str, object]:
    try:
        return to_parameters(effect)
    except RowRejected as error:
        raise StoreError(f"the effect cannot be stored: {error}") from None


def _build_key_parameters(effect: EffectRow) -> dict[str, object]:
    return {"of_tenant": effect.tenant, "of_key": effect.key}
