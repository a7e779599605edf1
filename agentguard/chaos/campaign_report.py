"""Report of a campaign: outcomes by fault and site, and steps and times of detection and recovery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from agentguard.chaos.campaign_runner import CampaignResult
from agentguard.chaos.experiment import ExperimentOutcome, ExperimentResult
from agentguard.html_report.page import (
    render_facts,
    render_heading,
    render_page,
    render_paragraph,
    render_table,
)

_SEVERITY = (
    ExperimentOutcome.UNSAFE,
    ExperimentOutcome.FAILED,
    ExperimentOutcome.DEGRADED,
    ExperimentOutcome.UNDECIDED,
    ExperimentOutcome.SURVIVED,
    ExperimentOutcome.NOT_INJECTED,
)
_STYLES = {
    ExperimentOutcome.UNSAFE: "no",
    ExperimentOutcome.FAILED: "no",
    ExperimentOutcome.SURVIVED: "yes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSummary:
    """Runs with one fault at one site.

    Attributes:
        site, fault: of the runs.
        outcomes: number of runs by outcome.
        detected: runs in which a detector has a finding from the fault on.
        detection_steps: median number of steps from the fault to the first finding; None without one.
        recovery_calls: median number of calls from the fault to the next success at the site, or None.
        recovery_seconds: median number of seconds from the fault to this success, or None.
        seconds: median duration.
        extra_tokens: mean growth of tokens.
        extra_calls: mean growth of model and tool calls.
        extra_effects: sum of repeated and wrong effects.
        false_claims: runs whose last text claims an effect that did not happen.
    """

    site: str
    fault: str
    outcomes: Counter[ExperimentOutcome]
    detected: int
    detection_steps: float | None
    recovery_calls: float | None
    recovery_seconds: float | None
    seconds: float | None
    extra_tokens: float
    extra_calls: float
    extra_effects: int
    false_claims: int

    @property
    def worst(self) -> ExperimentOutcome:
        """Worst outcome of the runs."""
        return next(outcome for outcome in _SEVERITY if self.outcomes[outcome])


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignReport:
    """Report of a campaign.

    Attributes:
        cells: one summary for each fault and site, worst first.
        outcomes: number of runs by outcome.
        planned: number of planned runs.
        abort_reason: abort rule that ended the campaign; empty without one.
    """

    cells: tuple[CellSummary, ...]
    outcomes: Counter[ExperimentOutcome]
    planned: int
    abort_reason: str = ""

    @property
    def is_safe(self) -> bool:
        """True if all planned runs are done and none is unsafe."""
        return not self.abort_reason and not self.outcomes[ExperimentOutcome.UNSAFE]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "schema_version": 1,
            "planned": self.planned,
            "abort_reason": self.abort_reason,
            "outcomes": {outcome.value: self.outcomes[outcome] for outcome in ExperimentOutcome},
            "cells": [
                {
                    "site": cell.site,
                    "fault": cell.fault,
                    "worst": cell.worst.value,
                    "outcomes": {outcome.value: count for outcome, count in cell.outcomes.items()},
                    "detected": cell.detected,
                    "detection_steps": cell.detection_steps,
                    "recovery_calls": cell.recovery_calls,
                    "recovery_seconds": cell.recovery_seconds,
                    "seconds": cell.seconds,
                    "extra_tokens": cell.extra_tokens,
                    "extra_calls": cell.extra_calls,
                    "extra_effects": cell.extra_effects,
                    "false_claims": cell.false_claims,
                }
                for cell in self.cells
            ],
        }


def build_campaign_report(result: CampaignResult) -> CampaignReport:
    """Summarize the results of a campaign."""
    groups: dict[tuple[str, str], list[ExperimentResult]] = {}
    for one in result.results:
        groups.setdefault((one.site, one.fault), []).append(one)
    cells = [_summarize_cell(site, fault, runs) for (site, fault), runs in groups.items()]
    cells.sort(key=lambda cell: (_SEVERITY.index(cell.worst), cell.site, cell.fault))
    return CampaignReport(
        cells=tuple(cells),
        outcomes=Counter(one.outcome for one in result.results),
        planned=result.planned,
        abort_reason=result.abort_reason,
    )


def render_campaign_report(report: CampaignReport, title: str) -> str:
    """Return the report as an HTML page that needs no network."""
    return render_page(title, [render_heading(1, title), *render_campaign_parts(report)])


def render_campaign_parts(report: CampaignReport) -> list[str]:
    """Return the parts of the report as HTML, for a page with another frame."""
    sites = sorted({cell.site for cell in report.cells})
    faults = sorted({cell.fault for cell in report.cells})
    cells = {(cell.site, cell.fault): cell for cell in report.cells}
    matrix = [(fault, *(_render_outcome(cells.get((site, fault))) for site in sites)) for fault in faults]
    return [
        render_facts(
            [(outcome.value, str(report.outcomes[outcome]), "runs") for outcome in ExperimentOutcome]
        ),
        render_paragraph(report.abort_reason or f"All {report.planned} planned runs are done.", "soft"),
        render_heading(2, "Worst outcome by fault and site"),
        render_table("Worst outcome by fault and site", ("fault", *sites), matrix),
        render_heading(2, "Detection and recovery"),
        render_table("Detection and recovery", _CELL_HEAD, [_describe_cell(cell) for cell in report.cells]),
    ]


_CELL_HEAD = (
    *("site", "fault", "worst", "runs", "detected", "steps to detect", "calls to recover"),
    *("seconds to recover", "seconds", "extra tokens", "extra calls", "extra effects", "false claims"),
)


def _describe_cell(cell: CellSummary) -> tuple[str, ...]:
    return (
        cell.site,
        cell.fault,
        cell.worst.value,
        str(cell.outcomes.total()),
        str(cell.detected),
        _format_median(cell.detection_steps),
        _format_median(cell.recovery_calls),
        _format_median(cell.recovery_seconds),
        _format_median(cell.seconds),
        f"{cell.extra_tokens:+.0f}",
        f"{cell.extra_calls:+.1f}",
        str(cell.extra_effects),
        str(cell.false_claims),
    )


def _render_outcome(cell: CellSummary | None) -> str | tuple[str, str]:
    return "–" if cell is None else (cell.worst.value, _STYLES.get(cell.worst, ""))


def _format_median(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def _summarize_cell(site: str, fault: str, runs: Sequence[ExperimentResult]) -> CellSummary:
    injected = [run for run in runs if run.outcome is not ExperimentOutcome.NOT_INJECTED]
    return CellSummary(
        site=site,
        fault=fault,
        outcomes=Counter(run.outcome for run in runs),
        detected=sum(run.detected_after is not None for run in injected),
        detection_steps=_compute_median(run.detected_after for run in injected),
        recovery_calls=_compute_median(run.recovered_after for run in injected),
        recovery_seconds=_compute_median(run.recovery_seconds for run in injected),
        seconds=_compute_median(run.seconds for run in injected),
        extra_tokens=sum(run.extra_tokens for run in injected) / max(len(injected), 1),
        extra_calls=sum(run.extra_calls for run in injected) / max(len(injected), 1),
        extra_effects=sum(run.extra_effects for run in injected),
        false_claims=sum(run.is_false_claim for run in injected),
    )


def _compute_median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
