from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from agentguard.detect.rules.task_constraints import compile_constraints
from tests.unit.detect.builders import call, found, run

TASK = """Speed up the parser.
Constraints:
- Only modify files in src/parser/
- Do NOT modify test fixtures
- Do not read more than 1000 lines
- Never touch config/production.yaml
"""


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("edit_file", {"path": "src/web/app.py", "new": "x"}),
        ("edit_file", {"path": "src/parser/tests/fixtures/test_a.json", "new": "x"}),
        ("run_command", {"command": "python bench.py --lines 50000"}),
        ("run_command", {"command": "sed -i s/1/2/ config/production.yaml"}),
    ],
)
def test_violation_of_a_stated_constraint_is_found(tool: str, arguments: dict[str, str]) -> None:
    findings = found(run(call(tool, arguments, "ok"), task=TASK), "task_constraint")
    assert findings
    assert all(finding.step == 0 and finding.data["constraint"] for finding in findings)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("edit_file", {"path": "src/parser/core.py", "new": "x"}),
        ("open_file", {"path": "src/web/app.py"}),
        ("run_command", {"command": "python bench.py --lines 900"}),
        ("run_command", {"command": "cat config/production.yaml"}),
        ("submit", {"message": "I did not modify the test fixtures"}),
    ],
)
def test_action_within_the_constraints_has_no_finding(tool: str, arguments: dict[str, str]) -> None:
    assert found(run(call(tool, arguments, "ok"), task=TASK), "task_constraint") == ()


def test_constraint_is_reported_once_and_a_later_reversal_marks_it_as_recovered() -> None:
    bad = call("edit_file", {"path": "src/web/app.py", "new": "x"}, "ok")
    (kept,) = found(run(bad, bad, task=TASK), "task_constraint")
    back = call("run_command", {"command": "git checkout src/web/app.py"}, "Updated 1 path")
    (repaired,) = found(run(bad, back, task=TASK), "task_constraint")
    assert (kept.recovered_after, repaired.recovered_after) == (None, 1)
    assert repaired.probability < kept.probability


def test_task_without_constraints_compiles_to_none() -> None:
    assert compile_constraints("find the harbour with the most boats, and report it.") == []


@given(st.text(max_size=400))
def test_any_task_compiles(text: str) -> None:
    for constraint in compile_constraints(text.lower()):
        assert constraint.text
