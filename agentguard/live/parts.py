"""What a guard is made of, and what its live runs go by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agentguard.detect.keep import finding_rows
from agentguard.detect.run import Watcher
from agentguard.detect.view import RunView
from agentguard.judge.safety import SafetyAction, trigger_of
from agentguard.live.rules import Accept, AtEnd, Observer, Rules, Safety
from agentguard.localize.base import Localizer
from agentguard.recover.base import RepairFunction
from agentguard.recover.keep import recovery_row
from agentguard.recover.policy import Recover
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.live.learning import Learning
    from agentguard.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a guard is made of; `Guard.override` replaces some for a while."""

    detectors: Mapping[str, Mapping[str, Any]] | None
    localizer: Localizer
    detector_deadline_s: float
    recover: Recover
    accept: Accept | None = None
    safety: Safety | None = None
    observers: tuple[Observer, ...] = ()
    store: Store | None = None
    repair: RepairFunction | None = None
    schemata: Learning | None = None
    rules: Rules | None = field(default=None, compare=False)


SAFETY_LADDERS = {
    trigger_of(SafetyAction.CONDITION): "nudge",
    trigger_of(SafetyAction.ESCALATE): ("hand_over", "stop"),
    trigger_of(SafetyAction.BLOCK): "stop",
}
"""How the actions of response safety are carried out, where a ladder under their name says nothing else."""

REPLACEABLE = frozenset(Parts.__slots__) - {"rules"}
"""Parts that an override may replace."""


def with_rules(parts: Parts) -> Parts:
    """The parts with what live runs go by; a wrong ladder is an error now and not in a run."""
    recover, specs, deadline = parts.recover, parts.detectors, parts.detector_deadline_s
    if parts.safety is not None:
        recover = replace(recover, ladders={**SAFETY_LADDERS, **recover.ladders})

    def watcher(meta: Trajectory) -> Watcher:
        return Watcher(RunView.of(meta), specs, deadline_s=deadline)

    store, observers, at_end = parts.store, parts.observers, _NO_ONE
    if store is not None:
        observers = (*observers, lambda recovery: _ignore(store.write(recovery_row(recovery))))
        at_end = (lambda run, found: _ignore(store.write(*finding_rows(run.id, found))),)
    learning = parts.schemata
    if learning is not None:
        observers, at_end = (*observers, learning.observe), (*at_end, learning.at_end)
    afterwards = _corrected(parts, parts.localizer)
    at_once = getattr(parts.localizer, "at_once", None)
    rules = Rules(
        planner=recover.planner(),
        watcher=watcher,
        localizer=afterwards if at_once is None else _corrected(parts, at_once),
        afterwards=afterwards,
        budget=recover.budget,
        verification=recover.verification,
        threshold=recover.threshold,
        accept=_recorded(parts),
        safety=parts.safety,
        on_error=recover.on_error,
        protect=recover.protect,
        repair=parts.repair,
        credit=None if learning is None else learning.credit,
        observers=observers,
        at_end=at_end,
    )
    return replace(parts, rules=rules)


_NO_ONE: tuple[AtEnd, ...] = ()


def _recorded(parts: Parts) -> Accept | None:
    """The acceptance test; with a store, one whose record is kept there."""
    if parts.accept is None or parts.store is None:
        return parts.accept
    from agentguard.recover.acceptance_record import recorded

    kept: Accept = recorded(parts.accept, parts.store)
    return kept


def _corrected(parts: Parts, localizer: Localizer) -> Localizer:
    """A localizer; with a store, corrected by what people said there of its diagnoses."""
    if parts.store is None:
        return localizer
    from agentguard.localize.corrected import Corrected

    return Corrected(localizer, parts.store)


def _ignore(receipt: object) -> None:
    """A run does not wait for what is written behind it; what is lost is counted by the store."""
