"""Difficulty of the errors of `agentguard inject runs`. Injected errors, not natural ones.

Run: .venv/bin/python benchmarks/injected_errors.py FORMAT PATH [per_run] [seed]
     .venv/bin/python benchmarks/injected_errors.py samples
Rewrites the passed runs under a path (or the three passed samples of this repository). It prints the accuracy
of the baselines and of the methods, then of the methods by error kind. Shares are in %, intervals are
Wilson's
at 95 %. Runs made of one source are similar, so the true intervals are wider.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from agentguard.detect._text import to_lower
from agentguard.detect.result_classification import classify_result
from agentguard.evals.datasets.dataset import Dataset
from agentguard.evals.inject.error_injection import RewritePlan, rewrite_records
from agentguard.evals.methods import resolve_method
from agentguard.evals.result import Evaluation
from agentguard.evals.runner import EvaluationPlan, EvaluationRunner
from agentguard.evals.statistics import wilson_interval
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Record, Source, Step, Trajectory

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
METHODS = ("embedded", "first_finding", "two_line", "last_error")
Rule = Callable[[Trajectory], int | None]


def agents(run: Trajectory) -> list[Step]:
    return [step for step in run.steps if step.source is Source.AGENT]


def errors(run: Trajectory) -> list[int]:
    return [
        s.index
        for s in run.steps
        if any(classify_result(to_lower(o.content), flag=o.is_error).is_error for o in s.observations)
    ]


RULES: dict[str, Rule] = {
    "first turn": lambda run: agents(run)[0].index,
    "last turn": lambda run: agents(run)[-1].index,
    "turn before the last": lambda run: agents(run)[-2:][0].index,
    "middle turn": lambda run: agents(run)[len(agents(run)) // 2].index,
    "longest text": lambda run: max(agents(run), key=lambda s: len(s.content)).index,
    "longest step": lambda run: max(agents(run), key=lambda s: sum(len(t) for _, t in s.texts())).index,
    "first call": lambda run: next((s.index for s in agents(run) if s.tool_calls), None),
    "last call": lambda run: next((s.index for s in reversed(agents(run)) if s.tool_calls), None),
    "first error": lambda run: next(iter(errors(run)), None),
    "last error": lambda run: next(reversed(errors(run)), None),
}


def passed(arguments: Sequence[str]) -> Iterator[Record]:
    if arguments[0] == "samples":
        labels = yaml.safe_load((SAMPLES / "labels.yaml").read_text(encoding="utf-8"))["runs"]
        for name, label in labels.items():
            for found in read(SAMPLES / name):
                if isinstance(found, Record) and not label["failed"]:
                    yield replace(found, annotation=replace(found.annotation, failed=False))
        return
    for found in read(Path(arguments[1]), format=arguments[0]):
        if not isinstance(found, UnreadableRecord) and found.annotation.failed is False:
            yield found


def line(name: str, hits: float, n: int) -> str:
    low, high = wilson_interval(hits / n, n)
    return f"| {name} | {100 * hits / n:.1f} | {100 * low:.0f}–{100 * high:.0f} |"


def by_kind(records: Sequence[Record], results: Sequence[Evaluation]) -> Iterator[str]:
    kinds = {r.trajectory.id: r.annotation.extra["injected"]["edit"] for r in records if r.annotation.failed}
    gold = {r.trajectory.id: r.annotation.root_cause.step for r in records if r.annotation.root_cause}
    yield f"| kind | n | {' | '.join(r.method for r in results)} |"
    yield "|---|" + "---:|" * (len(results) + 1)
    for kind in sorted(set(kinds.values())):
        runs = [run for run in kinds if kinds[run] == kind]
        shares = []
        for result in results:
            told = {p.run: p.steps[:1] for p in result.predictions}
            shares.append(f"{100 * sum(told[run] == (gold[run],) for run in runs) / len(runs):.0f}")
        yield f"| {kind} | {len(runs)} | {' | '.join(shares)} |"


def main() -> None:
    arguments = sys.argv[1:] or ["samples"]
    numbers = [int(one) for one in arguments[2:]] if arguments[0] != "samples" else []
    per_run, seed = (*numbers, *(4, 0)[len(numbers) :])
    sources = list(passed(arguments))
    records = list(rewrite_records(sources, RewritePlan(per_run=per_run, seed=seed), with_passed=True))
    failed = [r for r in records if r.annotation.failed]
    print(f"{len(failed)} rewritten runs of {len(sources)} that passed, injected errors, seed {seed}\n")
    print("| rule | step | 95 % |\n|---|---:|---:|")
    for name, rule in RULES.items():
        hits = sum(
            rule(r.trajectory) == r.annotation.root_cause.step for r in failed if r.annotation.root_cause
        )
        print(line(name, hits, len(failed)))
    data = Dataset(name="rewritten", records=tuple(records))
    bench = EvaluationRunner(data, EvaluationPlan(repeats=1))
    results = [bench.measure(resolve_method(method), label=method) for method in METHODS]
    print("\n| method | step | 95 % | ±1 | top 3 | named on passed |\n|---|---:|---:|---:|---:|---:|")
    for result in results:
        where, whether = result.localization, result.outcome
        assert where is not None
        alarms = f"{100 * whether.named_on_passed:.0f}" if whether else "–"
        near = f"{100 * where.within['1']:.1f} | {100 * where.top['3']:.1f} | {alarms} |"
        print(line(result.method, where.step.mean * where.n, where.n) + " " + near)
    print("\n" + "\n".join(by_kind(records, results)))


if __name__ == "__main__":
    main()
