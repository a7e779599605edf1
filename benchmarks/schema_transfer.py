"""Source of the loss of schemata of other questions: retrieval, representation, or nothing to transfer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentguard.evals.statistics import mean
from agentguard.judge.embedded.features.table import build_step_table
from agentguard.judge.embedded.training import build_untrained_model
from agentguard.schemata.index import SchemaIndex
from agentguard.schemata.signal_trainer import (
    TRAIT_WEIGHT,
    detect_cached,
    distill_records,
    profile_cached,
    select_group,
)
from agentguard.schemata.similarity_signal import SchemaSignals
from agentguard.trajectory.model import Record


def why(records: Sequence[Record], repeats: int) -> list[dict[str, Any]]:
    """Compare each run with the schemata of all other questions: retrieval, representation and transfer."""
    del repeats
    held = [record for record in records if _gold(record) is not None]
    schemata, sound = distill_records(held)
    index = SchemaIndex(trait_weight=TRAIT_WEIGHT)
    index.add(schemata)
    signals = SchemaSignals(index, k=3, negatives=sound)
    own = {run: schema for schema in schemata for run in schema.provenance.runs}
    rows: dict[str, list[float]] = {}

    def note(name: str, value: float | None) -> None:
        if value is not None:
            rows.setdefault(name, []).append(float(value))

    for record in held:
        run, gold = record.trajectory, _gold(record)
        aside, mine = (select_group(record), run.task), own[run.id]
        looks = profile_cached(run, detect_cached(run))
        said = signals.compute(looks, excluded_groups=aside)
        others = index.search(looks, len(index), excluded_groups=aside)
        likeness = np.array(
            [[m.similarity for m in sorted(row, key=lambda m: m.schema.id)] for row in others]
        )
        known = sorted((m.schema for m in others[0]), key=lambda schema: schema.id)
        # retrieval: the kind of the nearest schema of the gold step, and the result of an oracle of the kind
        for name, same in (("role", _role), ("code", lambda s: set(s.codes[:1]))):
            alike = np.array([bool(same(schema) & same(mine)) for schema in known])
            note(f"retrieval: nearest schema of the gold step has its {name}", alike[likeness[gold].argmax()])
            note(f"retrieval: any schema has its {name}", alike.mean())
            if alike.any():
                best = np.sort(likeness[:, alike], axis=1)[:, -3:].mean(axis=1)
                note(f"retrieval: step, nearest 3 of its {name} given by an oracle", best.argmax() == gold)
        near = np.sort(likeness, axis=1)[:, -3:].mean(axis=1)
        note("retrieval: step, nearest 3 of all", near.argmax() == gold)
        # representation: the rank of the gold step among the candidates
        prior = build_untrained_model().judge(run, (), risk=0.1).step_probabilities
        note("representation: gold over other steps, likeness", _auc(near, gold))
        note("representation: gold over other steps, sound steps taken off", _auc(said.signal[:, 0], gold))
        note("representation: gold over other steps, position prior", _auc(prior, gold))
        own_run = np.asarray(index.encode(looks) @ index.encode([mine])[0], dtype=float)
        note("representation: its own schema puts the gold step first", own_run.argmax() == gold)
        # transfer: number of schemata of other questions that rank the gold step first, and any other step
        first = likeness.argmax(axis=0)
        note("transfer: share of schemata that put the gold step first", (first == gold).mean())
        note(
            "transfer: share that put one other step first, mean",
            ((first != gold).mean()) / max(1, len(looks) - 1),
        )
        note("transfer: some schema puts the gold step first", (first == gold).any())
        rest = [(first == i).any() for i in range(len(looks)) if i != gold]
        note("transfer: some schema puts a given other step first, mean", mean(rest) if rest else None)
        note("candidates", len(looks))
    return [{"what": name, "n": len(values), "value": mean(values)} for name, values in rows.items()]


def _gold(record: Record) -> int | None:
    """Return the row of the gold step among the candidates."""
    steps = build_step_table(record.trajectory).steps
    cause = record.annotation.root_cause.step
    return steps.index(cause) if cause in steps else None


def _role(schema: Any) -> set[str]:
    return {name for name, weight in schema.traits.items() if name.startswith("role:") and weight >= 0.5} & {
        "role:worker",
        "role:steering",
        "role:opens",
    }


def _auc(scores: Any, gold: int) -> float | None:
    rest = np.delete(scores, gold)
    return float((rest < scores[gold]).mean() + (rest == scores[gold]).mean() / 2) if len(rest) else None
