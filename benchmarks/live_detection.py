"""Share of failed runs on which a guard acts while they run, at a fixed share of passed runs.

    python benchmarks/live_detection.py [NAME=]RUNS[,RUNS]...
        [--max-runs 200] [--risk 0.05] [--seed 0] [--json]

RUNS are recorded runs of one agent with known outcomes. They are replayed step by step. Each arm has a score,
the highest one over the run:

- default: the rules at the thresholds of a guard without options, with what they find at the end of the run.
- rules: the probability of the likeliest finding.
- embedded: the failure probability of the embedded model before the run ends, as `live_model` asks for it.
- step: the probability of the likeliest root cause in the same prefixes (`live_model.step_threshold`).
- both: the larger rank of the scores `rules` and `embedded` among the passed runs.

All arms but the first act above a conformal threshold: at most a share ``--risk`` of new passed runs is
expected above it. One half of the runs trains the model and, with inner folds, gives the thresholds. The
other half is scored. Then the halves swap. No run is scored by a model or a threshold that knows it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentguard.detect.run_view import RunView
from agentguard.detect.runner import IncrementalRunner
from agentguard.errors import JudgeError
from agentguard.evals.statistics import wilson_interval
from agentguard.judge.base import RUN_FAILED, build_root_cause_question
from agentguard.judge.embedded.judge import EmbeddedJudge
from agentguard.judge.embedded.model import EmbeddedModel
from agentguard.judge.embedded.training import train_model
from agentguard.trajectory.formats import read
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.model import Record, Source, Trajectory

RULE_THRESHOLD = 0.5
MAX_PREFIXES = 4
INNER_FOLDS = 3
MIN_RUNS = 20


ARMS = ("default", "rules", "embedded", "step", "both")


@dataclass(frozen=True, slots=True)
class Replay:
    """Result of one replayed run: the arms that acted."""

    failed: bool
    acted: frozenset[str]


def list_prefixes(run: Trajectory) -> list[Trajectory]:
    """Return up to `MAX_PREFIXES` prefixes that end after an agent's step, before the run ends."""
    ends = [step.index + 1 for step in run.steps if step.source is Source.AGENT][:-1]
    places = sorted({round(i * (len(ends) - 1) / (MAX_PREFIXES - 1)) for i in range(MAX_PREFIXES)})
    return [replace(run, steps=run.steps[: ends[place]], branches=()) for place in places if ends]


def score_prefixes(model: EmbeddedModel | None, run: Trajectory) -> tuple[float, float]:
    """Return the highest probabilities of failure and of a root cause; 0 without a model."""
    scores = [(0.0, 0.0)]
    for prefix in list_prefixes(run) if model is not None else ():
        failed, cause = EmbeddedJudge(model).decide(prefix, [RUN_FAILED, build_root_cause_question(prefix)])
        probability = failed.probabilities.get("yes", 0.0)
        scores.append((probability, probability * max(cause.probabilities.values(), default=0.0)))
    outcomes, steps = zip(*scores, strict=True)
    return max(outcomes), max(steps)


def score_rules(run: Trajectory) -> float:
    """Return the probability of the likeliest finding in a run that is replayed step by step."""
    runner = IncrementalRunner(RunView.from_trajectory(replace(run, steps=(), branches=())))
    findings = [finding for step in run.steps for finding in runner.observe(step)]
    return max((finding.probability for finding in (*findings, *runner.finish())), default=0.0)


def compute_rank(score: float, passed_scores: Sequence[float]) -> float:
    """Return the share of passed runs with a lower score, or an equal one at half weight."""
    below = sum((one < score) + 0.5 * (one == score) for one in passed_scores)
    return below / len(passed_scores) if passed_scores else 0.0


def compute_threshold(passed_scores: Sequence[float], risk: float) -> float:
    """Return the conformal threshold: at most a share ``risk`` of new passed runs is expected above it."""
    ranked = sorted(passed_scores, reverse=True)
    allowed = int(risk * (len(ranked) + 1)) - 1
    return ranked[allowed] if allowed >= 0 else float("inf")


def fit_model(records: Sequence[Record]) -> EmbeddedModel | None:
    """Return a model of the runs; None if they do not suffice."""
    try:
        return train_model(records, seed=0)
    except JudgeError:
        return None


def replay_agent(records: Sequence[Record], risk: float) -> list[Replay]:
    """Replay an agent's runs with two-fold cross-fitting; thresholds from inner out-of-fold scores."""
    folds = (records[::2], records[1::2])
    replays: list[Replay] = []
    for train, test in (folds, folds[::-1]):
        passed: list[tuple[float, ...]] = []
        for fold in range(INNER_FOLDS):
            inner = fit_model([one for i, one in enumerate(train) if i % INNER_FOLDS != fold])
            runs = [one.trajectory for one in train[fold::INNER_FOLDS] if not one.annotation.failed]
            passed += [(score_rules(run), *score_prefixes(inner, run)) for run in runs]
        model = fit_model(train)
        limits = {
            arm: compute_threshold([build_scores(one, passed)[arm] for one in passed], risk) for arm in ARMS
        }
        limits["default"] = RULE_THRESHOLD - 1e-9
        for record in test:
            run = record.trajectory
            scores = build_scores((score_rules(run), *score_prefixes(model, run)), passed)
            acted = frozenset(arm for arm in ARMS if scores[arm] > limits[arm])
            replays.append(Replay(bool(record.annotation.failed), acted))
    return replays


def build_scores(scores: tuple[float, ...], passed: Sequence[tuple[float, ...]]) -> dict[str, float]:
    """Return the score of each arm for the scores of the rules, the outcome model and the step model."""
    rules, outcome, step = scores
    ranks = [compute_rank(scores[place], [one[place] for one in passed]) for place in (0, 1)]
    return {"default": rules, "rules": rules, "embedded": outcome, "step": step, "both": max(ranks)}


def summarize(replays: Sequence[Replay], name: str) -> dict[str, object]:
    """Return the shares of failed and passed runs that were acted on."""
    row: dict[str, object] = {"runs": name}
    for outcome, failed in (("failed", True), ("passed", False)):
        group = [one for one in replays if one.failed is failed]
        for arm in ARMS:
            hits = sum(arm in one.acted for one in group)
            share = hits / len(group) if group else 0.0
            row[f"{arm}_{outcome}"] = {
                "count": hits,
                "n": len(group),
                "share": round(share, 3),
                "interval": [round(x, 3) for x in wilson_interval(share, len(group))],
            }
    return row


def load_runs(paths: Sequence[Path], max_runs: int, seed: int) -> list[Record]:
    """Return a random sample of the runs with a known outcome and at least two steps."""
    records = [
        item
        for path in paths
        for item in read(path)
        if not isinstance(item, UnreadableRecord)
        and item.annotation.failed is not None
        and len(item.trajectory.steps) > 1
    ]
    random.Random(seed).shuffle(records)
    return records[:max_runs]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", metavar="[NAME=]RUNS[,RUNS]")
    parser.add_argument("--max-runs", type=int, default=200)
    parser.add_argument("--risk", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for given in args.paths:
        name, _, places = given.rpartition("=")
        records = load_runs([Path(one) for one in places.split(",")], args.max_runs, args.seed)
        if len(records) < MIN_RUNS:
            print(f"{given}: {len(records)} runs with a known outcome, {MIN_RUNS} needed")
            continue
        rows.append(summarize(replay_agent(records, args.risk), name or places))
        print(json.dumps(rows[-1]) if args.json else format_row(rows[-1]), flush=True)
    for arm in ARMS if rows else ():
        cells = {outcome: [row[f"{arm}_{outcome}"] for row in rows] for outcome in ("failed", "passed")}
        shown = ", ".join(f"{outcome} {format_macro_average(several)}" for outcome, several in cells.items())
        print(f"macro average, {arm}: {shown}")


def format_macro_average(cells: Sequence[Any]) -> str:
    """Return the mean share of the agents with its 95 % interval, for runs drawn within each agent."""
    shares = [cell["count"] / cell["n"] for cell in cells]
    variance = sum(share * (1 - share) / cell["n"] for share, cell in zip(shares, cells, strict=True))
    mean, margin = statistics.mean(shares), 1.96 * variance**0.5 / len(cells)
    return f"{mean:.3f} [{max(0.0, mean - margin):.3f}, {min(1.0, mean + margin):.3f}]"


def format_row(row: dict[str, object]) -> str:
    """Return a row as text."""
    cells = [
        f"{name} {cell['count']}/{cell['n']} {cell['interval']}"  # type: ignore[index]
        for name, cell in row.items()
        if name != "runs"
    ]
    return f"{row['runs']}: " + "; ".join(cells)


if __name__ == "__main__":
    main()
