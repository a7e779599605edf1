"""Trainer of similarity signals from annotated runs: schemata of failures, and other steps of the same runs.

Findings and profiles of several hundred runs are cached, since a cross-validation needs each of them
repeatedly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from agentguard._bounded_map import BoundedMap
from agentguard.detect.base import Finding
from agentguard.detect.detection import detect
from agentguard.schemata.distillation.distiller import EmbeddedDistiller
from agentguard.schemata.index import SchemaIndex
from agentguard.schemata.model import ErrorSchema, Profile
from agentguard.schemata.profiles.step_profile import profile_steps
from agentguard.schemata.similarity_signal import DEFAULT_NEIGHBOURS, NegativeExample, SchemaSignals
from agentguard.trajectory.grouping import normalize_group_key
from agentguard.trajectory.model import Record, Trajectory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


TRAIT_WEIGHT: Final = 0.5
"""Share of traits in the similarity; the rest is the similarity of texts."""

_MAX_CACHED_RUNS: Final = 512


def train_signals(records: Sequence[Record], *, k: int = DEFAULT_NEIGHBOURS) -> SchemaSignals:
    """Build signals from the failures of annotated runs."""
    schemata, negatives = distill_records(records)
    return build_signals(schemata, k=k, negatives=negatives)


def build_signals(
    schemata: Sequence[ErrorSchema], *, k: int = DEFAULT_NEIGHBOURS, negatives: Sequence[NegativeExample] = ()
) -> SchemaSignals:
    """Build signals from schemata, and from steps that were not at fault, if there are any."""
    index = SchemaIndex(trait_weight=TRAIT_WEIGHT)
    index.add(schemata)
    return SchemaSignals(index, k=k, negatives=negatives)


def distill_records(records: Sequence[Record]) -> tuple[tuple[ErrorSchema, ...], tuple[NegativeExample, ...]]:
    """Return the schemata of the failures in annotated runs, and the other steps of those runs."""
    schemata: dict[str, ErrorSchema] = {}
    negatives: list[NegativeExample] = []
    for record in records:
        findings, cause = detect_cached(record.trajectory), record.annotation.root_cause
        schema = EmbeddedDistiller().distill(record, findings)
        if schema is None or cause is None:
            continue
        schemata.setdefault(schema.id, schema)
        group = select_group(record)
        others = (
            profile for profile in profile_cached(record.trajectory, findings) if profile.step != cause.step
        )
        negatives += [NegativeExample(profile=profile, group=group) for profile in others]
    return tuple(schemata.values()), tuple(negatives)


def compute_training_signals(signals: SchemaSignals, record: Record) -> NDArray[np.float64]:
    """Return the signals of a training run without the schemata of its question; a `SignalFunction`."""
    profiles = profile_cached(record.trajectory, detect_cached(record.trajectory))
    return signals.compute(profiles, excluded_groups=(select_group(record), record.trajectory.task)).signal


def select_group(record: Record) -> str:
    """Return the question of a run: the group of its annotation, else its task."""
    group = record.annotation.group or ""
    return group if normalize_group_key(group) else record.trajectory.task


def detect_cached(run: Trajectory) -> tuple[Finding, ...]:
    """Return the findings of a run; cached."""
    entry = _FINDINGS_CACHE.get(id(run))
    if entry is None or entry[0] is not run:
        entry = (run, tuple(detect(run).findings))
        _FINDINGS_CACHE[id(run)] = entry
    return entry[1]


def profile_cached(run: Trajectory, findings: Sequence[Finding]) -> tuple[Profile, ...]:
    """Return the profiles of the steps of a run that could be at fault; cached."""
    entry = _PROFILE_CACHE.get(id(run))
    if entry is None or entry[0] is not run or entry[1] != tuple(findings):
        entry = (run, tuple(findings), profile_steps(run, findings))
        _PROFILE_CACHE[id(run)] = entry
    return entry[2]


_FINDINGS_CACHE = BoundedMap[int, tuple[Trajectory, tuple[Finding, ...]]](_MAX_CACHED_RUNS)
_PROFILE_CACHE = BoundedMap[int, tuple[Trajectory, tuple[Finding, ...], tuple[Profile, ...]]](
    _MAX_CACHED_RUNS
)
