"""Command ``pilot``: scripted scenarios, and recorded runs without and with the guard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.config.policy import Policy
from agentguard.guard import Guard
from agentguard.store import Store

ACCEPTANCE = {"rules": [{"number": "total", "maximum": 500}], "on_fail": ["restart"]}


def invoke(*command: object) -> Any:
    return CliRunner().invoke(build_app(), ["pilot", *map(str, command)])


def run_agent(guard: Guard, task: str, totals: tuple[int, ...]) -> None:
    answers = iter(totals)
    with guard.run(task) as run:
        while not run.done:
            run.tools(run.model(lambda messages: json.dumps({"total": next(answers)})))


def test_pilot_over_scenarios_writes_a_usable_policy(tmp_path: Path) -> None:
    out = tmp_path / "policy.yaml"
    result = invoke("--every", 40, "--output", out, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["overall"]["rescue"]["count"] > 0
    assert out.read_text().startswith("# agentguard pilot:")
    Guard.from_policy(out)
    again = invoke("--every", 40, "--output", out)
    assert again.exit_code == 2
    assert "exists" in again.output


def test_pilot_without_output_prints_only_the_policy_on_standard_output(tmp_path: Path) -> None:
    result = invoke("--every", 100)
    assert result.exit_code == 0, result.output
    (tmp_path / "policy.yaml").write_text(result.stdout)
    Guard.from_policy(tmp_path / "policy.yaml")
    assert "undecided" in result.stderr or "helps" in result.stderr


def test_pilot_over_recorded_runs_counts_rescued_tasks(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(json.dumps({"acceptance": ACCEPTANCE}))
    runs = tmp_path / "runs"
    runs.mkdir()
    with Store.open(tmp_path / "runs.db") as store, Guard.from_policy(policy, store=store) as guard:
        for place, totals in enumerate([(900, 90), (80, 80), (700, 701)]):
            task = f"Compute total {place} as JSON."
            unguarded = [("user", task), ("assistant", json.dumps({"total": totals[0]}))]
            (runs / f"{place}.json").write_text(
                json.dumps([{"role": role, "content": text} for role, text in unguarded])
            )
            run_agent(guard, task, totals)
        guard.flush()
        store.flush()
    result = invoke("--without", runs, "--with", tmp_path / "runs.db", "--policy", policy, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["overall"]["base_failure"]["count"] == 2
    (cell,) = report["interventions"]
    assert (cell["trigger"], cell["strategy"]) == ("acceptance", "restart")
    assert (cell["rescue"]["count"], cell["rescue"]["n"]) == (1, 2)


def test_pilot_without_outcomes_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps([{"role": "user", "content": "Hi."}]))
    with Store.open(tmp_path / "runs.db"):
        pass
    result = invoke("--without", tmp_path / "run.json", "--with", tmp_path / "runs.db")
    assert result.exit_code == 2
    assert "--outcomes" in result.output
    assert "in pairs" in invoke("--without", tmp_path / "run.json").output


def test_policy_of_the_pilot_keeps_the_given_settings() -> None:
    assert Policy.parse({"acceptance": ACCEPTANCE}).list_escalations() == {"acceptance": ("restart",)}
