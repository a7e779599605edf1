"""Reports for CI: SARIF, JUnit, workflow commands, Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import jsonschema_rs
import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.cli.ci_reports import OutputFormat, write_github, write_junit, write_markdown, write_sarif
from agentguard.cli.run_summary import RunSummary
from agentguard.localize.base import OutcomeBasis
from agentguard.localize.step_support import StepSupport
from agentguard.verdict import Verdict
from tests.unit.cli.test_run_summary import FAILED, PASSED, RUNS, UNDECIDED

ROOT = Path(__file__).parents[3]

# The members of SARIF 2.1.0 that the log uses, with their requirements (sections 3.13 to 3.30).
TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
SARIF: dict[str, Any] = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id"],
                                            "properties": {"shortDescription": TEXT},
                                        },
                                    }
                                },
                            }
                        },
                    },
                    "invocations": {
                        "type": "array",
                        "items": {"type": "object", "required": ["executionSuccessful"]},
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message"],
                            "properties": {
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "message": TEXT,
                                "locations": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "properties": {
                                            "physicalLocation": {
                                                "type": "object",
                                                "required": ["artifactLocation"],
                                                "properties": {
                                                    "artifactLocation": {
                                                        "properties": {"uri": {"format": "uri-reference"}}
                                                    },
                                                    "region": {
                                                        "properties": {
                                                            "startLine": {"type": "integer", "minimum": 1}
                                                        }
                                                    },
                                                },
                                            }
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}
VALIDATOR = jsonschema_rs.validator_for(SARIF, validate_formats=True)

texts = st.text(max_size=40)
summaries = st.builds(
    RunSummary,
    run_id=texts,
    file=texts,
    format=st.just("openai_chat"),
    steps=st.integers(0, 50),
    verdict=st.sampled_from(Verdict),
    probability=st.floats(0, 1),
    basis=st.sampled_from(OutcomeBasis),
    step=st.none() | st.integers(0, 50),
    agent=texts,
    codes=st.lists(st.sampled_from(["mast:step_repetition", "own:code"]), max_size=2).map(tuple),
    reason=texts,
    correction=texts,
    support=st.none() | st.sampled_from(StepSupport),
)


def test_sarif_has_one_result_a_failed_or_undecided_run_with_its_rule() -> None:
    log = json.loads(write_sarif(RUNS, ["b.json: not JSON"]))
    (run,) = log["runs"]
    assert [result["level"] for result in run["results"]] == ["note", "error", "error"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [rules[result["ruleIndex"]] for result in run["results"]] == [
        result["ruleId"] for result in run["results"]
    ]
    location = run["results"][1]["locations"][0]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "runs/failed.json"
    assert location["logicalLocations"][0]["fullyQualifiedName"] == "failed/step 3"
    assert run["invocations"][0]["executionSuccessful"] is False


def test_sarif_fingerprint_changes_with_the_step() -> None:
    first, second = (
        json.loads(write_sarif([replace(FAILED, step=step)], []))["runs"][0]["results"][0][
            "partialFingerprints"
        ]
        for step in (3, 4)
    )
    assert first != second


@given(st.lists(summaries, max_size=4))
def test_sarif_of_any_run_is_valid(runs: list[RunSummary]) -> None:
    log = json.loads(write_sarif(runs, []))
    VALIDATOR.validate(log)
    for result in log["runs"][0]["results"]:
        for location in result["locations"]:
            if "physicalLocation" in location:
                unquote(location["physicalLocation"]["artifactLocation"]["uri"], errors="strict")


@given(st.lists(summaries, max_size=4), st.lists(texts, max_size=2))
def test_junit_of_any_run_is_well_formed_and_counts_agree(
    runs: list[RunSummary], unreadable: list[str]
) -> None:
    suites = ElementTree.fromstring(write_junit(runs, unreadable).encode())
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped",) * 2):
        assert int(suites.attrib[name]) == len(list(suites.iter(tag)))


@given(st.lists(summaries, max_size=4))
def test_workflow_commands_take_one_line_a_run(runs: list[RunSummary]) -> None:
    lines = write_github(runs, []).splitlines()
    assert len(lines) == sum(run.verdict is not Verdict.NO_FAILURE_FOUND for run in runs) + 1
    for line in lines[:-1]:
        assert re.fullmatch(r"::(error|notice) (file=[^:,]*,)?title=[^:,]*::.*", line)


def test_markdown_escapes_marks_in_cells() -> None:
    text = write_markdown([replace(FAILED, agent="a|b", reason="<b>")], [])
    assert r"a\|b" in text
    assert r"\<b\>" in text


@pytest.mark.parametrize("write", [write_sarif, write_junit, write_github, write_markdown])
def test_reports_name_code_and_detector(write: Callable[[list[RunSummary], list[str]], str]) -> None:
    text = write([replace(FAILED, detectors=("exact_loop", "tool_error"))], [])
    text = text.replace("\\_", "_")  # Markdown escapes the mark
    assert "step_repetition" in text
    assert "exact_loop" in text


def test_markdown_leaves_out_passed_runs() -> None:
    text = write_markdown([PASSED, UNDECIDED], [])
    assert "**2 runs: 1 no failure found, 1 undecided**" in text
    assert "passed.json" not in text


@pytest.mark.parametrize("format", [one for one in OutputFormat if one is not OutputFormat.TEXT])
def test_command_writes_each_format(format: OutputFormat) -> None:
    arguments = ["diagnose", str(ROOT / "samples"), "--output-format", format, "--only", "failed"]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 0
    assert "04-wine-bottle" in result.stdout
    assert "02-teapot" not in result.stdout


def test_json_lines_have_schema_version_and_file() -> None:
    file = ROOT / "samples" / "02-teapot.json"
    result = CliRunner().invoke(build_app(), ["diagnose", str(file), "--json"])
    line = json.loads(result.stdout)
    assert (line["schema_version"], line["file"], line["trajectory_id"]) == (2, str(file), "02-teapot")


def test_json_and_report_together_are_rejected() -> None:
    arguments = ["diagnose", str(ROOT / "samples"), "--json", "--output-format", "sarif"]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code != 0
