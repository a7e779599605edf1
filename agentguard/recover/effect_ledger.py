"""The effect ledger: what tools did to the world, so that a run that is taken back never does it twice.

Deleting a tool call cannot undo its effect. The ledger keeps, for each call that has one, whether it was
attempted, done or compensated. A call is known again by its *logical step*: tool, canonical arguments, and
how many calls like it lie before it on the live line. A ``tool_call_id`` would not do, since a model writes a
new one each time. Counting on the live line alone lets an agent do the same thing twice on purpose, while the
same call after a rollback, at whatever turn, is the one that was done on the line that was left. Where a tool
declares an idempotency key, that key is done once, whoever asks.

*Attempted* is written before the tool runs and *done* after it. What is found attempted after a crash is in
doubt: it may have happened. It is not repeated unless the tool is idempotent.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from agentguard.recover.tool_effects import UNKNOWN_TOOL_EFFECT, EffectClass, ToolEffect, compute_effect_key
from agentguard.trajectory.model import Step


class EffectState(StrEnum):
    """How far an effect got."""

    ATTEMPTED = "attempted"
    DONE = "done"
    FAILED = "failed"
    COMPENSATED = "compensated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One call with an effect.

    Attributes:
        key: SHA-256 of tool and canonical arguments.
        occurrence: calls of that key before it on the line it was made on.
        tool, arguments: the call.
        step: index of the step that made it.
        state: how far it got.
        result: what the tool returned, as text; empty until it is done.
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
        """What makes it one effect within its run."""
        return self.key, self.occurrence


class ExecutionDecision(StrEnum):
    """What is to be done with a call."""

    RUN = "run"
    """Run the tool, then settle the effect."""
    REUSE = "reuse"
    """It has been done: give the agent the recorded result."""
    OUTCOME_UNKNOWN = "in_doubt"
    """It was attempted and nobody knows whether it happened: do not run it, tell the agent to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectClaim:
    """The answer to "may this call run"."""

    decision: ExecutionDecision
    effect: Effect


class EffectStore(Protocol):
    """Where effects are kept: one run's, by id.

    Each call is atomic and, where the book is a database, durable before it returns.
    """

    def claim(self, effect: Effect) -> Effect | None:
        """Enter an attempt. None if it is new (or was compensated, or failed); else what is there already."""
        ...

    def settle(self, effect: Effect) -> None:
        """Write the state and the result of an effect that was claimed."""
        ...

    def effects(self) -> tuple[Effect, ...]:
        """All effects of the run, in the order in which they were first claimed."""
        ...


class InMemoryEffectStore:
    """Effects of one run in memory; thread-safe. Nothing of it survives the process.

    Attributes:
        where: the run and the line under which a store has these effects, too, for whoever goes on with the
            run elsewhere; None where nobody else is told of them.
    """

    location: tuple[str, str] | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._effects: dict[tuple[str, int], Effect] = {}

    def claim(self, effect: Effect) -> Effect | None:
        """As `EffectStore.claim`."""
        with self._lock:
            there = self._effects.get(effect.id)
            if there is not None and there.state in _ACTIVE_STATES:
                return there
            fresh = effect.state is EffectState.ATTEMPTED
            self._effects[effect.id] = effect if fresh else replace(effect, state=EffectState.ATTEMPTED)
            return None

    def settle(self, effect: Effect) -> None:
        """As `EffectStore.settle`."""
        with self._lock:
            self._effects[effect.id] = effect

    def effects(self) -> tuple[Effect, ...]:
        """As `EffectStore.effects`."""
        with self._lock:
            return tuple(self._effects.values())

    def restore(self, location: tuple[str, str], effects: Iterable[Effect]) -> None:
        """Go on with the effects of a run that was begun elsewhere; before any is claimed here."""
        with self._lock:
            self.location = location
            self._effects.update({effect.id: effect for effect in effects})


_ACTIVE_STATES = frozenset({EffectState.ATTEMPTED, EffectState.DONE})
"""States in which the same call does not run again."""


class EffectLedger:
    """Effects of one run, with its live line in view; thread-safe, since tools of one turn run side by side.

    Args:
        book: where the effects are kept.
        tools: what is declared of the tools; one that is not declared has ``default``.
        default: of tools that nothing is declared of.
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
        self._lock = threading.Lock()
        self._current_branch: list[tuple[int, tuple[str, int]]] = []
        self._call_counts: Counter[str] = (
            Counter()
        )  # calls of each key on the line: work a call does not grow with it

    @property
    def location(self) -> tuple[str, str] | None:
        """The run and the line under which another process finds these effects; None if it does not."""
        return self._store.location if isinstance(self._store, InMemoryEffectStore) else None

    def restore(self, location: tuple[str, str], effects: Iterable[Effect]) -> None:
        """Go on with what was done elsewhere, see `InMemoryEffectStore.take_up`; a book of another
        kind knows it.
        """
        if isinstance(self._store, InMemoryEffectStore):
            self._store.restore(location, effects)

    def get_tool_effect(self, tool: str) -> ToolEffect:
        """What is known of a tool."""
        return self._tools.get(tool, self._default)

    def declare_tool(self, tool: str, effect: ToolEffect) -> None:
        """Say what a tool does; outranks what was said before."""
        self._tools[tool] = effect

    def claim_call(self, tool: str, arguments: Mapping[str, Any], *, step: int) -> EffectClaim:
        """Ask whether a call may run; call this before the tool, in the order of the calls of a turn."""
        known = self.get_tool_effect(tool)
        key = compute_effect_key(tool, arguments, known.key)
        if known.effect is EffectClass.READ:
            effect = Effect(key=key, occurrence=0, tool=tool, arguments=dict(arguments), step=step)
            return EffectClaim(decision=ExecutionDecision.RUN, effect=effect)
        with self._lock:
            occurrence = self._count_occurrences(key, known)
            self._add_call(step, (key, occurrence))
        effect = Effect(key=key, occurrence=occurrence, tool=tool, arguments=dict(arguments), step=step)
        there = self._store.claim(effect)
        if there is None:
            return EffectClaim(decision=ExecutionDecision.RUN, effect=effect)
        if there.state is EffectState.DONE:
            return EffectClaim(decision=ExecutionDecision.REUSE, effect=there)
        return EffectClaim(
            decision=ExecutionDecision.RUN if known.idempotent else ExecutionDecision.OUTCOME_UNKNOWN,
            effect=there,
        )

    def replay(self, steps: Iterable[Step]) -> None:
        """Put the calls of a line that is gone on with in view, e.g. after a crash; nothing is claimed."""
        with self._lock:
            self._filter_calls(lambda _, __: False)
            for step in steps:
                for call in step.tool_calls:
                    known = self.get_tool_effect(call.name)
                    if known.effect is not EffectClass.READ:
                        key = compute_effect_key(call.name, call.arguments or {}, known.key)
                        self._add_call(step.index, (key, self._count_occurrences(key, known)))

    def _count_occurrences(self, key: str, tool_effect: ToolEffect) -> int:
        """Calls like it on the live line; an idempotency key names one effect, however often it is called."""
        return 0 if tool_effect.key else self._call_counts[key]

    def _add_call(self, step: int, id: tuple[str, int]) -> None:
        self._current_branch.append((step, id))
        self._call_counts[id[0]] += 1

    def _filter_calls(self, is_wanted: Callable[[int, tuple[str, int]], bool]) -> None:
        self._current_branch = [(step, id) for step, id in self._current_branch if is_wanted(step, id)]
        self._call_counts = Counter(id[0] for _, id in self._current_branch)

    def mark_done(self, effect: Effect, result: str) -> None:
        """The tool returned ``result``."""
        self._settle(effect, EffectState.DONE, result)

    def mark_failed(self, effect: Effect) -> None:
        """The tool refused and nothing happened.

        Not for a tool that may have acted before it failed: leave that one attempted, it is in doubt.
        """
        self._settle(effect, EffectState.FAILED, "")
        with self._lock:
            self._filter_calls(lambda _, id: id != effect.id)

    def mark_compensated(self, effect: Effect) -> None:
        """Its undo has run; the same call may run again."""
        self._settle(effect, EffectState.COMPENSATED, effect.result)

    def _settle(self, effect: Effect, state: EffectState, result: str) -> None:
        if self.get_tool_effect(effect.tool).effect is not EffectClass.READ:
            settled = Effect(
                key=effect.key,
                occurrence=effect.occurrence,
                tool=effect.tool,
                arguments=effect.arguments,
                step=effect.step,
                state=state,
                result=result,
            )
            self._store.settle(settled)

    def rewind(self, to_step: int) -> None:
        """The live line was left before ``to_step``: calls after it will be counted anew."""
        with self._lock:
            self._filter_calls(lambda at, _: at < to_step)

    def list_active(self) -> tuple[Effect, ...]:
        """Effects that happened, or may have, and were not undone; on whatever line they were made."""
        return tuple(effect for effect in self._store.effects() if effect.state in _ACTIVE_STATES)

    def list_active_since(self, step: int) -> tuple[Effect, ...]:
        """Standing effects that a rewind to ``step`` leaves without their call, the earliest first."""
        with self._lock:
            kept = {id for at, id in self._current_branch if at < step}
        return tuple(effect for effect in self.list_active() if effect.id not in kept)

    def effects(self) -> tuple[Effect, ...]:
        """All effects of the run, whatever their state."""
        return self._store.effects()
