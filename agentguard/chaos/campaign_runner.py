"""Execution of a campaign: plan, resumable runs in processes, and a journal."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import orjson

from agentguard.bundles.bindings import RecordableAgent
from agentguard.chaos.campaign import Campaign
from agentguard.chaos.experiment import ExperimentOutcome, ExperimentResult, ExperimentRunner
from agentguard.chaos.injection import FaultPlacement
from agentguard.errors import ConfigError

JOURNAL: Final = "runs.jsonl"
CAMPAIGNS_FOLDER: Final = Path(".agentguard/chaos")
"""Folder of the output folders of ``agentguard chaos run``, and default folder of the viewer."""

_JOURNAL_PREFIX: Final = b'{"campaign":'
_RUNS_PER_PROCESS: Final = 4
"""Runs of a process between two checks of the abort rules; one process checks them after each run."""

PlannedRun = tuple[FaultPlacement, int]
"""Placement and number of the repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignResult:
    """Results of a campaign.

    Attributes:
        results: results of this and of earlier calls, in the order of the plan.
        planned: number of runs in the plan.
        abort_reason: abort rule that ended the campaign; empty if all runs are done.
    """

    results: tuple[ExperimentResult, ...]
    planned: int
    abort_reason: str = ""


class CampaignRunner:
    """Runner of a campaign.

    Args:
        campaign: the campaign.
        agent: the agent; by default, the campaign names it. Processes for ``jobs`` above 1 import it again.

    Raises:
        ConfigError: the agent cannot be imported, or runs without a fault violate the steady state.
    """

    def __init__(self, campaign: Campaign, *, agent: RecordableAgent | None = None) -> None:
        self._campaign = campaign
        self._runner = ExperimentRunner(campaign, agent=agent)

    def plan(self) -> list[PlannedRun]:
        """Return the runs in their order; the same campaign gives the same plan."""
        schedule = self._campaign.schedule
        runs = [
            (placement, repeat)
            for placement in self._runner.list_placements()
            for repeat in range(schedule.repeats)
        ]
        random.Random(schedule.seed).shuffle(runs)  # noqa: S311 - not a secret
        return runs[: schedule.max_runs]

    def run(
        self,
        output: Path | None = None,
        *,
        jobs: int = 1,
        on_result: Callable[[ExperimentResult], None] | None = None,
    ) -> CampaignResult:
        """Execute the runs that the journal does not have.

        Args:
            output: folder of the journal; None for no journal.
            jobs: number of processes.
            on_result: callback after each run.

        Raises:
            ConfigError: the folder has the journal of another campaign.
        """
        plan = self.plan()
        journal = _Journal(output, self._campaign, len(plan)) if output is not None else None
        results = journal.open() if journal is not None else {}
        open_runs = [run for run in plan if _build_key(run) not in results]
        begin, reason = time.monotonic(), ""
        unsafe = sum(_is_unsafe(result) for result in results.values())
        batch_size = _RUNS_PER_PROCESS * jobs if jobs > 1 else 1
        with _ExperimentPool(self._campaign, self._runner, jobs) as pool:
            waiting = iter(open_runs)
            while not reason and (batch := list(islice(waiting, batch_size))):
                for result in pool.run(batch):
                    results[result.key] = result
                    unsafe += _is_unsafe(result)
                    if journal is not None:
                        journal.write(result)
                    if on_result is not None:
                        on_result(result)
                reason = self._find_abort_reason(unsafe, time.monotonic() - begin)
        done = tuple(results[_build_key(run)] for run in plan if _build_key(run) in results)
        return CampaignResult(
            results=done, planned=len(plan), abort_reason=reason if len(done) < len(plan) else ""
        )

    def _find_abort_reason(self, unsafe: int, seconds: float) -> str:
        rules = self._campaign.abort
        if rules.max_unsafe is not None and unsafe >= rules.max_unsafe:
            return f"abort.max_unsafe: {unsafe} unsafe runs"
        return f"abort.max_seconds: {seconds:.0f} s" if seconds > rules.max_seconds else ""


def _is_unsafe(result: ExperimentResult) -> bool:
    return result.outcome is ExperimentOutcome.UNSAFE


def _build_key(run: PlannedRun) -> str:
    return f"{run[0].key}/{run[1]}"


def read_campaign_result(folder: Path, campaign: Campaign | None = None) -> CampaignResult:
    """Return the results in the output folder of a campaign.

    Args:
        folder: the folder.
        campaign: the campaign that the journal must have; None accepts any.

    Raises:
        ConfigError: the folder has no journal, or that of another campaign.
    """
    head, results = _read_journal(folder / JOURNAL)
    if campaign is not None and head["campaign"] != _compute_fingerprint(campaign):
        raise ConfigError(
            f"{folder / JOURNAL} has the journal of another campaign: specify the folder of this campaign"
        )
    planned = int(head["planned"])
    reason = "" if len(results) == planned else f"{len(results)} of {planned} planned runs are done"
    return CampaignResult(results=tuple(results), planned=planned, abort_reason=reason)


def is_campaign_folder(folder: Path) -> bool:
    """Return whether a folder has the journal of a campaign; False if it cannot be read."""
    try:
        with (folder / JOURNAL).open("rb") as file:
            return file.read(len(_JOURNAL_PREFIX)) == _JOURNAL_PREFIX
    except OSError:
        return False


def find_campaign_folders(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the folders of campaigns among ``paths`` and directly inside folders of ``paths``."""
    return filter(is_campaign_folder, list_folders(paths))


def list_folders(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the folders among ``paths``, each followed by its content."""
    for path in paths:
        if path.is_dir():
            yield from (path, *sorted(path.iterdir()))


def _compute_fingerprint(campaign: Campaign) -> str:
    settings = campaign.model_dump_json(exclude={"abort"})
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def _read_journal(path: Path) -> tuple[dict[str, Any], list[ExperimentResult]]:
    """Return the first line and the results of a journal, without an incomplete last line."""
    try:
        data = path.read_bytes()
        lines = data[: data.rfind(b"\n") + 1].splitlines()
        head = orjson.loads(lines[0])
        if not isinstance(head, dict) or not {"campaign", "planned"} <= set(head):
            raise ValueError("the first line does not identify a campaign")
        return head, [ExperimentResult.from_dict(orjson.loads(line)) for line in lines[1:]]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not a journal of a campaign: {error}") from None


class _Journal:
    """File with the results; the first line identifies the campaign."""

    def __init__(self, folder: Path, campaign: Campaign, planned: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / JOURNAL
        self._head = {"campaign": _compute_fingerprint(campaign), "planned": planned}

    def open(self) -> dict[str, ExperimentResult]:
        """Return the results by key; remove an incomplete last line of a killed campaign."""
        results: list[ExperimentResult] = []
        if self._path.exists():
            head, results = _read_journal(self._path)
            if head != self._head:
                raise ConfigError(
                    f"{self._path} has the journal of another campaign: specify another output folder"
                )
        lines = [self._head, *(result.to_dict() for result in results)]
        # A kill during the write must not lose results.
        temporary = self._path.with_suffix(".tmp")
        temporary.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
        temporary.replace(self._path)
        return {result.key: result for result in results}

    def write(self, result: ExperimentResult) -> None:
        """Append a result."""
        with self._path.open("ab") as file:
            file.write(orjson.dumps(result.to_dict()) + b"\n")


class _ExperimentPool:
    """Pool of processes that run experiments; with one job, this process runs them."""

    def __init__(self, campaign: Campaign, runner: ExperimentRunner, jobs: int) -> None:
        self._runner = runner
        self._executor: Executor | None = None
        if jobs > 1:
            self._executor = ProcessPoolExecutor(
                jobs, get_context("spawn"), _start_worker, (campaign.model_dump_json(),)
            )

    def __enter__(self) -> _ExperimentPool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def run(self, batch: list[PlannedRun]) -> Iterator[ExperimentResult]:
        if self._executor is None:
            return (self._runner.run(*run) for run in batch)
        return iter(list(self._executor.map(_run_in_worker, batch, chunksize=4)))


_worker_runner: ExperimentRunner | None = None


def _start_worker(campaign: str) -> None:
    global _worker_runner
    _worker_runner = ExperimentRunner(Campaign.model_validate_json(campaign))


def _run_in_worker(run: PlannedRun) -> ExperimentResult:
    assert _worker_runner is not None
    return _worker_runner.run(*run)
