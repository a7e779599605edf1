"""Accuracy of the embedded judge: cross-validation, transfer, ablation, shuffled labels and speed.

Run: .venv/bin/python benchmarks/embedded.py TASK PATH... [--repeats N] [--json]

    cv PATH             5-fold cross-validation grouped by question or task, as `agentguard eval` does
    shuffled PATH       the same with shuffled training labels: must fall to the baselines
    transfer A B        trained on each, tested on the other; training omits runs of tested questions
    ablation PATH       step accuracy of the specialist without one group of features at a time
    speed PATH          milliseconds per run, features and models together, after loading
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentguard.evals.evaluate import evaluate
from agentguard.evals.splits import split_for_cross_validation
from agentguard.evals.statistics import mean
from agentguard.judge.embedded.features.catalogue import COLUMN_BY_NAME, GROUPS, select_columns
from agentguard.judge.embedded.features.table import build_step_table, clear_cache
from agentguard.judge.embedded.ranker import fit_ranker
from agentguard.judge.embedded.training import build_untrained_model
from agentguard.localize.embedded import EmbeddedLocalizer
from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import Record

# The structural prior is fixed, not learnt: it reads these columns under every ablation.
PRIOR = [
    COLUMN_BY_NAME[name]
    for name in (
        "role.turn",
        "role.share",
        "layout.early",
        "form.calls",
        "form.changes",
        "structure.after_user",
    )
]


def scores(paths: Sequence[Path], repeats: int, *, shuffle: bool = False) -> list[dict[str, Any]]:
    """Return the cross-validated scores of each path."""
    made = []
    for path in paths:
        result = evaluate(
            load_records(path),
            EmbeddedLocalizer.from_model(build_untrained_model()),
            cv="question",
            repeats=repeats,
            shuffle_labels=shuffle,
        )
        made.append({"data": path.name, **_line(result)})
    return made


def transfer(paths: Sequence[Path], repeats: int) -> list[dict[str, Any]]:
    """Return the scores on each path after training on each other path; deterministic, so not repeated."""
    del repeats
    held = {path: load_records(path) for path in paths}
    made = []
    for test in paths:
        for train in paths:
            if train != test:
                result = evaluate(
                    held[test], EmbeddedLocalizer.from_model(build_untrained_model()), train=held[train]
                )
                made.append({"trained_on": train.name, "tested_on": test.name, **_line(result)})
    return made


def ablation(paths: Sequence[Path], repeats: int) -> list[dict[str, Any]]:
    """Return step accuracy, top 3 and agent accuracy, each with the columns of one group set to 0."""
    made = []
    for path in paths:
        records = [r for r in load_records(path) if r.annotation.root_cause is not None]
        for group in ("", *GROUPS):
            dropped = [i for i in select_columns(group) if i not in PRIOR] if group else []
            made.append(
                {"data": path.name, "without": group or "nothing", **_ablated(records, dropped, repeats)}
            )
    return made


def _ablated(records: Sequence[Record], dropped: list[int], repeats: int) -> dict[str, float]:
    step, agent, three = [], [], []
    for split in split_for_cross_validation(records, folds=5, repeats=repeats, seed=0):
        ranker = fit_ranker(*_rows(split.train or (), dropped))
        for place in split.test:
            cause = records[place].annotation.root_cause
            table = build_step_table(records[place].trajectory)
            order = np.argsort(-ranker.score(_masked(table.values, dropped)), kind="stable")
            ranked = [table.steps[i] for i in order]
            step.append(ranked[0] == cause.step)
            agent.append(table.agents[order[0]] == cause.agent)
            three.append(cause.step in ranked[:3])
    return {"step": mean(step), "agent": mean(agent), "top3": mean(three)}


def _rows(records: Sequence[Record], dropped: list[int]) -> tuple[list[Any], list[Any]]:
    values, chosen = [], []
    for record in records:
        table = build_step_table(record.trajectory)
        labels = np.array([float(i == record.annotation.root_cause.step) for i in table.steps])
        if labels.sum():
            values.append(_masked(table.values, dropped))
            chosen.append(labels)
    return values, chosen


def _masked(values: Any, dropped: list[int]) -> Any:
    held = values.copy()
    held[:, dropped] = 0.0
    return held


def speed(paths: Sequence[Path], repeats: int) -> list[dict[str, Any]]:
    """Return the milliseconds that the localizer takes per run."""
    method, made = EmbeddedLocalizer(), []
    for path in paths:
        runs = [r.trajectory for r in load_records(path)]
        method.locate(runs[0], ())
        spent = []
        for _ in range(repeats):
            for run in runs:
                clear_cache()
                started = time.perf_counter()
                method.locate(run, ())
                spent.append(1e3 * (time.perf_counter() - started))
        steps = statistics.median(len(run.steps) for run in runs)
        made.append({"data": path.name, "median_steps": steps, "median_ms": statistics.median(spent)})
    return made


def _line(result: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"n": result.n}
    if result.localization is not None and result.localization.n:
        held = result.localization
        row |= {"step": held.step.mean, "step_sd": held.step.sd, "agent": held.agent.mean, **dict(held.top)}
        row |= {
            f"{name}_step": beside.localization.step.mean
            for name, beside in result.baselines.items()
            if name in ("two_line", "index_prior", "last_error") and beside.localization
        }
    if result.outcome is not None:
        held = result.outcome
        row |= {"auroc": held.auroc.mean, "brier": held.brier.mean, "named_on_passed": held.named_on_passed}
        row |= {"undecided": held.undecided, "run_size_auroc": result.run_size_auroc}
    return row


TASKS: dict[str, Callable[[Sequence[Path], int], list[dict[str, Any]]]] = {
    "cv": scores,
    "shuffled": lambda paths, repeats: scores(paths, repeats, shuffle=True),
    "transfer": transfer,
    "ablation": ablation,
    "speed": speed,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = TASKS[given.task](given.paths, given.repeats)
    if given.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))


if __name__ == "__main__":
    main()
