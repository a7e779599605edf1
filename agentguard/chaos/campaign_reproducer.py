"""Minimal reproducers of the runs of a campaign, as bundles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agentguard.bundles import Bundle, read_bundle, replay_bundle, write_bundle
from agentguard.bundles.archive import build_file_name
from agentguard.bundles.call_recorder import build_bundle
from agentguard.bundles.minimization import reduce_items, remove_times
from agentguard.chaos.agent_execution import ExperimentRun
from agentguard.chaos.experiment import ExperimentOutcome, ExperimentResult, ExperimentRunner
from agentguard.chaos.injection import FaultPlacement

_OUTCOMES: Final = (ExperimentOutcome.UNSAFE, ExperimentOutcome.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignReproducer:
    """Minimal reproducer of a run of a campaign.

    Attributes:
        result: the run in the journal.
        calls: calls of the site that need the fault; empty if the run is not reproducible.
        file: bundle of the run with the fault at these calls; None without one.
        problem: reason for which the run or the replay of its bundle is not reproducible; empty without one.
    """

    result: ExperimentResult
    calls: tuple[int, ...] = ()
    file: Path | None = None
    problem: str = ""


def select_runs(results: Iterable[ExperimentResult]) -> list[ExperimentResult]:
    """Return the first run of each fault, site and outcome that is unsafe or failed, unsafe ones first."""
    first: dict[tuple[str, str, str], ExperimentResult] = {}
    for result in results:
        if result.outcome in _OUTCOMES:
            first.setdefault((result.outcome, result.site, result.fault), result)
    return sorted(first.values(), key=lambda one: (_OUTCOMES.index(one.outcome), one.site, one.fault))


def shrink_runs(
    runner: ExperimentRunner, results: Iterable[ExperimentResult], output: Path
) -> Iterator[CampaignReproducer]:
    """Reduce the calls with a fault of each run while its outcome remains, and write it as a bundle.

    Args:
        runner: runner of the campaign.
        results: runs of the campaign.
        output: folder of the bundles.

    Raises:
        BundleError: a bundle cannot be written.
    """
    for result in results:
        yield _shrink_run(runner, result, output)


def _shrink_run(runner: ExperimentRunner, result: ExperimentResult, output: Path) -> CampaignReproducer:
    placement = runner.build_placement(result.site, result.fault, result.call)

    def holds(calls: Sequence[int]) -> bool:
        return runner.run(replace(placement, calls=tuple(calls)), result.repeat).outcome is result.outcome

    if not holds(placement.calls):
        return CampaignReproducer(result=result, problem="the outcome of a repeated run differs")
    smallest = replace(placement, calls=reduce_items(placement.calls, holds))
    bundle = _record_run(runner, smallest, result.repeat)
    if bundle is None:
        problem = "the agent raised an exception without a session, so there is no run to record"
        return CampaignReproducer(result=result, calls=smallest.calls, problem=problem)
    file = output / build_file_name(bundle.trajectory.id)
    write_bundle(bundle, file)
    return CampaignReproducer(
        result=result, calls=smallest.calls, file=file, problem=_check_replay(runner, read_bundle(file))
    )


def _record_run(runner: ExperimentRunner, placement: FaultPlacement, repeat: int) -> Bundle | None:
    run: ExperimentRun = runner.execute(placement, repeat, is_recorded=True)
    if run.trajectory is None or run.recorder is None:
        return None
    trajectory = remove_times(replace(run.trajectory, id=run.recorder.run_id))
    return build_bundle(run.recorder, trajectory, error_type=run.error.partition(":")[0])


def _check_replay(runner: ExperimentRunner, bundle: Bundle) -> str:
    """Return the reason for which a sealed replay of a bundle is not equal; empty if it is."""
    try:
        return replay_bundle(bundle, runner.agent).difference
    except Exception as error:  # the agent under test may raise anything
        return f"{type(error).__name__}: {error}"
