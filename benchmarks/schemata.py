"""Gain of schemata of earlier failures: beside the embedded judge, alone, from a cold start, in a stream.

Run: .venv/bin/python benchmarks/schemata.py TASK PATH... [--repeats N] [--origin injected] [--json]

    who_and_when PATH   5-fold cross-validation grouped by question: embedded with and without schemata,
                        schemata alone, baselines on the same folds, paired differences
    coldstart PATH      the same after 0, 10, 30 and all failures of the training folds
    streaming PATH      diagnosis of each run before its label, over seeded orders (--repeats of them)
    select PATH         schemata alone at 5, 10, 25, 50 and 100 % of the size: selected, and at random
    why PATH            source of the loss: retrieval, representation, or nothing to transfer

Runs with injected errors are measured with --origin injected, and never together with natural ones.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agentguard.evals.datasets.dataset import to_dataset
from agentguard.evals.methods import resolve_method
from agentguard.evals.runner import EvaluationPlan, EvaluationRunner
from agentguard.evals.splits import list_groups, split_for_cross_validation
from agentguard.evals.statistics import compare_paired, mean, standard_deviation, wilson_interval
from agentguard.judge.embedded.features.table import build_step_table
from agentguard.judge.embedded.training import build_untrained_model, train_model
from agentguard.localize.embedded import EmbeddedLocalizer
from agentguard.localize.schema_similarity import SCHEMA_SIGNAL_WEIGHT, SchemaLocalizer
from agentguard.schemata.distillation.distiller import EmbeddedDistiller
from agentguard.schemata.index import SchemaIndex
from agentguard.schemata.live_cache import SchemaCache
from agentguard.schemata.selection import select_schemata
from agentguard.schemata.signal_trainer import (
    TRAIT_WEIGHT,
    build_signals,
    detect_cached,
    distill_records,
    profile_cached,
    select_group,
)
from agentguard.schemata.similarity_signal import SchemaSignals
from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import Record
from benchmarks.prequential import evaluate_prequential
from benchmarks.schema_transfer import why

BASELINES = ("constant", "label_copy", "two_line", "index_prior")
SHARES = (0.05, 0.1, 0.25, 0.5)
RANDOM_DRAWS = 10
SIZES = ("0", "10", "30", "all")


@dataclass
class Tally:
    """Ranks of gold steps and correctness of agents, by method, run and repeat."""

    records: Sequence[Record]
    ranks: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    agents: dict[str, dict[int, list[bool]]] = field(default_factory=dict)

    def add(self, method: str, place: int, scores: Any) -> None:
        """Record a method's scores of the candidates of a run."""
        cause = self.records[place].annotation.root_cause
        table = build_step_table(self.records[place].trajectory)
        order = np.argsort(-np.asarray(scores, dtype=float), kind="stable")
        steps = [table.steps[i] for i in order]
        rank = steps.index(cause.step) if cause.step in steps else 10**6
        self.ranks.setdefault(method, {}).setdefault(place, []).append(rank)
        right = bool(len(order)) and table.agents[order[0]] == cause.agent
        self.agents.setdefault(method, {}).setdefault(place, []).append(right)

    def right(self, method: str) -> list[float]:
        """Return the share of repeats, per run, in which the first step was the gold step."""
        held = self.ranks[method]
        return [mean(rank == 0 for rank in held[i]) for i in range(len(self.records))]

    def row(self, method: str, **more: Any) -> dict[str, Any]:
        """Return a method's scores, with the deviation between repeats and the Wilson interval over runs."""
        held, n = self.ranks[method], len(self.records)
        repeats = len(held[0])
        by_repeat = [mean(held[i][r] == 0 for i in range(n)) for r in range(repeats)]
        step = mean(by_repeat)
        low, high = wilson_interval(step, n)
        return {
            "method": method,
            **more,
            "n": n,
            "step": step,
            "sd": standard_deviation(by_repeat),
            "low": low,
            "high": high,
            "top3": mean(rank < 3 for i in range(n) for rank in held[i]),
            "agent": mean(flag for i in range(n) for flag in self.agents[method][i]),
        }

    def against(self, method: str, other: str) -> dict[str, Any]:
        """Return the paired difference of two methods."""
        gap = compare_paired(self.right(method), self.right(other), list_groups(self.records))
        return {
            "compare": f"{method} - {other}",
            "difference": gap.mean,
            "low": gap.low,
            "high": gap.high,
            "gained": gap.gained,
            "lost": gap.lost,
            "mcnemar_p": gap.p,
        }


def who_and_when(records: Sequence[Record], repeats: int) -> list[dict[str, Any]]:
    """Cross-validate with and without schemata, and baselines on the same folds."""
    tally, weights = Tally(records), []
    for number, split in enumerate(split_for_cross_validation(records, folds=5, repeats=repeats, seed=0)):
        fitted = SchemaLocalizer().fit(split.train)
        weights += [one.ranker.beside.weights[0] for one in fitted.model.specialists if one.ranker]
        for place in split.test:
            score(tally, fitted, records[place], place)
        print_progress(f"fold {number + 1} of {5 * repeats}")
    rows = [tally.row(method) for method in tally.ranks]
    rows += baselines(records, repeats)
    rows += [tally.against("embedded + schemata", "embedded"), tally.against("schemata alone", "embedded")]
    return [*rows, {"learnt weight of the signal": mean(weights), "least": min(weights)}]


def score(tally: Tally, fitted: SchemaLocalizer, record: Record, place: int, suffix: str = "") -> None:
    """Score the parts of a fitted localizer: the judge alone, with the signal, and the signal alone."""
    run, found = record.trajectory, detect_cached(record.trajectory)
    said = fitted.without_group(select_group(record)).compute_similarity(run, found)
    model = fitted.model
    base = model.judge(run, found, risk=0.1)
    near = [mean(m.similarity for m in row) if row else 0.0 for row in said.matches]
    one = [row[0].similarity if row else 0.0 for row in said.matches]
    tally.add(f"embedded{suffix}", place, base.step_probabilities)
    tally.add(
        f"embedded + schemata{suffix}",
        place,
        model.judge(run, found, risk=0.1, signals=said.signal).step_probabilities,
    )
    tally.add(f"schemata alone{suffix}", place, said.signal[:, 0])
    tally.add(f"nearest 3, nothing taken off{suffix}", place, near)
    tally.add(f"nearest 1, nothing taken off{suffix}", place, one)


def baselines(records: Sequence[Record], repeats: int) -> list[dict[str, Any]]:
    """Score the baselines on the folds of the cross-validation."""
    bench = EvaluationRunner(
        to_dataset(records), EvaluationPlan(cv="question", folds=5, repeats=repeats, seed=0)
    )
    rows = []
    for name in BASELINES:
        held = bench.measure(resolve_method(name), label=name).localization
        low, high = held.wilson95["step"]
        row = {
            "method": name,
            "n": held.n,
            "step": held.step.mean,
            "sd": held.step.sd,
            "low": low,
            "high": high,
        }
        rows.append(row | {"top3": held.top["3"], "agent": held.agent.mean})
    return rows


def coldstart(records: Sequence[Record], repeats: int, sizes: Sequence[str] = SIZES) -> list[dict[str, Any]]:
    """Learn from 0, 10, 30 and all failures, drawn from the training folds."""
    tally = Tally(records)
    for number, split in enumerate(split_for_cross_validation(records, folds=5, repeats=repeats, seed=0)):
        drawn = list(split.train)
        random.Random(f"cold:{number}").shuffle(drawn)
        for given in sizes:
            size, after = len(drawn) if given == "all" else int(given), f" after {given}"
            empty = SchemaLocalizer().with_signals(
                build_signals(()), EmbeddedLocalizer.from_model(build_untrained_model())
            )
            fitted = SchemaLocalizer().fit(drawn[:size]) if size else empty
            for place in split.test:
                score(tally, fitted, records[place], place, after)
        print_progress(f"fold {number + 1} of {5 * repeats}")
    rows = [tally.row(method) for method in tally.ranks if "nothing taken off" not in method]
    gaps = [
        tally.against(f"embedded + schemata after {size}", f"embedded after {size}")
        for size in sizes
        if size != "0"
    ]
    return [*rows, *gaps]


class Streaming:
    """A live cache that receives one failure after another, and a judge that is retrained at intervals."""

    def __init__(self, name: str, *, refit: int | None, schemata: bool, judge: bool) -> None:
        self.name, self.refit, self.schemata, self.judge = name, refit, schemata, judge
        self.cache, self.seen, self.sound = SchemaCache(), [], []
        self.model, self.now = build_untrained_model().with_signal_weights([SCHEMA_SIGNAL_WEIGHT]), 0.0

    def rank(self, run: Any, findings: Any, *, group: str) -> list[int]:
        """Rank with the failures known so far."""
        del findings  # one search for all learners
        signal = None
        if self.schemata:
            signals = SchemaSignals(self.cache_index(), negatives=self.sound)
            held = profile_cached(run, detect_cached(run))
            signal = signals.compute(held, excluded_groups=(group, run.task)).signal
        table = build_step_table(run)
        judged = self.model.judge(run, detect_cached(run), risk=0.1, signals=signal).step_probabilities
        scores = judged if self.judge else signal[:, 0] + 1e-6 * judged
        return [table.steps[i] for i in np.argsort(-scores, kind="stable")]

    def cache_index(self) -> SchemaIndex:
        """Return an index of the cache's current schemata."""
        index = SchemaIndex(trait_weight=TRAIT_WEIGHT)
        index.add(self.cache)
        return index

    def learn(self, record: Record) -> None:
        """Add a failure to the cache and to the judge's training runs."""
        self.now += 3600.0
        self.seen.append(record)
        if self.schemata:
            schema = EmbeddedDistiller().distill(record, detect_cached(record.trajectory))
            if schema is not None:
                self.cache.insert(schema, self.now)
                self.cache.maintain(self.now)
            self.sound += distill_records([record])[1]
        if self.refit and len(self.seen) % self.refit == 0:
            self.model = trained(tuple(self.seen)).with_signal_weights([SCHEMA_SIGNAL_WEIGHT])


_TRAINED: dict[tuple[int, ...], Any] = {}


def trained(records: tuple[Record, ...]) -> Any:
    """Return the judge trained on these runs; two learners of one stream share it."""
    key = tuple(id(record) for record in records)
    if key not in _TRAINED:
        _TRAINED.clear()
        _TRAINED[key] = train_model(records)
    return _TRAINED[key]


def streaming(records: Sequence[Record], repeats: int) -> list[dict[str, Any]]:
    """Run the stream over ``repeats`` orders; the judge is retrained after every 24 runs."""
    makers: list[Callable[[], Streaming]] = [
        lambda: Streaming("prior", refit=None, schemata=False, judge=True),
        lambda: Streaming("schemata alone", refit=None, schemata=True, judge=False),
        lambda: Streaming("prior + schemata", refit=None, schemata=True, judge=True),
        lambda: Streaming("embedded", refit=24, schemata=False, judge=True),
        lambda: Streaming("embedded + schemata", refit=24, schemata=True, judge=True),
    ]
    done = evaluate_prequential(
        records,
        makers,
        orders=repeats,
        progress=lambda made, total: print_progress(f"order {made} of {total}"),
    )
    third, rows = len(records) // 3, []
    for one in done:
        low, high = wilson_interval(one.accuracy(), len(records))
        parts = {"first_third": one.accuracy(0, third), "last_third": one.accuracy(2 * third)}
        rows.append(
            {"method": one.name, "n": len(records), "step": one.accuracy(), "low": low, "high": high, **parts}
        )
    by_name, groups = {one.name: one.accuracy_by_run() for one in done}, list_groups(records)
    for name, other in (("embedded + schemata", "embedded"), ("prior + schemata", "prior")):
        gap = compare_paired(by_name[name], by_name[other], groups)
        rows.append(
            {"compare": f"{name} - {other}", "difference": gap.mean, "low": gap.low, "high": gap.high}
        )
    return rows


def selection(records: Sequence[Record], repeats: int) -> list[dict[str, Any]]:
    """Score schemata alone, from part of the store; sound steps come from runs of selected schemata."""
    tally, prior = Tally(records), build_untrained_model()
    for number, split in enumerate(split_for_cross_validation(records, folds=5, repeats=repeats, seed=0)):
        schemata, sound = distill_records(split.train)
        index = SchemaIndex(trait_weight=TRAIT_WEIGHT)
        index.add(schemata)
        held = tuple(index)
        hard = difficulties(split.train, prior)
        plans: dict[str, list[set[str]]] = {"all": [{schema.id for schema in held}]}
        for share in SHARES:
            budget = max(1, round(share * len(held)))
            vectors = index.vectors()[1]
            plans[f"selected, {share:.0%}"] = [set(select_schemata(held, vectors, budget, difficulty=hard))]
            plans[f"selected without difficulty, {share:.0%}"] = [set(select_schemata(held, vectors, budget))]
            rng = random.Random(f"select:{number}:{share}")
            ids = [schema.id for schema in held]
            plans[f"random, {share:.0%}"] = [set(rng.sample(ids, budget)) for _ in range(RANDOM_DRAWS)]
        for name, draws in plans.items():
            for kept in draws:
                some = [schema for schema in held if schema.id in kept]
                groups = {group for schema in some for group in schema.provenance.groups}
                signals = build_signals(some, negatives=[one for one in sound if one.group in groups])
                for place in split.test:
                    run = records[place].trajectory
                    aside = (select_group(records[place]), run.task)
                    said = signals.compute(profile_cached(run, detect_cached(run)), excluded_groups=aside)
                    tally.add(name, place, said.signal[:, 0])
        print_progress(f"fold {number + 1} of {5 * repeats}")
    rows = [tally.row(name) for name in tally.ranks]
    whole = rows[0]["step"]
    return [row | {"kept_of_accuracy": row["step"] / whole} for row in rows]


def difficulties(records: Sequence[Record], model: Any) -> dict[str, float]:
    """Return by schema id: 1 minus the probability that the untrained judge assigns to the root cause."""
    found = {}
    for record in records:
        schema = EmbeddedDistiller().distill(record, detect_cached(record.trajectory))
        if schema is not None:
            judged = model.judge(record.trajectory, (), risk=0.1)
            gold = record.annotation.root_cause.step
            at = judged.table.steps.index(gold) if gold in judged.table.steps else None
            found[schema.id] = 1.0 if at is None else 1.0 - float(judged.steps[at])
    return found


TASKS: dict[str, Callable[[Sequence[Record], int], list[dict[str, Any]]]] = {
    "who_and_when": who_and_when,
    "coldstart": coldstart,
    "streaming": streaming,
    "select": selection,
    "why": why,
}


def measured(path: Path, origin: str) -> list[Record]:
    """Return the annotated runs of one origin; a file may contain both origins."""
    records = [r for r in load_records(path) if r.annotation.root_cause is not None]
    made = [r for r in records if r.annotation.extra.get("origin", "natural") == origin]
    made = [r for r in made if r.annotation.root_cause.step is not None]
    if not made:
        sys.exit(f"{path}: no {origin} run with a root cause ({len(records)} of another origin)")
    return made


def print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="failures that coldstart learns from")
    parser.add_argument("--origin", choices=("natural", "injected"), default="natural")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    for path in given.paths:
        records = measured(path, given.origin)
        if given.task == "coldstart":
            found = coldstart(records, given.repeats, given.sizes)
        else:
            found = TASKS[given.task](records, given.repeats)
        rows += [{"data": path.name, "origin": given.origin, **row} for row in found]
    if given.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))


if __name__ == "__main__":
    main()
