"""Summary of the verdicts of a batch job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from agentguard.batch import BatchReport, build_batch_report, report
from agentguard.batch.report_page import render_batch_report
from agentguard.batch.verdict_table import VERDICT_TABLE, build_verdict_values
from agentguard.cli.app import build_app
from agentguard.errors import ConfigError
from agentguard.guard import diagnose
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Trajectory

MONDAY = 1_700_438_400.0  # 2023-11-20, the first day of week 47


def build_row(number: int, verdict: str | None, **values: Any) -> dict[str, Any]:
    columns = VERDICT_TABLE.columns.items()
    empty: dict[str, Any] = {name: [] if kind.startswith("list") else None for name, kind in columns}
    identity = {"source": "runs.jsonl", "record": number, "run_id": f"run-{number}", "verdict": verdict}
    return empty | identity | values


def build_failed_row(number: int, **values: Any) -> dict[str, Any]:
    cause = {"step": 3, "agent": "buyer", "tool": "buy", "codes": ["mast:step_repetition"]}
    run = {
        "agents": ["buyer", "planner"],
        "tools": ["buy", "search"],
        "reason": f"repeated “buy” {number} times",
    }
    return build_row(number, "failed", **(cause | run | values))


def write_table(folder: Path, *parts: list[dict[str, Any]]) -> str:
    (folder / "verdicts").mkdir()
    (folder / "manifest.json").write_text("{}")
    for number, rows in enumerate(parts):
        table = pyarrow.Table.from_pylist(rows, schema=VERDICT_TABLE.build_arrow_schema())
        pyarrow.parquet.write_table(table, folder / "verdicts" / f"{number}.parquet")
    return str(folder)


def get_rates(report: BatchReport, dimension: str) -> dict[str, tuple[int, int]]:
    return {rate.name: (rate.failed, rate.runs) for rate in report.rates[dimension]}


def test_rates_count_root_causes_by_agent_and_tool_and_runs_by_model_and_week(tmp_path: Path) -> None:
    passed = {"agents": ["planner"], "tools": ["search"], "model": "m1", "started_at": MONDAY}
    parts = (
        [build_failed_row(0, model="m1", started_at=MONDAY - 1), build_row(1, "no_failure_found", **passed)],
        [build_row(2, "undecided", agents=["buyer"], model="m2"), build_row(3, None, error="not JSON")],
    )
    summary = build_batch_report(write_table(tmp_path, *parts))
    assert (summary.rows, summary.errors) == (4, 1)
    assert summary.verdicts == {"failed": 1, "no_failure_found": 1, "undecided": 1}
    assert get_rates(summary, "agent") == {"buyer": (1, 2), "planner": (0, 2)}
    assert get_rates(summary, "tool") == {"buy": (1, 1), "search": (0, 2)}
    assert get_rates(summary, "model") == {"m1": (1, 2), "m2": (0, 1)}
    assert get_rates(summary, "week") == {"2023-W46": (1, 1), "2023-W47": (0, 1)}
    assert get_rates(summary, "code") == {"mast:step_repetition": (1, 3)}
    low, high = summary.failure_rate.interval
    assert low < summary.failure_rate.rate < high


def test_clusters_ignore_numbers_and_quotations_in_reasons(tmp_path: Path) -> None:
    rows = [build_failed_row(number) for number in range(5)] + [build_failed_row(5, reason="gave up")]
    clusters = build_batch_report(write_table(tmp_path, rows)).clusters
    assert [(one.runs, one.reason) for one in clusters] == [(5, "repeated “buy” 0 times"), (1, "gave up")]
    assert [example.record for example in clusters[0].examples] == [0, 1, 2]


def test_clusters_beyond_the_maximum_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_CLUSTERS", 2)
    rows = [build_failed_row(number, agent=f"agent {number % 4}") for number in range(8)]
    summary = build_batch_report(write_table(tmp_path, rows))
    assert ([one.runs for one in summary.clusters], summary.other_failures) == ([2, 2], 4)


def test_divergence_compares_the_closest_runs_of_a_task(tmp_path: Path) -> None:
    actions = {
        "failed": ["a: look #1", "a: buy x #2", "a: end #3"],
        "far": ["a: think #9"],
        "near": ["a: look #1", "a: buy y #4"],
    }
    rows = [
        build_failed_row(0, task="Buy.", actions=actions["failed"]),
        build_row(1, "no_failure_found", task="Buy.", actions=actions["far"]),
        build_row(2, "no_failure_found", task="Buy.", actions=actions["near"]),
        build_row(3, "undecided", task="Buy.", actions=actions["failed"]),
        build_failed_row(4, task="Another task without a passed run."),
    ]
    (one,) = build_batch_report(write_table(tmp_path, rows)).divergences
    assert (one.task, one.failed, one.passed, one.action) == ("Buy.", 1, 2, 1)
    assert (one.failed_action, one.passed_action) == ("a: buy x", "a: buy y")
    assert (one.failed_run.record, one.passed_run.record) == (0, 2)


def test_divergence_after_the_end_of_a_run_has_no_action_there(tmp_path: Path) -> None:
    rows = [
        build_failed_row(0, task="Buy.", actions=["a: look #1"]),
        build_row(1, "no_failure_found", task="Buy.", actions=["a: look #1", "a: buy #2"]),
    ]
    (one,) = build_batch_report(write_table(tmp_path, rows)).divergences
    assert (one.action, one.failed_action, one.passed_action) == (1, "", "a: buy")


def test_row_of_a_run_has_the_columns_of_the_report() -> None:
    call = ToolCall(id="1", name="buy", arguments={"what": "tea"})
    steps = (
        Step(index=0, source=Source.USER, agent="user", content="Buy tea."),
        Step(
            index=1,
            source=Source.AGENT,
            agent="buyer",
            tool_calls=(call,),
            observations=(Observation(content="sold"),),
            started_at=MONDAY,
            model="m1",
        ),
        Step(index=2, source=Source.AGENT, agent="buyer", content="Done.", started_at=MONDAY + 5),
    )
    run = Trajectory(id="r", format="openai_chat", task="Buy tea.", steps=steps)
    row = build_verdict_values(run, diagnose(run))
    assert (row["task"], row["model"], row["started_at"]) == ("Buy tea.", "m1", MONDAY)
    assert (row["agents"], row["tools"]) == (["buyer"], ["buy"])
    first, second = row["actions"]
    assert first.startswith('buyer: buy {"what":"tea"} #')
    assert second.startswith("buyer: Done. #")


def test_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name the folder that"):
        build_batch_report(str(tmp_path))


def test_page_escapes_texts_of_runs(tmp_path: Path) -> None:
    rows = [build_failed_row(0, agent="<script>", reason="<img src=x>")]
    page = render_batch_report(build_batch_report(write_table(tmp_path, rows)), "Verdicts")
    assert "<script>" not in page
    assert "&lt;img src=x&gt;" in page


def test_command_reports_the_verdicts_of_a_job(tmp_path: Path) -> None:
    folder, page = tmp_path / "out", tmp_path / "pages" / "report.html"
    app, runner = build_app(), CliRunner()
    samples = ["samples/04-wine-bottle.json", "samples/02-teapot.json"]
    job = runner.invoke(app, ["diagnose", *samples, "--batch-output", str(folder), "--jobs", "1", "--json"])
    assert job.exit_code == 0, job.output
    assert json.loads(job.stdout)["outcomes"] == {"failed": 1, "no_failure_found": 1}
    text = runner.invoke(app, ["report", str(folder), "--output", str(page)])
    assert text.exit_code == 0, text.output
    assert "2 rows: 1 failed, 1 no failure found" in text.output
    assert "Impossible plan" in page.read_text()
    data = json.loads(runner.invoke(app, ["report", str(folder), "--json"]).stdout)
    assert (data["schema_version"], data["rows"], data["verdicts"]["failed"]) == (2, 2, 1)
