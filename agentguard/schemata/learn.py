"""From annotated runs to what can speak of others: schemata of failures, and the sound steps beside them.

What is detected and portrayed is kept for some hundred runs: a cross-validation asks for each many times.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from agentguard.detect.base import Finding
from agentguard.detect.run import detect
from agentguard.schemata.distil import EmbeddedDistiller
from agentguard.schemata.model import Portrait, Schema
from agentguard.schemata.portrait import portray
from agentguard.schemata.retrieve import SchemaIndex
from agentguard.schemata.signals import NEAREST, SchemaSignals, Sound
from agentguard.trajectory.groups import group_key
from agentguard.trajectory.model import Record, Trajectory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_T = TypeVar("_T")

TRAITS: Final = 0.5
"""Share of traits in the likeness; the rest is the likeness of texts."""

_KEPT: Final = 512


def learnt(records: Sequence[Record], *, k: int = NEAREST) -> SchemaSignals:
    """Signals from the failures among annotated runs."""
    schemata, sound = distilled(records)
    return signals_of(schemata, k=k, sound=sound)


def signals_of(schemata: Sequence[Schema], *, k: int = NEAREST, sound: Sequence[Sound] = ()) -> SchemaSignals:
    """Signals from schemata, and from sound steps if there are any to hold against them."""
    index = SchemaIndex(traits=TRAITS)
    index.add(schemata)
    return SchemaSignals(index, k=k, sound=sound)


def distilled(records: Sequence[Record]) -> tuple[tuple[Schema, ...], tuple[Sound, ...]]:
    """Schemata of the failures among annotated runs, and the steps of those runs that were not at fault."""
    schemata: dict[str, Schema] = {}
    sound: list[Sound] = []
    for record in records:
        found, cause = detected(record.trajectory), record.annotation.root_cause
        schema = EmbeddedDistiller().distil(record, found)
        if schema is None or cause is None:
            continue
        schemata.setdefault(schema.id, schema)
        group = group_of(record)
        others = (one for one in portraits(record.trajectory, found) if one.step != cause.step)
        sound += [Sound(portrait=one, group=group) for one in others]
    return tuple(schemata.values()), tuple(sound)


def heard(signals: SchemaSignals, record: Record) -> NDArray[np.float64]:
    """Signals of a training run, with all of its own question left out: `agentguard.judge.train.Signals`."""
    held = portraits(record.trajectory, detected(record.trajectory))
    return signals.said(held, leave_out_groups=(group_of(record), record.trajectory.task)).signal


def group_of(record: Record) -> str:
    """The question of a run, as schemata are left out by it."""
    group = record.annotation.group or ""
    return group if group_key(group) else record.trajectory.task


def detected(run: Trajectory) -> tuple[Finding, ...]:
    """What the detectors find in a run."""
    kept = _FOUND.get(id(run))
    if kept is None or kept[0] is not run:
        kept = (run, tuple(detect(run).findings))
        _remember(_FOUND, id(run), kept)
    return kept[1]


def portraits(run: Trajectory, findings: Sequence[Finding]) -> tuple[Portrait, ...]:
    """Portraits of the steps of a run that could be at fault."""
    kept = _PORTRAITS.get(id(run))
    if kept is None or kept[0] is not run or kept[1] != tuple(findings):
        kept = (run, tuple(findings), portray(run, findings))
        _remember(_PORTRAITS, id(run), kept)
    return kept[2]


_FOUND: OrderedDict[int, tuple[Trajectory, tuple[Finding, ...]]] = OrderedDict()
_PORTRAITS: OrderedDict[int, tuple[Trajectory, tuple[Finding, ...], tuple[Portrait, ...]]] = OrderedDict()


def _remember(held: OrderedDict[int, _T], key: int, value: _T) -> None:
    held[key] = value
    while len(held) > _KEPT:
        held.popitem(last=False)
