"""Effects of tool calls, and their stores: in memory, or in the database and shared by all processes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

from agentguard.detect.step_facts import canonicalize_json
from agentguard.errors import StoreTimeout, StoreUnavailable

if TYPE_CHECKING:
    from agentguard.store.db.rows import EffectRow
    from agentguard.store.store import Store
    from agentguard.store.write.effect_claims import SettledState


class EffectState(StrEnum):
    """State of an effect."""

    ATTEMPTED = "attempted"
    """The tool runs, or the process ended while it ran."""
    AMBIGUOUS = "ambiguous"
    """The call ended without a result; its outcome is unknown."""
    DONE = "done"
    """The tool returned a result."""
    RECONCILED = "reconciled"
    """The outcome was unknown; the tool's reconcile function found that the call took effect."""
    FAILED = "failed"
    """The call had no effect."""
    COMPENSATED = "compensated"
    """The undo function has run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Effect of one tool call.

    Attributes:
        key: SHA-256 of tool and canonical arguments.
        occurrence: number of earlier calls with this key on the branch of the call.
        tool, arguments: name of the tool, and arguments of the call.
        step: index of the step with the call.
        state: state of the effect.
        result: result of the tool as text; empty until the effect is done.
    """

    key: str
    occurrence: int
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    step: int = 0
    state: EffectState = EffectState.ATTEMPTED
    result: str = ""

    @property
    def id(self) -> tuple[str, int]:
        """Identifier of the effect within its run."""
        return self.key, self.occurrence

    @property
    def is_done(self) -> bool:
        """True if the call took effect and the effect remains."""
        return self.state in (EffectState.DONE, EffectState.RECONCILED)

    @property
    def is_unsettled(self) -> bool:
        """True if it is unknown whether the call took effect."""
        return self.state in (EffectState.ATTEMPTED, EffectState.AMBIGUOUS)

    @property
    def is_active(self) -> bool:
        """True if the call took effect or its outcome is unknown; the same call then does not run again."""
        return self.is_done or self.is_unsettled


def compute_effect_key(tool: str, arguments: Mapping[str, Any], key_arguments: tuple[str, ...] = ()) -> str:
    """Return the hexadecimal SHA-256 of a tool and its canonical arguments.

    Keys are sorted and ``1.0`` becomes ``1``, so that different texts of the same call have one key.
    ``key_arguments`` names the arguments to include (by default all); a missing one counts as null.
    """
    selected = {name: arguments.get(name) for name in key_arguments} if key_arguments else arguments
    normalized = (
        selected
        if _CANONICAL_TYPES.issuperset(map(type, selected.values()))
        else _normalize_numbers(selected)
    )
    return hashlib.sha256(
        f"{tool}\0{canonicalize_json(normalized)}".encode(errors="surrogatepass")
    ).hexdigest()


_CANONICAL_TYPES = frozenset({str, int, bool, type(None)})
"""Types that need no normalisation; most arguments have only these."""


def _normalize_numbers(value: Any) -> Any:
    """Convert whole floats to integers at every depth."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _normalize_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_normalize_numbers(item) for item in value]
    return value


class EffectStore(Protocol):
    """Storage of the effects of one run.

    Each method is atomic. If the storage is a database, the write is durable before the method returns.
    """

    def claim(self, effect: Effect) -> Effect | None:
        """Record an attempt.

        Return None if the effect is new, was compensated or has failed; otherwise return the stored effect.
        """
        ...

    def settle(self, effect: Effect) -> None:
        """Write the state and the result of a claimed effect."""
        ...

    def effects(self) -> tuple[Effect, ...]:
        """Return all effects of the run in the order of their first claims."""
        ...


class InMemoryEffectStore:
    """Effects of one run in memory; thread-safe. They are lost when the process ends.

    Attributes:
        location: run id and branch under which a store also has these effects, so that another process can
            continue the run; None if no store has them.
    """

    location: tuple[str, str] | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._effects: dict[tuple[str, int], Effect] = {}

    def claim(self, effect: Effect) -> Effect | None:
        """Record an attempt; see `EffectStore.claim`."""
        with self._lock:
            earlier = self._effects.get(effect.id)
            if earlier is not None and earlier.is_active:
                return earlier
            self._effects[effect.id] = replace(effect, state=EffectState.ATTEMPTED)
            return None

    def settle(self, effect: Effect) -> None:
        """Write state and result; see `EffectStore.settle`."""
        with self._lock:
            self._effects[effect.id] = effect

    def effects(self) -> tuple[Effect, ...]:
        """Return all effects; see `EffectStore.effects`."""
        with self._lock:
            return tuple(self._effects.values())

    def restore(self, location: tuple[str, str], effects: Iterable[Effect]) -> None:
        """Load the effects of a run from another process; call this before the first claim."""
        with self._lock:
            self.location = location
            self._effects.update({effect.id: effect for effect in effects})


_FLUSH_TIMEOUT_S: Final = 10.0


class SqlEffectStore:
    """Effects of one run in the database; each write is durable before the method returns.

    The database permits one claim per key. An effect that was compensated or has failed may be claimed again
    under the next *generation*, which is part of the key.

    Args:
        store: the store.
        run_id: id of the run.
        tenant: tenant of the run.
        branch: name that distinguishes the effects of runs with the same id.
    """

    def __init__(self, store: Store, run_id: str, *, tenant: str = "", branch: str = "") -> None:
        self._store, self._run, self._tenant, self._branch = store, run_id, tenant, branch
        self._lock = threading.Lock()
        self._generations: dict[tuple[str, int], int] = {}

    def claim(self, effect: Effect) -> Effect | None:
        """Record an attempt; see `EffectStore.claim`.

        All earlier rows, such as saved states of the run, become durable first. So if a crash preserves the
        effect, it also preserves the state before it.

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
"""State of the row by state of the effect. All other states permit another claim and have the state
``compensated``."""


def _to_effect(row: EffectRow) -> Effect:
    data = row.data
    effect = Effect(
        key=row.arguments,
        occurrence=int(row.logical_step.partition(".")[0]),
        tool=row.tool,
        arguments=data.get("arguments") or {},
        step=int(data.get("step") or 0),
        state=EffectState(row.state),
        result=str(data.get("result") or ""),
    )
    has_failed = data.get("state") == EffectState.FAILED.value
    return replace(effect, state=EffectState.FAILED) if has_failed else effect
