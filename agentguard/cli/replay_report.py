"""Outcomes of replays and their report in the format of JUnit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from agentguard.cli.terminal_text import to_one_line

_MAX_TEXT: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutcome:
    """Outcome of the replay of one bundle.

    Attributes:
        file: file of the bundle.
        problem: deviation from the expectation; empty if the replay is as expected.
        note: comparison with the recording.
    """

    file: Path
    problem: str = ""
    note: str = ""


def write_replay_junit(outcomes: Sequence[ReplayOutcome]) -> str:
    """Return JUnit XML with one test case a bundle."""
    failures = sum(bool(outcome.problem) for outcome in outcomes)
    counts = {"tests": str(len(outcomes)), "failures": str(failures)}
    suites = Element("testsuites", counts)
    suite = SubElement(suites, "testsuite", {"name": "agentguard replay"} | counts)
    for outcome in outcomes:
        file = to_one_line(str(outcome.file), _MAX_TEXT)
        case = SubElement(suite, "testcase", {"classname": "agentguard.replay", "name": file})
        if outcome.problem:
            message = to_one_line(outcome.problem, _MAX_TEXT)
            SubElement(case, "failure", {"type": "replay", "message": message})
    indent(suites)
    return tostring(suites, encoding="unicode", xml_declaration=True) + "\n"
