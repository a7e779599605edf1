"""Effect store in the database: durable before a tool runs, and shared by all processes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final

from agentguard.errors import StoreTimeout, StoreUnavailable
from agentguard.recover.effect_ledger import Effect, EffectState

if TYPE_CHECKING:
    from agentguard.store.db.rows import EffectRow
    from agentguard.store.store import Store
    from agentguard.store.write.effect_claims import SettledState


_FLUSH_TIMEOUT_S: Final = 10.0


class SqlEffectStore:
    """Effects of one run in the store.

    The store permits one claim per key. An effect that was compensated or has failed may be claimed again
    under the next *generation*, which is part of the key.

    Args:
        store: the store.
        run_id: id of the run.
        tenant: tenant of the run.
        branch: distinguishes the effects of runs with the same id.
    """

    def __init__(self, store: Store, run_id: str, *, tenant: str = "", branch: str = "") -> None:
        self._store, self._run, self._tenant, self._branch = store, run_id, tenant, branch
        self._lock = threading.Lock()
        self._generations: dict[tuple[str, int], int] = {}

    def claim(self, effect: Effect) -> Effect | None:
        """Record an attempt; see `EffectStore.claim`.

        All rows written before, such as saved states of the run, are durable first. So a crash that keeps the
        effect keeps the state before it, too.

        Raises:
            StoreUnavailable: the write is not durable.
        """
        self._flush_earlier_rows()
        for generation in count(self._generations.get(effect.id, 0)):
            claim = self._store.claim(self._to_row(effect, generation))
            with self._lock:
                self._generations[effect.id] = max(generation, self._generations.get(effect.id, 0))
            if claim.state == "new":
                return None
            if claim.state != "compensated":
                return _to_effect(claim.effect)
        raise AssertionError("unreachable")

    def _flush_earlier_rows(self) -> None:
        if not self._store.get_health().pending:
            return
        try:
            self._store.flush(_FLUSH_TIMEOUT_S)
        except StoreTimeout as error:
            raise StoreUnavailable(str(error)) from None

    def settle(self, effect: Effect) -> None:
        """Write the result; see `EffectStore.settle`. Raises StoreUnavailable if the write is not durable."""
        row = self._to_row(effect, self._generations.get(effect.id, 0))
        self._store.settle(row, _SETTLED_STATES.get(effect.state, "compensated"), result=row.data)

    def effects(self) -> tuple[Effect, ...]:
        """Return all effects; see `EffectStore.effects`."""
        latest: dict[tuple[str, int], tuple[int, Effect]] = {}
        for row in self._store.list_effects(self._run, tenant=self._tenant):
            if row.line != self._branch:
                continue
            effect = _to_effect(row)
            generation = int(row.logical_step.partition(".")[2])
            known = latest.setdefault(effect.id, (generation, effect))
            if generation > known[0]:
                latest[effect.id] = (generation, effect)
        with self._lock:
            for id, (generation, _) in latest.items():
                self._generations[id] = max(generation, self._generations.get(id, 0))
        return tuple(effect for _, effect in latest.values())

    def _to_row(self, effect: Effect, generation: int) -> EffectRow:
        from agentguard.store.db.rows import EffectRow

        return EffectRow(
            tenant=self._tenant,
            run_id=self._run,
            line=self._branch,
            tool=effect.tool,
            arguments=effect.key,
            logical_step=f"{effect.occurrence}.{generation}",
            data={
                "arguments": dict(effect.arguments),
                "step": effect.step,
                "state": effect.state.value,
                "result": effect.result,
            },
        )


_SETTLED_STATES: Final[Mapping[EffectState, SettledState]] = {
    EffectState.AMBIGUOUS: "ambiguous",
    EffectState.DONE: "done",
    EffectState.RECONCILED: "reconciled",
}
"""State in the store; after all other states the call may be claimed again, as after a compensation."""


def _to_effect(row: EffectRow) -> Effect:
    data = row.data
    made = Effect(
        key=row.arguments,
        occurrence=int(row.logical_step.partition(".")[0]),
        tool=row.tool,
        arguments=data.get("arguments") or {},
        step=int(data.get("step") or 0),
        state=EffectState(row.state),
        result=str(data.get("result") or ""),
    )
    refused = data.get("state") == EffectState.FAILED.value
    return replace(made, state=EffectState.FAILED) if refused else made
