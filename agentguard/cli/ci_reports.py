"""Reports of diagnosed runs for CI and code review: SARIF, JUnit, annotations of GitHub, Markdown."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import orjson

from agentguard.cli.run_summary import (
    RunSummary,
    count_verdicts,
    find_top_causes,
)
from agentguard.cli.terminal_text import sanitize, to_one_line
from agentguard.localize.step_support import StepSupport
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.verdict import Verdict
from agentguard.version import __version__

_SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_UNNAMED_RULE: Final = "agentguard:failed"
_MAX_TEXT: Final = 1_000
_LEVELS: Final = {Verdict.FAILED: "error", Verdict.UNDECIDED: "note", Verdict.NO_FAILURE_FOUND: "none"}


class OutputFormat(StrEnum):
    """Format of the output of ``agentguard diagnose``."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    JUNIT = "junit"
    GITHUB = "github"
    MARKDOWN = "markdown"


def write_report(format: OutputFormat, runs: Sequence[RunSummary], unreadable: Sequence[str]) -> str:
    """Return the report of the runs.

    Args:
        format: one of ``sarif``, ``junit``, ``github`` and ``markdown``.
        runs: the runs in order.
        unreadable: messages of the records that could not be read.
    """
    return _WRITERS[format](runs, unreadable)


def write_sarif(runs: Sequence[RunSummary], unreadable: Sequence[str]) -> str:
    """Return a SARIF 2.1.0 log: failed runs are errors, undecided runs with a most likely step are notes.

    Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
    """
    shown = [run for run in runs if run.step is not None or run.verdict is Verdict.FAILED]
    rule_ids = list(dict.fromkeys(_get_rule_id(run) for run in shown))
    messages = [{"level": "error", "message": {"text": text}} for text in unreadable]
    log = {
        "$schema": _SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "agentguard",
                        "version": __version__,
                        "rules": [_build_rule(rule_id) for rule_id in rule_ids],
                    }
                },
                "invocations": [
                    {"executionSuccessful": not unreadable, "toolExecutionNotifications": messages}
                ],
                "results": [_build_result(run, rule_ids) for run in shown],
            }
        ],
    }
    return orjson.dumps(log, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def write_junit(runs: Sequence[RunSummary], unreadable: Sequence[str]) -> str:
    """Return JUnit XML: failed runs are failures, undecided runs skipped, unreadable records errors."""
    failed = sum(run.verdict is Verdict.FAILED for run in runs)
    undecided = sum(run.verdict is Verdict.UNDECIDED for run in runs)
    counts = {
        "tests": len(runs) + len(unreadable),
        "failures": failed,
        "errors": len(unreadable),
        "skipped": undecided,
    }
    suites = Element("testsuites", {name: str(count) for name, count in counts.items()})
    suite = SubElement(suites, "testsuite", {"name": "agentguard"} | suites.attrib)
    for run in runs:
        case = SubElement(suite, "testcase", {"classname": _clean(run.file), "name": _clean(run.run_id)})
        if run.verdict is Verdict.FAILED:
            attributes = {"type": _get_rule_id(run), "message": _clean(_describe_run(run))}
            SubElement(case, "failure", attributes).text = _clean(_build_text(run))
        elif run.verdict is Verdict.UNDECIDED:
            SubElement(case, "skipped", {"message": _clean(f"undecided: {_describe_run(run)}")})
    for number, text in enumerate(unreadable):
        case = SubElement(suite, "testcase", {"classname": "unreadable", "name": f"record {number}"})
        SubElement(case, "error", {"type": "unreadable", "message": _clean(text)})
    indent(suites)
    return tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def write_github(runs: Sequence[RunSummary], unreadable: Sequence[str]) -> str:
    """Return workflow commands of GitHub Actions: failed runs are errors, undecided ones notices.

    Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
    """
    lines = []
    for run in runs:
        if run.verdict is not Verdict.NO_FAILURE_FOUND:
            command = "error" if run.verdict is Verdict.FAILED else "notice"
            title = f"{run.verdict.label}: {run.run_id}"
            place = f"file={_escape_property(run.file)}," if run.file else ""
            text = _escape_data(_build_text(run))
            lines.append(f"::{command} {place}title={_escape_property(title)}::{text}")
    lines += [f"::warning title=not read::{_escape_data(text)}" for text in unreadable]
    lines.append(count_verdicts(runs))
    return "\n".join(lines) + "\n"


def write_markdown(runs: Sequence[RunSummary], unreadable: Sequence[str]) -> str:
    """Return tables in GitHub Flavored Markdown: the causes, then the runs that are not passed."""
    lines = [f"**{count_verdicts(runs)}**", ""]
    if causes := find_top_causes(runs):
        lines += ["| top causes | failed | agents | example |", "|---|---:|---|---|"]
        lines += [
            f"| {_format_cell(cause.name)} | {cause.runs} | {_format_cell(', '.join(cause.agents))} "
            f"| `{_format_code(cause.example.place)}` |"
            for cause in causes
        ]
        lines.append("")
    if shown := [run for run in runs if run.verdict is not Verdict.NO_FAILURE_FOUND]:
        lines += [
            "| run | verdict | p(failed) | root cause | kind | code | detector | reason |",
            "|---|---|---:|---|---|---|---|---|",
        ]
        lines += [
            f"| `{_format_code(run.file or run.run_id)}` | {run.verdict.label} | {run.probability:.2f} "
            f"| {_format_cell(run.step_label)} | {_format_cell(run.cause)} "
            f"| {_format_cell(next(iter(run.codes), ''))} "
            f"| {_format_cell(next(iter(run.detectors), ''))} | {_format_cell(run.reason)} |"
            for run in shown
        ]
        lines.append("")
    lines += [f"- not read: {_format_cell(text)}" for text in unreadable]
    return "\n".join(lines).rstrip() + "\n"


_WRITERS: Final[dict[OutputFormat, Callable[[Sequence[RunSummary], Sequence[str]], str]]] = {
    OutputFormat.SARIF: write_sarif,
    OutputFormat.JUNIT: write_junit,
    OutputFormat.GITHUB: write_github,
    OutputFormat.MARKDOWN: write_markdown,
}


def _get_rule_id(run: RunSummary) -> str:
    return run.codes[0] if run.codes else _UNNAMED_RULE


def _build_rule(rule_id: str) -> dict[str, Any]:
    catalog = TaxonomyCatalog.load()
    title = "Failed run" if rule_id == _UNNAMED_RULE else catalog.get_title(rule_id)
    rule = {"id": rule_id, "shortDescription": {"text": title}}
    # A plug-in detector may have codes that no taxonomy lists.
    codes = catalog.find_codes(rule_id)
    return rule | ({"fullDescription": {"text": codes[0].definition}} if codes else {})


def _build_result(run: RunSummary, rule_ids: Sequence[str]) -> dict[str, Any]:
    rule_id = _get_rule_id(run)
    location: dict[str, Any] = {
        "logicalLocations": [
            {"fullyQualifiedName": f"{run.run_id}/step {run.step}", "kind": "step"}
            if run.step is not None
            else {"fullyQualifiedName": run.run_id, "kind": "run"}
        ]
    }
    if run.file:
        # Viewers of SARIF need a region to show a result, but a step has no line number.
        location["physicalLocation"] = {
            "artifactLocation": {"uri": _build_uri(run.file)},
            "region": {"startLine": 1},
        }
    fingerprint = hashlib.sha256(f"{run.run_id}\0{run.step}\0{rule_id}".encode(errors="replace")).hexdigest()
    return {
        "ruleId": rule_id,
        "ruleIndex": rule_ids.index(rule_id),
        "level": _LEVELS[run.verdict],
        "message": {"text": _build_text(run)},
        "locations": [location],
        "partialFingerprints": {"run/step/code": fingerprint},
        "properties": {
            "verdict": run.verdict.value,
            "probability": round(run.probability, 4),
            "basis": run.basis,
            "agent": sanitize(run.agent),
            "detectors": [sanitize(name) for name in run.detectors],
        },
    }


def _build_uri(file: str) -> str:
    path = Path(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())


def _describe_run(run: RunSummary) -> str:
    code = f" ({run.codes[0]})" if run.codes else ""
    return ", ".join(part for part in (run.step_label, f"{run.cause}{code}") if part) or run.verdict.label


def _build_text(run: RunSummary) -> str:
    """Return step, kind, reason, correction and detectors in sentences, on one line."""
    parts = [
        _describe_run(run),
        run.reason,
        run.correction if run.support is StepSupport.ROOT_CAUSE else "",
        f"Detector: {', '.join(run.detectors)}" if run.detectors else "",
    ]
    return to_one_line(". ".join(part.strip().rstrip(".") for part in parts if part.strip()), _MAX_TEXT) + "."


def _clean(text: str) -> str:
    return to_one_line(text, _MAX_TEXT)


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(_clean(text)).replace(":", "%3A").replace(",", "%2C")


def _format_cell(text: str) -> str:
    for mark in "\\`*_[]<>|#":
        text = text.replace(mark, f"\\{mark}")
    return to_one_line(text, _MAX_TEXT)


def _format_code(text: str) -> str:
    return to_one_line(text.replace("`", "'").replace("|", "\\|"), _MAX_TEXT)
