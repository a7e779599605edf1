"""Scenarios of the guard check in which an agent repeats a booking although the guard has asked about it."""

from __future__ import annotations

from agentguard.testing.guard_check import GuardCheckReport, build_scenarios

INSISTENT_NAMES = {
    one.name
    for one in build_scenarios()
    if one.name.startswith(("repeated_booking/3/", "repeated_booking/insisting/")) and "/1/" not in one.name
}
"""Names of the scenarios with a second booking: the guard cannot know that it is not intended."""


def list_harmful_names(report: GuardCheckReport) -> set[str]:
    """Return the names of the scenarios with a harmful effect under the guard."""
    return {one.scenario.name for one in report.comparisons if one.guarded.harm}
