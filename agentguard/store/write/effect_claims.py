"""The effect ledger: an effect on the world is claimed before it happens, by one asker and no other.

Deleting a tool call from a conversation does not undo what the tool did. So a call with an effect is
claimed first, durably; whoever claims it again, in this process or another, in this life or after a crash, is
told how far it got. To compensate is an effect too: claim it, with the undoing tool's name, before it is
carried out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Literal

from sqlalchemy import ColumnElement, and_, select, update
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
"""What the line of effects begins with that a proxy keeps for others, and no run of the store's."""

EffectClaimState = Literal["new", "attempted", "done", "compensated"]

_ALLOWED_SOURCE_STATES = {"done": ("attempted",), "compensated": ("attempted", "done")}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEffectClaim:
    """The answer to a claim.

    Attributes:
        state: ``"new"``: go ahead, nobody else was told so. Otherwise the effect was claimed before:
            ``"attempted"``: it may or may not have happened; ``"done"``: it happened, ``effect.data`` has
            the recorded result; ``"compensated"``: it happened and was undone.
        effect: the row as it is stored.
    """

    state: EffectClaimState
    effect: EffectRow


class EffectClaims:
    """Claims and settles effects; every answer is durable before it is given."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, effect: EffectRow) -> StoredEffectClaim:
        """Claim an effect.

        Raises:
            StoreUnavailable: the claim could not be made durable; the effect must not be carried out. A claim
                that was interrupted may count all the same: it is then answered with ``"attempted"``.
            StoreError: the row cannot be stored.
        """
        wanted = replace(effect, state="attempted", settled_at=None)
        values = _to_effect_parameters(wanted)
        try:
            engine = self._database.get_engine()
            with (
                engine.connect().execution_options(**IMMEDIATE_TRANSACTION) as connection,
                connection.begin(),
            ):
                insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
                statement = insert(EFFECTS).on_conflict_do_nothing(index_elements=["tenant", "key"])
                if connection.execute(statement, values, execution_options=PRESERVE_ROWCOUNT).rowcount == 1:
                    found = None
                else:
                    found = connection.execute(select(EFFECTS).where(_match_effect(effect))).mappings().one()
            self._database.verify_file(engine)
        except (SQLAlchemyError, OSError) as error:
            raise to_unavailable_error(error, self._database.address) from None
        if found is None:
            return StoredEffectClaim(state="new", effect=wanted)
        known = to_row(EffectRow, found)
        return StoredEffectClaim(state=known.state, effect=known)

    def settle(
        self, effect: EffectRow, state: Literal["done", "compensated"], result: RowData | None
    ) -> bool:
        """Note how a claimed effect ended; False if it is not there or had ended that way or further before.

        Raises:
            StoreUnavailable: it could not be made durable.
            StoreError: ``state`` is neither, or the result cannot be stored.
        """
        if state not in _ALLOWED_SOURCE_STATES:
            raise StoreError("an effect is settled as done or compensated")
        row = effect if result is None else replace(effect, data=result)
        values = {"state": state, "settled_at": time.time()}
        statement = update(EFFECTS).where(
            and_(_match_effect(effect), EFFECTS.c.state.in_(_ALLOWED_SOURCE_STATES[state]))
        )
        fit = _to_effect_parameters(row)
        changed = values if result is None else {**values, "data": fit["data"]}
        try:
            engine = self._database.get_engine()
            with (
                engine.connect().execution_options(**IMMEDIATE_TRANSACTION) as connection,
                connection.begin(),
            ):
                settled = connection.execute(statement.values(changed)).rowcount == 1
            self._database.verify_file(engine)
        except (SQLAlchemyError, OSError) as error:
            raise to_unavailable_error(error, self._database.address) from None
        return settled


def _to_effect_parameters(effect: EffectRow) -> dict[str, object]:
    try:
        return to_parameters(effect)
    except RowRejected as error:
        raise StoreError(f"the effect cannot be stored: {error}") from None


def _match_effect(effect: EffectRow) -> ColumnElement[bool]:
    return and_(EFFECTS.c.tenant == effect.tenant, EFFECTS.c.key == effect.key)
