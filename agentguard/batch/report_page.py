"""HTML page of the summary report of a batch job; one file that needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterator

from agentguard.batch.report import BatchReport, FailureRate, RunReference
from agentguard.html_report.page import (
    format_percent,
    render_facts,
    render_heading,
    render_page,
    render_paragraph,
    render_table,
)
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.verdict import Verdict

_MAX_ROWS = 50


def render_batch_report(report: BatchReport, title: str) -> str:
    """Return the page as one HTML document."""
    return render_page(title, [render_heading(1, title), *render_batch_parts(report)])


def format_rate(rate: FailureRate) -> str:
    """Return a rate in per cent with its interval."""
    low, high = rate.interval
    return f"{format_percent(rate.rate)} [{format_percent(low)}, {format_percent(high)}]"


def format_reference(run: RunReference) -> str:
    """Return file, record and step of a run."""
    step = "" if run.step is None else f":{run.step}"
    return f"{run.source}#{run.record}{step}"


def render_batch_parts(report: BatchReport) -> Iterator[str]:
    """Yield the parts of the page below its heading."""
    verdicts = report.verdicts
    yield render_facts(
        [
            ("failed", f"{verdicts[str(Verdict.FAILED)]:,}", f"{format_rate(report.failure_rate)} %"),
            ("no failure found", f"{verdicts[str(Verdict.NO_FAILURE_FOUND)]:,}", "runs"),
            ("undecided", f"{verdicts[str(Verdict.UNDECIDED)]:,}", "runs"),
            ("without a verdict", f"{report.errors:,}", f"of {report.rows:,} rows; see dead_letters"),
        ]
    )
    yield render_paragraph(
        "Rates are failed runs in per cent with 95 % Wilson intervals. For an agent or a tool, a failed run "
        "counts if its root cause is a step of that agent or a call of that tool.",
        "soft",
    )
    titles = TaxonomyCatalog.load()
    yield from _render_clusters(report, titles)
    for dimension, rates in report.rates.items():
        if rates:
            yield render_heading(2, f"By {dimension}")
            yield render_table(
                f"Failed runs by {dimension}",
                (dimension, "runs", "failed", "% failed"),
                [
                    (
                        _get_name(dimension, rate, titles),
                        f"{rate.runs:,}",
                        f"{rate.failed:,}",
                        format_rate(rate),
                    )
                    for rate in rates[:_MAX_ROWS]
                ],
            )
    yield from _render_divergences(report)


def _get_name(dimension: str, rate: FailureRate, titles: TaxonomyCatalog) -> str:
    return f"{titles.get_title(rate.name)} ({rate.name})" if dimension == "code" else rate.name


def _render_clusters(report: BatchReport, titles: TaxonomyCatalog) -> Iterator[str]:
    if not report.clusters:
        return
    yield render_heading(2, "Clusters of failures")
    rows = [
        (
            f"{one.runs:,}",
            one.agent,
            one.tool or "–",
            titles.get_title(one.code) if one.code else "–",
            one.reason,
            ", ".join(map(format_reference, one.examples)),
        )
        for one in report.clusters[:_MAX_ROWS]
    ]
    yield render_table(
        "Clusters of failures", ("runs", "agent", "tool", "kind", "reason of the first run", "examples"), rows
    )
    hidden = sum(one.runs for one in report.clusters[_MAX_ROWS:]) + report.other_failures
    if hidden:
        yield render_paragraph(f"{hidden:,} failed runs are in further clusters.")


def _render_divergences(report: BatchReport) -> Iterator[str]:
    if not report.divergences:
        return
    yield render_heading(2, "First divergence of failed and passed runs of a task")
    rows = [
        (
            one.task[:200],
            f"{one.failed:,} / {one.passed:,}",
            str(one.action),
            one.failed_action or "(the run has ended)",
            one.passed_action or "(the run has ended)",
            f"{format_reference(one.failed_run)} / {format_reference(one.passed_run)}",
        )
        for one in report.divergences
    ]
    yield render_table(
        "First divergences",
        ("task", "failed / passed", "action", "failed run", "passed run", "runs"),
        rows,
    )
