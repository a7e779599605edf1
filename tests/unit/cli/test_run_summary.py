"""Selection, order and groups of diagnosed runs, and their table."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from agentguard.cli.diagnosis_table import render_diagnosis_table
from agentguard.cli.run_summary import (
    GroupKey,
    RunSelection,
    RunSummary,
    SortKey,
    count_verdicts,
    find_top_causes,
    group_runs,
)
from agentguard.errors import ConfigError
from agentguard.localize.base import OutcomeBasis
from agentguard.localize.step_support import StepSupport
from agentguard.verdict import Verdict

LOOP = "mast:step_repetition"


def build_run(name: str, verdict: Verdict, probability: float, **fields: object) -> RunSummary:
    run = RunSummary(
        run_id=name,
        file=f"runs/{name}.json",
        format="openai_chat",
        steps=4,
        verdict=verdict,
        probability=probability,
        basis=OutcomeBasis.RULES,
    )
    return replace(run, **fields)  # type: ignore[arg-type]


PASSED = build_run("passed", Verdict.NO_FAILURE_FOUND, 0.1, steps=9)
UNDECIDED = build_run("undecided", Verdict.UNDECIDED, 0.5, step=2, agent="Bob", support=StepSupport.LIKELY)
FAILED = build_run(
    "failed",
    Verdict.FAILED,
    0.8,
    step=3,
    agent="Ada",
    codes=(LOOP,),
    reason="Again.",
    support=StepSupport.ROOT_CAUSE,
)
WORSE = replace(FAILED, run_id="worse", file="runs/worse.json", probability=0.9, step=1, agent="Bob")
RUNS = [PASSED, UNDECIDED, FAILED, WORSE]


def render(selection: RunSelection, runs: list[RunSummary] = RUNS) -> str:
    console = Console(file=io.StringIO(), width=300)
    render_diagnosis_table(console, runs, selection)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        (SortKey.VERDICT, ["worse", "failed", "undecided", "passed"]),
        (SortKey.PROBABILITY, ["worse", "failed", "undecided", "passed"]),
        (SortKey.STEPS, ["passed", "undecided", "failed", "worse"]),
        (SortKey.INPUT, ["passed", "undecided", "failed", "worse"]),
    ],
)
def test_selection_sorts_runs(sort: SortKey, expected: list[str]) -> None:
    assert [run.run_id for run in RunSelection(sort=sort).select_runs(RUNS)] == expected


def test_selection_with_verdicts_drops_other_runs() -> None:
    selection = RunSelection(only=(Verdict.UNDECIDED, Verdict.NO_FAILURE_FOUND))
    assert {run.run_id for run in selection.select_runs(RUNS)} == {"undecided", "passed"}


def test_selection_with_limit_of_zero_is_rejected() -> None:
    with pytest.raises(ConfigError, match="--limit"):
        RunSelection(limit=0)


def test_top_causes_count_failed_runs_with_their_agents_and_the_surest_example() -> None:
    (cause,) = find_top_causes(RUNS)
    assert (cause.name, cause.runs, set(cause.agents)) == ("Steps repeated", 2, {"Ada", "Bob"})
    assert cause.example.place == "runs/worse.json:1"


def test_groups_by_agent_leave_out_runs_without_step() -> None:
    groups = {group.name: group.runs for group in group_runs(RUNS, GroupKey.AGENT)}
    assert groups == {"Bob": 2, "Ada": 1}


def test_counts_name_only_verdicts_that_occur() -> None:
    assert count_verdicts([FAILED]) == "1 run: 1 failed"
    assert count_verdicts(RUNS) == "4 runs: 2 failed, 1 no failure found, 1 undecided"


def test_diagnosis_table_shows_failed_runs_first_with_file_step_and_reason() -> None:
    lines = render(RunSelection()).splitlines()
    rows = [line for line in lines if line.startswith("runs/")]
    assert rows[0].split()[:3] == ["runs/worse.json", "4", "failed"]
    assert "step 3 · Ada" in rows[1]
    assert "Again." in rows[1]
    assert "likely step 2 · Bob" in rows[2]
    assert lines[-1] == "next: agentguard diagnose runs/worse.json · agentguard view runs"


def test_diagnosis_table_names_code_and_detector() -> None:
    runs = [replace(FAILED, detectors=("exact_loop", "tool_error"))]
    lines = render(RunSelection(), runs).splitlines()
    (cause,) = [line for line in lines if line.startswith("Steps repeated")]
    assert cause.split()[2:5] == ["1", LOOP, "exact_loop"]
    (row,) = [line for line in lines if line.startswith("runs/failed.json  ")]
    assert row.split()[-2:] == ["exact_loop", "Again."]


def test_diagnosis_table_with_limit_shows_the_number_of_hidden_rows() -> None:
    text = render(RunSelection(limit=1))
    assert "3 more; --limit sets the number of rows" in text
    assert "undecided.json" not in text


def test_diagnosis_table_of_runs_in_one_file_names_the_runs() -> None:
    runs = [replace(run, file="all.jsonl") for run in RUNS]
    text = render(RunSelection(), runs)
    assert "\nworse " in text
    assert "next: agentguard diagnose all.jsonl --run-id worse · agentguard view all.jsonl" in text


def test_diagnosis_table_of_files_with_several_runs_names_id_and_file() -> None:
    runs = [replace(FAILED, file="a.jsonl"), replace(WORSE, file="a.jsonl"), PASSED]
    text = render(RunSelection(), runs)
    assert "\nfailed in a.jsonl " in text
    assert "worse in a.jsonl, step 1" in text
    assert "\nruns/passed.json " in text
    assert "next: agentguard diagnose a.jsonl --run-id worse" in text


def test_run_with_the_file_in_its_id_is_named_by_its_own_id() -> None:
    run = replace(FAILED, run_id="day/a.json:7", file="data/day/a.json.gz", shares_file=True)
    assert run.name == "7 in data/day/a.json.gz"


def test_narrow_diagnosis_table_keeps_the_kind_and_leaves_out_agents() -> None:
    console = Console(file=io.StringIO(), width=80)
    render_diagnosis_table(console, RUNS, RunSelection())
    assert isinstance(console.file, io.StringIO)
    (row,) = [line for line in console.file.getvalue().splitlines() if line.startswith("runs/worse.json  ")]
    assert row.split() == ["runs/worse.json", "failed", "0.90", "step", "1", "Steps", "repeated"]


def test_diagnosis_table_names_the_number_of_further_causes() -> None:
    codes = ("mast:premature_termination", LOOP, *(f"own:cause_{number}" for number in range(5)))
    runs = [replace(FAILED, run_id=code, codes=(code,)) for code in codes]
    assert "2 more causes; --group-by cause shows all" in render(RunSelection(), runs)


def test_diagnosis_table_by_group_shows_one_row_a_group() -> None:
    rows = render(RunSelection(group_by=GroupKey.CAUSE)).splitlines()
    assert any(row.split()[:4] == ["Steps", "repeated", "2", "2"] for row in rows)
    assert any(row.startswith("no evidence") for row in rows)
