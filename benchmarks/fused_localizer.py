"""Gain of a judge over the embedded ranker alone: ``fused`` with recorded answers of real models.

Run: .venv/bin/python benchmarks/fused_localizer.py RUNS RECORDINGS [--models NAME...] [--repeats N] [--json]

RUNS are the runs of Who&When. RECORDINGS is a folder of files ``METHOD__MODEL.json`` with ``predictions``:
for
each file of RUNS the steps as the model ranked them. The benchmark does not call a model. Folds are grouped
by
question and equal for all judges. Each fold learns the weight of a judge from its training part. A recorded
ranking has no probabilities: each place counts half as much as the place before it. Every judge uses the same
ranker, which is trained once per fold.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentguard.evals.datasets.dataset import Dataset, load_dataset, to_dataset
from agentguard.evals.result import Evaluation
from agentguard.evals.runner import EvaluationPlan, EvaluationRunner
from agentguard.evals.statistics import compare_paired, wilson_interval
from agentguard.judge.base import JudgeAnswer, Question
from agentguard.judge.embedded import training
from agentguard.judge.llm.multiple_choice import list_options
from agentguard.localize.embedded import EmbeddedLocalizer
from agentguard.localize.llm.fused import FusedLocalizer
from agentguard.trajectory.model import Record, Trajectory

_NUMBER = re.compile(r"\d+")


class RecordedJudge:
    """Judge that answers from a recorded ranking."""

    def __init__(self, name: str, rankings: Mapping[str, Sequence[int]]) -> None:
        self.name, self.rankings = name, rankings

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        return tuple(self._answer(transcript, question) for question in questions)

    def _answer(self, run: Trajectory, question: Question) -> JudgeAnswer:
        places = {step: place for place, step in enumerate(self.rankings.get(run.id, ()))}
        masses = {option: _mass(option, places) for option in list_options(question)}
        total = sum(masses.values())
        if not places or total <= 0:
            return JudgeAnswer(question=question.id, error="outside: nothing is recorded of this run")
        return JudgeAnswer(question=question.id, probabilities={o: m / total for o, m in masses.items()})


def _mass(option: str, places: Mapping[int, int]) -> float:
    """Return the probability of the steps of a turn ("step 3" or "steps 1 to 2") in a ranking."""
    ends = [int(one) for one in _NUMBER.findall(option)]
    return sum(0.5 ** places[s] for s in range(ends[0], ends[-1] + 1) if s in places) if ends else 0.0


def recorded(folder: Path, wanted: Sequence[str]) -> dict[str, RecordedJudge]:
    """Return the judges of a folder, by model, that ranked all steps."""
    found = {}
    for path in sorted(folder.glob("all_at_once__*.json")):
        held = json.loads(path.read_text())
        rankings = {file.removesuffix(".json"): said["ranking"] for file, said in held["predictions"].items()}
        if not wanted or held["model"] in wanted:
            found[held["model"]] = RecordedJudge(held["model"], rankings)
    return found


def select_common_runs(data: Dataset, judges: Mapping[str, RecordedJudge]) -> Dataset:
    """Return the runs that every judge has ranked, so that all judges are scored on the same runs."""
    held = [r for r in data.records if all(r.trajectory.id in one.rankings for one in judges.values())]
    return to_dataset(held)


class Weighing(FusedLocalizer):
    """`FusedLocalizer` that reports the learnt weight of each signal of the judge."""

    learnt: list[NDArray[np.float64]]

    def fit(self, records: Sequence[Record]) -> FusedLocalizer:
        fitted = super().fit(records)
        for one in fitted._embedded.model.specialists:
            if one.ranker is not None and one.ranker.beside is not None:
                self.learnt.append(one.ranker.beside.weights)
        return fitted


def once_a_fold() -> None:
    """Cache the ranker by its training tables, so that equal training happens once per fold."""
    held: dict[Any, Any] = {}
    fit = training.fit_ranker

    def remembered(tables: Sequence[Any], chosen: Sequence[Any], *, seed: int = 0) -> Any:
        key = (seed, *(id(table) for table in tables))
        if key not in held:
            held[key] = (
                fit(tables, chosen, seed=seed),
                tables,
            )  # keeps the tables alive, so that their ids stay unique
        return held[key][0]

    training.fit_ranker = remembered  # type: ignore[assignment]


def right(data: Dataset, result: Evaluation) -> list[float]:
    """Return the share of repeats, per run, in which the first hypothesis is the gold step."""
    gold = {case.run: case.step for case in data.build_cases()}
    hits: dict[str, list[bool]] = {run: [] for run in gold}
    for one in result.predictions:
        hits[one.run].append(bool(one.steps) and one.steps[0] == gold[one.run])
    return [statistics.fmean(hits[run]) for run in gold]


def alone(data: Dataset, judge: RecordedJudge) -> list[float]:
    return [
        float(judge.rankings[r.trajectory.id][:1] == [case.step])
        for r, case in zip(data.records, data.build_cases(), strict=True)
    ]


def measure(data: Dataset, judges: Mapping[str, RecordedJudge], plan: EvaluationPlan) -> dict[str, Any]:
    once_a_fold()
    bench = EvaluationRunner(data, plan)
    groups = list(bench.groups)
    embedded = right(data, bench.measure(EmbeddedLocalizer(given_failed=True), label="embedded"))
    found: dict[str, Any] = {"runs": len(data.records), "embedded": _share(embedded), "judges": {}}
    for name, judge in judges.items():
        method = Weighing(judge=judge, given_failed=True)
        method.learnt = []
        fused = right(data, bench.measure(method, label=name))
        by_itself = alone(data, judge)
        gap = compare_paired(fused, embedded, groups)
        over = compare_paired(fused, by_itself, groups)
        found["judges"][name] = {
            "alone": _share(by_itself),
            "fused": _share(fused),
            "over_embedded": [round(x, 4) for x in (gap.mean, gap.low, gap.high)],
            "over_judge": [round(x, 4) for x in (over.mean, over.low, over.high)],
            "weights": [round(float(x), 2) for x in np.mean(method.learnt, axis=0)] if method.learnt else [],
        }
        print(f"{name}: {found['judges'][name]}", file=sys.stderr, flush=True)
    return found


def _share(hits: Sequence[float]) -> dict[str, Any]:
    share = statistics.fmean(hits)
    return {"step": round(share, 4), "interval": [round(x, 4) for x in wilson_interval(share, len(hits))]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    judges = recorded(args.recordings, args.models)
    if not judges:
        parser.error(f"{args.recordings} has no recording all_at_once__MODEL.json of these models")
    data = select_common_runs(load_dataset("who_and_when", [args.runs]), judges)
    found = measure(data, judges, EvaluationPlan(cv="question", repeats=args.repeats, seed=args.seed))
    if args.json:
        print(json.dumps(found))
        return
    print(f"{found['runs']} runs; embedded alone {found['embedded']['step']:.3f}")
    print(f"{'judge':20}{'alone':>7}{'fused':>7}   over embedded, over the judge; weights")
    for name, one in sorted(found["judges"].items(), key=lambda pair: -pair[1]["alone"]["step"]):
        gaps = [f"{m:+.3f} [{a:+.3f}, {b:+.3f}]" for m, a, b in (one["over_embedded"], one["over_judge"])]
        shares = f"{one['alone']['step']:7.3f}{one['fused']['step']:7.3f}"
        print(f"{name:20}{shares}   {', '.join(gaps)}; {one['weights']}")


if __name__ == "__main__":
    main()
