"""Effect ledger: record of the side effects of tools, so that no effect is executed twice after a rollback.

The removal of a tool call from the messages does not undo its effect. The ledger records the state of each
call with an effect (`EffectState`).

- A call is identified by its *logical step*: tool, canonical arguments, and the number of equal calls before
  it on the current branch. A ``tool_call_id`` does not identify it, since a model generates a new one each
  time. The ledger first converts arguments to the types of the tool's schema: ``"4"`` and ``4`` are equal.
- Only calls on the current branch are counted. So an agent may repeat a call on purpose. After a rollback,
  the same call has the identity of the call on the abandoned branch.
- If a tool declares an idempotency key, the ledger permits one execution per key.
- An effect is *attempted* before the tool runs, and *done* after it. After a timeout or a lost connection the
  effect is *ambiguous*. After a crash of the process it remains attempted. In both states its outcome is
  unknown. The same call does not run again on any branch, unless the tool is idempotent or its reconcile
  function finds no effect. If the function finds the effect, the effect is *reconciled*.
- A call that the tool refused has no effect.
- An agent does not see whether a call without output took effect. The ledger refuses an equal call in the
  next turn; `UnconfirmedCalls` has the rules.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from agentguard.detect.result_classification import ResultReason, classify_result
from agentguard.detect.tool_names import is_read_tool
from agentguard.recover.effect_store import (
    Effect,
    EffectState,
    EffectStore,
    InMemoryEffectStore,
    compute_effect_key,
)
from agentguard.recover.schema_coercion import coerce_arguments
from agentguard.recover.tool_effects import UNKNOWN_TOOL_EFFECT, EffectClass, ToolEffect, is_irreversible_name
from agentguard.trajectory.model import Step, ToolSpec


class ExecutionDecision(StrEnum):
    """Decision on the execution of a call."""

    RUN = "run"
    """Run the tool, then settle the effect."""
    REUSE = "reuse"
    """The effect is done: return the recorded result to the agent."""
    OUTCOME_UNKNOWN = "in_doubt"
    """The outcome of an equal call is unknown, or it returned no output in the previous turn: do not run the
    tool, and tell the agent to check the outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectClaim:
    """Claim of a call.

    Attributes:
        decision: decision on the execution of the call.
        effect: effect of the call; for a refused call, that of the earlier call.
    """

    decision: ExecutionDecision
    effect: Effect


MAX_REFUSALS = 2
"""Number of refusals after which the call of an undeclared tool runs again."""


@dataclass(slots=True, kw_only=True)
class _UnconfirmedCall:
    """Last call with a key; ``step`` is the index of the step that received its result."""

    effect: Effect
    step: int
    refusals: int = 0


class UnconfirmedCalls:
    """Calls of one run that succeeded without output, by the key of their effect; not thread-safe.

    An agent that gets no output does not see that its call took effect, and often repeats the call. So the
    ledger refuses an equal call in the next turn, a limited number of times.
    """

    def __init__(self) -> None:
        self._calls: dict[str, _UnconfirmedCall] = {}

    def record_result(self, effect: Effect, step: int) -> None:
        """Record a result; a call with output is confirmed and removed.

        Args:
            effect: effect of the call, with its result.
            step: index of the step that received the result.
        """
        if classify_result(effect.result.lower()).reason is not ResultReason.NO_OUTPUT:
            self.remove(effect.key)
            return
        call = self._calls.setdefault(effect.key, _UnconfirmedCall(effect=effect, step=step))
        call.effect, call.step = effect, step

    def remove(self, key: str) -> None:
        """Remove the call with a key, for example because it was undone."""
        self._calls.pop(key, None)

    def refuse_repetition(self, key: str, step: int, max_refusals: int | None) -> Effect | None:
        """Return the earlier effect if an equal call must not run, and count the refusal; None if it may run.

        Args:
            key: key of the proposed call.
            step: index of the step of the proposed call.
            max_refusals: number of refusals after which the call may run; None for no limit.
        """
        call = self._calls.get(key)
        # Each refusal may add a step, so the next turn is later by the number of refusals.
        if call is None or not call.step < step <= call.step + 1 + call.refusals:
            return None
        if max_refusals is not None and call.refusals >= max_refusals:
            return None
        call.refusals += 1
        return call.effect

    def rewind(self, to_step: int) -> None:
        """Remove the calls from ``to_step`` on, after a rollback to this step."""
        self._calls = {key: call for key, call in self._calls.items() if call.step < to_step}


class EffectLedger:
    """Ledger of the effects of one run; thread-safe, since the tools of a turn may run concurrently.

    Args:
        store: storage of the effects; by default memory.
        tools: declared effects by tool name.
        default: effect of undeclared tools.
    """

    def __init__(
        self,
        store: EffectStore | None = None,
        tools: Mapping[str, ToolEffect] | None = None,
        *,
        default: ToolEffect = UNKNOWN_TOOL_EFFECT,
    ) -> None:
        self._store: EffectStore = store if store is not None else InMemoryEffectStore()
        self._tools = dict(tools or {})
        self._default = default
        self._schemas: dict[str, Mapping[str, Any]] = {}
        self._lock = threading.Lock()
        self._unsettled: dict[tuple[str, int], Effect] = {}
        self._refusals: Counter[str] = Counter()
        self._unconfirmed = UnconfirmedCalls()
        self._current_branch: list[tuple[int, tuple[str, int]]] = []
        # Calls per key on the current branch, so that a claim takes constant time.
        self._call_counts: Counter[str] = Counter()

    @property
    def location(self) -> tuple[str, str] | None:
        """Run id and branch under which another process finds these effects; None if no store has them."""
        return self._store.location if isinstance(self._store, InMemoryEffectStore) else None

    def restore(self, location: tuple[str, str], effects: Iterable[Effect]) -> None:
        """Load effects from another process into an `InMemoryEffectStore`; a database already has them."""
        if isinstance(self._store, InMemoryEffectStore):
            self._store.restore(location, effects)
            self._load_unsettled()

    def get_tool_effect(self, tool: str) -> ToolEffect:
        """Return the declared effect of a tool, or the default."""
        return self._tools.get(tool, self._default)

    def declare_tool(self, tool: str, effect: ToolEffect) -> None:
        """Declare the effect of a tool; the declaration replaces an earlier one."""
        self._tools[tool] = effect

    def add_schemas(self, tools: Iterable[ToolSpec]) -> None:
        """Add the schemas of offered tools, whose types the compared arguments are converted to."""
        self._schemas.update({tool.name: tool.parameters for tool in tools if tool.parameters})

    def has_effect(self, tool: str) -> bool:
        """Return whether the ledger records the calls of a tool: it is not declared ``read``."""
        return self.get_tool_effect(tool).effect is not EffectClass.READ

    def is_declared(self, tool: str) -> bool:
        """Return whether the effect of a tool is declared."""
        return tool in self._tools

    def may_destroy(self, tool: str) -> bool:
        """Return whether a tool is declared destructive, or is undeclared without the name of a read."""
        if tool in self._tools:
            return self._tools[tool].effect is EffectClass.DESTRUCTIVE
        return self._default.effect is EffectClass.DESTRUCTIVE and not is_read_tool(tool)

    def forbids_repetition(self, tool: str) -> bool:
        """Return whether a call of a tool must never run twice: by its declaration or its name."""
        if tool in self._tools:
            return self._tools[tool].effect is not EffectClass.READ and not self._tools[tool].idempotent
        return is_irreversible_name(tool)

    def permits_repetition(self, tool: str) -> bool:
        """Return whether the declaration of a tool permits equal calls in one run."""
        effect = self.get_tool_effect(tool)
        return effect.idempotent or effect.repeatable or bool(effect.key)

    def find_completed_call(self, tool: str, arguments: Mapping[str, Any]) -> Effect | None:
        """Return the effect of the last equal call on the current branch that succeeded, if there is one."""
        key = self.compute_key(tool, arguments)
        with self._lock:
            if not self._call_counts[key]:
                return None
            ids = {id for _, id in self._current_branch if id[0] == key}
        equal = (effect for effect in self._store.effects() if effect.id in ids and effect.is_done)
        return max(equal, key=lambda effect: effect.occurrence, default=None)

    def has_call(self, key: str) -> bool:
        """Return whether a call with this key has been claimed on the current branch."""
        return self._call_counts[key] > 0

    def count_refusal(self, effect: Effect) -> bool:
        """Count a refusal to repeat a call; return True if the call may run.

        An undeclared tool may be a read, so its call runs after `MAX_REFUSALS` refusals.
        """
        with self._lock:
            self._refusals[effect.key] += 1
            return self._refusals[effect.key] > MAX_REFUSALS and not self.forbids_repetition(effect.tool)

    def claim_call(self, tool: str, arguments: Mapping[str, Any], *, step: int) -> EffectClaim:
        """Claim a call before its tool runs. Claim the calls of a turn in their order.

        Args:
            tool: name of the tool.
            arguments: arguments of the call.
            step: index of the step with the call.

        Raises:
            StoreUnavailable: the store of the effects cannot write the claim durably.
        """
        declared = self.get_tool_effect(tool)
        key = self.compute_key(tool, arguments)
        if declared.effect is EffectClass.READ:
            effect = Effect(key=key, occurrence=0, tool=tool, arguments=dict(arguments), step=step)
            return EffectClaim(decision=ExecutionDecision.RUN, effect=effect)
        with self._lock:
            max_refusals = None if declared.effect is EffectClass.DESTRUCTIVE else MAX_REFUSALS
            unconfirmed = self._unconfirmed.refuse_repetition(key, step, max_refusals)
            if unconfirmed is not None:
                return EffectClaim(decision=ExecutionDecision.OUTCOME_UNKNOWN, effect=unconfirmed)
            earlier = self._find_unsettled(key, step)
            if earlier is None:
                occurrence = self._count_occurrences(key, declared)
                self._add_call(step, (key, occurrence))
        if earlier is None:
            effect = Effect(key=key, occurrence=occurrence, tool=tool, arguments=dict(arguments), step=step)
            earlier = self._store.claim(effect)
            if earlier is None:
                self._unsettled[effect.id] = effect
                return EffectClaim(decision=ExecutionDecision.RUN, effect=effect)
        if earlier.is_done:
            self._record_result(earlier, step)
            return EffectClaim(decision=ExecutionDecision.REUSE, effect=earlier)
        may_run = declared.idempotent or self.count_refusal(earlier)
        decision = ExecutionDecision.RUN if may_run else ExecutionDecision.OUTCOME_UNKNOWN
        return EffectClaim(decision=decision, effect=earlier)

    def compute_key(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Return the key that equal calls of a tool have in common: a hexadecimal SHA-256."""
        declared = self.get_tool_effect(tool)
        schema = self._schemas.get(tool)
        if schema is not None and declared.effect is not EffectClass.READ:
            arguments = coerce_arguments(arguments, schema)
        return compute_effect_key(tool, arguments, declared.key)

    def _find_unsettled(self, key: str, step: int) -> Effect | None:
        """Return an effect with this key whose outcome is unknown, on any branch.

        An equal call of the same turn runs concurrently and is ignored.
        """
        for effect in self._unsettled.values():
            if effect.key == key and (step, effect.id) not in self._current_branch:
                return effect
        return None

    def replay(self, steps: Iterable[Step]) -> None:
        """Rebuild the call counts from the steps of a resumed run without claiming the calls."""
        with self._lock:
            self._filter_calls(lambda _, __: False)
            steps = tuple(steps)
            if steps:  # a new run has no effects, so its store need not be read
                self._load_unsettled()
            for step in steps:
                for call in step.tool_calls:
                    declared = self.get_tool_effect(call.name)
                    if declared.effect is not EffectClass.READ:
                        key = self.compute_key(call.name, call.arguments or {})
                        self._add_call(step.index, (key, self._count_occurrences(key, declared)))

    def _load_unsettled(self) -> None:
        unsettled = (one for one in self._store.effects() if one.is_unsettled)
        self._unsettled.update({effect.id: effect for effect in unsettled})

    def _count_occurrences(self, key: str, tool_effect: ToolEffect) -> int:
        """Count the equal calls on the current branch; always 0 for a tool with an idempotency key."""
        return 0 if tool_effect.key else self._call_counts[key]

    def _add_call(self, step: int, id: tuple[str, int]) -> None:
        self._current_branch.append((step, id))
        self._call_counts[id[0]] += 1

    def _filter_calls(self, is_wanted: Callable[[int, tuple[str, int]], bool]) -> None:
        self._current_branch = [(step, id) for step, id in self._current_branch if is_wanted(step, id)]
        self._call_counts = Counter(id[0] for _, id in self._current_branch)

    def mark_done(self, effect: Effect, result: str) -> None:
        """Record that the tool returned ``result``."""
        self._settle(effect, EffectState.DONE, result)

    def mark_failed(self, effect: Effect) -> None:
        """Record that the tool failed without an effect; if it may have acted, use `mark_ambiguous`."""
        self._settle(effect, EffectState.FAILED, "")
        with self._lock:
            self._filter_calls(lambda _, id: id != effect.id)

    def mark_ambiguous(self, effect: Effect) -> None:
        """Record that the call ended with unknown outcome."""
        self._settle(effect, EffectState.AMBIGUOUS, "")

    def mark_reconciled(self, effect: Effect, result: str) -> None:
        """Record that an effect with unknown outcome was found, with its result."""
        self._settle(effect, EffectState.RECONCILED, result)

    def mark_compensated(self, effect: Effect) -> None:
        """Record that the undo function has run; the same call may run again."""
        self._settle(effect, EffectState.COMPENSATED, effect.result)

    def _settle(self, effect: Effect, state: EffectState, result: str) -> None:
        if self.has_effect(effect.tool):
            settled = replace(effect, state=state, result=result)
            self._store.settle(settled)
            self._record_result(settled, settled.step)
            if settled.is_unsettled:
                self._unsettled[effect.id] = settled
            else:
                self._unsettled.pop(effect.id, None)

    def _record_result(self, effect: Effect, step: int) -> None:
        """Update the unconfirmed calls; only a call whose repetition has a further effect matters."""
        tool = effect.tool
        if not self.is_declared(tool) or not self.forbids_repetition(tool) or self.permits_repetition(tool):
            return
        with self._lock:
            if effect.is_done:
                self._unconfirmed.record_result(effect, step)
            else:
                self._unconfirmed.remove(effect.key)

    def rewind(self, to_step: int) -> None:
        """Remove the calls from ``to_step`` on from the current branch, after a rollback to this step."""
        with self._lock:
            self._unconfirmed.rewind(to_step)
            self._filter_calls(lambda at, _: at < to_step)

    def list_active(self) -> tuple[Effect, ...]:
        """Return the effects of all branches that are done or have an unknown outcome."""
        return tuple(effect for effect in self._store.effects() if effect.is_active)

    def list_active_since(self, step: int) -> tuple[Effect, ...]:
        """Return the active effects whose calls a rollback to ``step`` discards, the earliest first."""
        with self._lock:
            earlier_ids = {id for at, id in self._current_branch if at < step}
        return tuple(effect for effect in self.list_active() if effect.id not in earlier_ids)

    def effects(self) -> tuple[Effect, ...]:
        """Return all effects of the run in any state."""
        return self._store.effects()
