"""Report of the cycles that a search found: JSON data and HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from agentguard.chaos.campaign_runner import list_folders
from agentguard.chaos.causality.cycle_confirmation import ConfirmedCycle, CycleStatus, Reproducer
from agentguard.chaos.causality.fault_probe import FaultInjection, FaultKind
from agentguard.chaos.causality.stitching_campaign import StitchingResult
from agentguard.errors import ConfigError
from agentguard.html_report.page import (
    render_facts,
    render_heading,
    render_page,
    render_paragraph,
    render_table,
)

REPORT_FILE: Final = "stitching.json"
_HEAD = ("cycle", "status", "damped by", "goodput")


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSummary:
    """Cycle with the result of its confirmation.

    Attributes:
        cycle: the cycle as text.
        sites, workloads: names of its sites and workloads.
        status: result of the confirmation.
        damping: elements that damp the cycle.
        goodput: successful work long after the faults, divided by that without faults; None without a run.
        reproducer: workload, seed and faults of the minimal reproducer; empty without one.
    """

    cycle: str
    sites: tuple[str, ...]
    workloads: tuple[str, ...]
    status: CycleStatus
    damping: tuple[str, ...]
    goodput: float | None
    reproducer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StitchingReport:
    """Report of a search.

    Attributes:
        runs: number of runs with one fault.
        sites: number of sites that the workloads reach.
        edges: number of edges.
        cycles: the cycles, undamped ones first.
    """

    schema_version: int = 1
    runs: int
    sites: int
    edges: int
    cycles: tuple[CycleSummary, ...]

    def count(self, status: CycleStatus) -> int:
        """Return the number of cycles with a status."""
        return sum(one.status is status for one in self.cycles)


_REPORT = TypeAdapter(StitchingReport)


def build_stitching_report(result: StitchingResult) -> StitchingReport:
    """Summarize the result of a search."""
    return StitchingReport(
        runs=result.runs,
        sites=result.sites,
        edges=len(result.edges),
        cycles=tuple(_summarize_cycle(one) for one in result.cycles),
    )


def encode_stitching_report(report: StitchingReport) -> bytes:
    """Return a report as JSON."""
    return _REPORT.dump_json(report, indent=2)


def read_stitching_report(folder: Path) -> StitchingReport:
    """Return the report in the output folder of a search. Raises ConfigError that names the file."""
    path = folder / REPORT_FILE
    try:
        return _REPORT.validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path} is not a report of causal cycles: {place}: {first['msg']}") from None


def find_stitching_folders(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the output folders of searches among ``paths`` and directly inside folders of ``paths``."""
    return (folder for folder in list_folders(paths) if (folder / REPORT_FILE).is_file())


def render_stitching_report(report: StitchingReport, title: str) -> str:
    """Return the report as an HTML page that needs no network."""
    return render_page(title, [render_heading(1, title), *render_stitching_parts(report)])


def render_stitching_parts(report: StitchingReport) -> list[str]:
    """Return the parts of the report as HTML, for a page with another frame."""
    return [
        render_facts([(status.value, str(report.count(status)), "cycles") for status in CycleStatus]),
        render_paragraph(
            f"{report.runs} runs with one fault at {report.sites} sites gave {report.edges} edges."
            " Goodput is the successful work in the last quarter of a run, long after the faults,"
            " divided by that without faults.",
            "soft",
        ),
        render_heading(2, "Cycles"),
        render_table("Cycles", _HEAD, [_describe_cycle(one) for one in report.cycles]),
        render_heading(2, "Reproducers of the undamped cycles"),
        *(
            render_paragraph(one.reproducer)
            for one in report.cycles
            if one.status is CycleStatus.UNDAMPED and one.reproducer
        ),
    ]


def _summarize_cycle(one: ConfirmedCycle) -> CycleSummary:
    reproducer = one.reproducer
    return CycleSummary(
        cycle=str(one.cycle),
        sites=tuple(sorted(one.cycle.sites)),
        workloads=tuple(sorted(one.cycle.workloads)),
        status=one.status,
        damping=tuple(one.damping),
        goodput=None if reproducer is None else round(reproducer.goodput, 3),
        reproducer="" if reproducer is None else describe_reproducer(reproducer),
    )


def _describe_cycle(one: CycleSummary) -> tuple[str | tuple[str, str], ...]:
    is_undamped = one.status is CycleStatus.UNDAMPED
    goodput = "–" if one.goodput is None else f"{one.goodput:.0%}"
    return (
        one.cycle,
        (one.status.value, "no" if is_undamped else "yes"),
        ", ".join(one.damping) or "none",
        goodput,
    )


def describe_reproducer(reproducer: Reproducer) -> str:
    """Return workload, seed and faults of a reproducer as one line."""
    faults = ", ".join(map(_describe_injection, reproducer.injections))
    return f"{reproducer.workload}, seed {reproducer.seed}: {faults}"


def _describe_injection(injection: FaultInjection) -> str:
    delay = f" of {injection.delay_s:g} s" if injection.fault.kind is FaultKind.DELAY else ""
    return f"{injection.fault}{delay} from {injection.start_s:g} to {injection.end_s:g} s"
