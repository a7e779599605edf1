"""HTML page of the cycles that a search found."""

from __future__ import annotations

from agentguard.chaos.causality.confirmation import ConfirmedCycle, CycleStatus, Reproducer
from agentguard.chaos.causality.cycle_search import StitchingResult
from agentguard.chaos.causality.probe import FaultInjection, FaultKind
from agentguard.evals.report.html import (
    render_facts,
    render_heading,
    render_page,
    render_paragraph,
    render_table,
)

_HEAD = ("cycle", "status", "damped by", "goodput")


def render_stitching_report(result: StitchingResult, title: str) -> str:
    """Return the cycles as an HTML page that needs no network."""
    facts = [
        (status.value, str(sum(one.status is status for one in result.cycles)), "cycles")
        for status in CycleStatus
    ]
    body = [
        render_heading(1, title),
        render_facts(facts),
        render_paragraph(
            f"{result.runs} runs with one fault at {result.sites} sites gave {len(result.edges)} edges."
            " Goodput is the successful work in the last quarter of a run, long after the faults,"
            " divided by that without faults.",
            "soft",
        ),
        render_heading(2, "Cycles"),
        render_table("Cycles", _HEAD, [_describe_cycle(one) for one in result.cycles]),
        render_heading(2, "Reproducers of the undamped cycles"),
        *(render_paragraph(describe_reproducer(one.reproducer)) for one in result.undamped if one.reproducer),
    ]
    return render_page(title, body)


def _describe_cycle(one: ConfirmedCycle) -> tuple[str | tuple[str, str], ...]:
    is_undamped = one.status is CycleStatus.UNDAMPED
    goodput = "–" if one.reproducer is None else f"{one.reproducer.goodput:.0%}"
    return (
        str(one.cycle),
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
