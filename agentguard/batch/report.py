"""Summary report of the output table of a batch job: rates, clusters of failures and first divergences.

The report reads the table twice in batches of rows, so its memory does not grow with the number of runs.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from agentguard._lazy import import_extra
from agentguard.batch.chunks import resolve_file_system
from agentguard.batch.output_folder import MANIFEST
from agentguard.batch.verdict_table import VERDICT_TABLE
from agentguard.bundles.run_difference import count_common_items
from agentguard.errors import ConfigError
from agentguard.evals.statistics import wilson_interval
from agentguard.verdict import Verdict, upgrade_verdict

DIMENSIONS: Final = ("agent", "code", "tool", "model", "week")
"""Properties by which the report counts failed runs."""

MAX_CLUSTERS: Final = 10_000
"""Number of clusters that the report counts. Runs of further clusters are counted as ``other``."""

_COLUMNS: Final = (
    *("source", "record", "run_id", "task", "started_at", "model", "agents", "tools", "verdict"),
    *("step", "agent", "tool", "codes", "reason", "error"),
)
_MAX_EXAMPLES = 3
_VARIABLE_TEXT = re.compile(r"“[^”]*”|\"[^\"]*\"|'[^']*'|\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Failed runs among the runs with one property.

    Attributes:
        name: value of the property.
        runs: runs with the property; for a code, all runs with a verdict.
        failed: failed runs whose root cause has the property; for a model or a week, failed runs with it.
    """

    name: str
    runs: int
    failed: int

    @property
    def rate(self) -> float:
        """Share of failed runs, from 0 to 1."""
        return self.failed / self.runs if self.runs else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the rate."""
        return wilson_interval(self.rate, self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReference:
    """Place of a run in the input of the job."""

    source: str
    record: int
    run_id: str
    step: int | None = None


@dataclass(slots=True, kw_only=True)
class VerdictCluster:
    """Failed runs with the same agent, tool, code and kind of reason.

    Attributes:
        agent, tool, code: of the root cause; empty if the root cause has none.
        reason: reason of the first run.
        runs: number of runs.
        examples: some of the runs.
    """

    agent: str
    tool: str
    code: str
    reason: str
    runs: int = 0
    examples: list[RunReference] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDivergence:
    """First action in which a failed run differs from a passed run of the same task.

    Attributes:
        task: the task.
        failed, passed: runs of the task with a failure, and without one.
        failed_run, passed_run: the pair with the longest common prefix.
        action: position of the first different action of an agent, from 0.
        failed_action, passed_action: the actions there; empty if the run has ended.
    """

    task: str
    failed: int
    passed: int
    failed_run: RunReference
    passed_run: RunReference
    action: int
    failed_action: str
    passed_action: str


@dataclass(slots=True, kw_only=True)
class BatchReport:
    """Summary of the verdicts of a batch job.

    Attributes:
        rows: rows of the table.
        errors: rows without a verdict.
        verdicts: number of rows by verdict.
        rates: rates by dimension, most failed runs first.
        clusters: clusters of failures, largest first.
        other_failures: failed runs beyond `MAX_CLUSTERS` clusters.
        divergences: tasks with failed and passed runs, most failed runs first.
    """

    rows: int = 0
    errors: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    rates: dict[str, list[FailureRate]] = field(default_factory=dict)
    clusters: list[VerdictCluster] = field(default_factory=list)
    other_failures: int = 0
    divergences: list[TaskDivergence] = field(default_factory=list)

    @property
    def failure_rate(self) -> FailureRate:
        """Failed runs among all runs with a verdict."""
        return FailureRate(
            name="all", runs=sum(self.verdicts.values()), failed=self.verdicts[str(Verdict.FAILED)]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the object of ``agentguard report --json``."""
        rates = {
            dimension: [asdict(rate) | {"rate": rate.rate, "interval": rate.interval} for rate in rates]
            for dimension, rates in self.rates.items()
        }
        return asdict(self) | {"schema_version": 2, "rates": rates}


def is_verdict_folder(url: str) -> bool:
    """Return True if a path or URL is the output folder of a diagnosis.

    Raises:
        ConfigError, MissingExtra: the file system of the URL is unknown or not installed.
    """
    if "://" not in url:
        return (Path(url) / MANIFEST).is_file() and (Path(url) / VERDICT_TABLE.folder).is_dir()
    system, root = resolve_file_system(url)
    return all(system.exists(f"{root.rstrip('/')}/{name}") for name in (MANIFEST, VERDICT_TABLE.folder))


def compute_table_version(url: str) -> str:
    """Return a text that changes when a part of the table is added or replaced."""
    system, root = resolve_file_system(url)
    found = system.find(f"{root.rstrip('/')}/{VERDICT_TABLE.folder}", detail=True)
    parts = (
        (path, info.get("size"), str(info.get("ETag") or info.get("LastModified") or info.get("mtime")))
        for path, info in found.items()
    )
    return hashlib.sha256(repr(sorted(parts)).encode()).hexdigest()


def build_batch_report(url: str, *, max_tasks: int = 20) -> BatchReport:
    """Summarize the output folder of a batch job.

    Args:
        url: path or URL of the folder.
        max_tasks: number of tasks whose runs are compared.

    Raises:
        ConfigError: the folder is not the output of a batch job.
        MissingExtra: the extra ``batch`` is not installed.
    """
    table = _VerdictTable(url)
    counts = _ReportCounts()
    for row in table.iter_rows(_COLUMNS):
        counts.add(row)
    report = counts.build_report()
    report.divergences = _find_divergences(table, counts.select_tasks(max_tasks))
    return report


class _VerdictTable:
    """Rows of the output table of a job, read part by part."""

    def __init__(self, url: str) -> None:
        self._parquet = import_extra("pyarrow.parquet", "batch")
        self._system, root = resolve_file_system(url)
        folder = f"{root.rstrip('/')}/{VERDICT_TABLE.folder}"
        if not self._system.exists(f"{root.rstrip('/')}/{MANIFEST}") or not self._system.exists(folder):
            raise ConfigError(
                f"{url} has no {MANIFEST} and {VERDICT_TABLE.folder}/: "
                "name the folder that `diagnose --batch-output` has written"
            )
        self._parts = sorted(path for path in self._system.find(folder) if str(path).endswith(".parquet"))

    def iter_rows(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        for path in self._parts:
            with self._system.open(path, "rb") as stream:
                for batch in self._parquet.ParquetFile(stream).iter_batches(columns=list(columns)):
                    for row in batch.to_pylist():
                        verdict = row["verdict"]
                        yield row if verdict is None else row | {"verdict": upgrade_verdict(verdict)}


class _ReportCounts:
    """Counts over the rows of a table."""

    def __init__(self) -> None:
        self._report = BatchReport(verdicts={str(verdict): 0 for verdict in Verdict})
        self._runs: dict[str, Counter[str]] = defaultdict(Counter)
        self._failed: dict[str, Counter[str]] = defaultdict(Counter)
        self._clusters: dict[tuple[str, str, str, str], VerdictCluster] = {}
        self._tasks: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, row: dict[str, Any]) -> None:
        report = self._report
        report.rows += 1
        if row["verdict"] is None:
            report.errors += 1
            return
        report.verdicts[row["verdict"]] += 1
        is_failed = row["verdict"] == Verdict.FAILED
        if row["task"] and row["verdict"] != Verdict.UNDECIDED:
            self._tasks[row["task"]][not is_failed] += 1
        values = {
            "agent": row["agents"],
            "tool": row["tools"],
            "model": [row["model"]] if row["model"] else [],
            "week": [_format_week(row["started_at"])] if row["started_at"] is not None else [],
        }
        for dimension, names in values.items():
            self._runs[dimension].update(names)
        if is_failed:
            causes = values | {"agent": [row["agent"]], "tool": [row["tool"]], "code": row["codes"]}
            for dimension, names in causes.items():
                self._failed[dimension].update(name for name in names if name)
            self._add_to_cluster(row)

    def build_report(self) -> BatchReport:
        diagnosed = self._report.failure_rate.runs
        for dimension in DIMENSIONS:
            failed, runs = self._failed[dimension], self._runs[dimension]
            rates = [
                # A judge may name an agent that is not in the run, so `runs` may lack it.
                FailureRate(name=name, runs=max(runs[name], failed[name]), failed=failed[name])
                if dimension != "code"
                else FailureRate(name=name, runs=diagnosed, failed=failed[name])
                for name in {*failed, *runs}
            ]
            order = (lambda rate: rate.name) if dimension == "week" else _sort_key
            self._report.rates[dimension] = sorted(rates, key=order)
        self._report.clusters = sorted(self._clusters.values(), key=lambda one: -one.runs)
        return self._report

    def select_tasks(self, count: int) -> dict[str, list[int]]:
        """Return the numbers of failed and passed runs by task, for tasks that have both."""
        mixed = [task for task, (failed, passed) in self._tasks.items() if failed and passed]
        return {
            task: self._tasks[task] for task in sorted(mixed, key=lambda task: -self._tasks[task][0])[:count]
        }

    def _add_to_cluster(self, row: dict[str, Any]) -> None:
        code = row["codes"][0] if row["codes"] else ""
        reason = row["reason"] or ""
        key = (row["agent"] or "", row["tool"] or "", code, _VARIABLE_TEXT.sub("…", reason))
        if key not in self._clusters and len(self._clusters) >= MAX_CLUSTERS:
            self._report.other_failures += 1
            return
        agent, tool, _, _ = key
        cluster = self._clusters.setdefault(
            key, VerdictCluster(agent=agent, tool=tool, code=code, reason=reason)
        )
        cluster.runs += 1
        if len(cluster.examples) < _MAX_EXAMPLES:
            cluster.examples.append(_build_reference(row))


def _sort_key(rate: FailureRate) -> tuple[int, str]:
    return -rate.failed, rate.name


def _format_week(time: float) -> str:
    """Return the ISO week of a time in UTC."""
    try:
        year, week, _ = datetime.fromtimestamp(time, UTC).isocalendar()
    except (ValueError, OverflowError, OSError):  # a recorded time may be any number
        return "unknown"
    return f"{year}-W{week:02}"


def _build_reference(row: dict[str, Any]) -> RunReference:
    return RunReference(
        source=row["source"], record=row["record"], run_id=row["run_id"] or "", step=row["step"]
    )


def _find_divergences(table: _VerdictTable, tasks: dict[str, list[int]]) -> list[TaskDivergence]:
    if not tasks:
        return []
    runs: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {task: ([], []) for task in tasks}
    for row in table.iter_rows(("source", "record", "run_id", "task", "verdict", "step", "actions")):
        if row["task"] in runs and row["verdict"] in (Verdict.FAILED, Verdict.NO_FAILURE_FOUND):
            group = runs[row["task"]][row["verdict"] == Verdict.NO_FAILURE_FOUND]
            if len(group) < _MAX_COMPARED_RUNS:
                group.append(row)
    return [
        _compare_runs(task, counts, *runs[task])
        for task, counts in tasks.items()
        if runs[task][0] and runs[task][1]
    ]


_MAX_COMPARED_RUNS = 30
"""Number of failed and of passed runs of a task that are compared pairwise."""


def _compare_runs(
    task: str, counts: Sequence[int], failed: Iterable[dict[str, Any]], passed: Iterable[dict[str, Any]]
) -> TaskDivergence:
    pairs = [(one, other) for one in failed for other in passed]
    lengths = [count_common_items(one["actions"], other["actions"]) for one, other in pairs]
    action = max(lengths)
    one, other = pairs[lengths.index(action)]
    return TaskDivergence(
        task=task,
        failed=counts[0],
        passed=counts[1],
        failed_run=_build_reference(one),
        passed_run=_build_reference(other),
        action=action,
        failed_action=_get_action(one["actions"], action),
        passed_action=_get_action(other["actions"], action),
    )


def _get_action(actions: Sequence[str], position: int) -> str:
    """Return an action without its digest; empty beyond the end."""
    return actions[position].rpartition(" #")[0] if position < len(actions) else ""
