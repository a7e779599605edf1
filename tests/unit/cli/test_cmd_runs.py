"""`agentguard runs`: list, show and diagnose the runs of a store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.guard import Guard
from agentguard.store import Store
from agentguard.trajectory.formats.reader import load_trajectory
from agentguard.trajectory.model import Source, Step, Trajectory, Usage
from tests.unit.judge.chat_server import Script, serving

SAMPLES = ("04-wine-bottle", "02-teapot", "09-watering-can")


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Return the path of a store with three runs without diagnosis."""
    path = str(tmp_path / "runs.db")
    with Store.open(path) as opened:
        for name in SAMPLES:
            opened.write_run(load_trajectory(f"samples/{name}.json"))
        opened.flush(10)
    return path


def invoke(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(build_app(), ["runs", *arguments])


def list_ids(store: str, *options: str) -> list[str]:
    result = invoke("list", "--store", store, "--json", *options)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["run_id"] for line in result.stdout.splitlines()]


def test_diagnose_takes_runs_without_diagnosis_once(store: str) -> None:
    first = invoke("diagnose", "--store", store)
    assert first.exit_code == 0, first.output
    assert "04-wine-bottle: failed" in first.stdout
    assert first.stdout.splitlines()[-1] == "3 runs: 1 failed, 1 no failure found, 1 undecided"
    assert (
        invoke("diagnose", "--store", store).stdout == "0 runs: 0 failed, 0 no failure found, 0 undecided\n"
    )


def test_fail_on_failure_exits_with_3_only_if_a_selected_run_failed(store: str) -> None:
    assert invoke("list", "--store", store, "--fail-on-failure").exit_code == 0
    assert invoke("diagnose", "--store", store, "--fail-on-failure").exit_code == 3
    assert invoke("list", "--store", store, "--fail-on-failure", "--json").exit_code == 3
    assert invoke("list", "--store", store, "--search", "wine", "--fail-on-failure").exit_code == 3
    assert invoke("list", "--store", store, "--text", "teapot", "--fail-on-failure").exit_code == 0
    assert invoke("list", "--store", store).exit_code == 0


def test_list_filters_by_verdict_code_and_text(store: str) -> None:
    assert sorted(list_ids(store, "--verdict", "not_diagnosed")) == sorted(SAMPLES)
    invoke("diagnose", "--store", store)
    assert list_ids(store, "--verdict", "not_diagnosed") == []
    assert list_ids(store, "--verdict", "failed") == ["04-wine-bottle"]
    assert list_ids(store, "--text", "teapot", "--since", "1h") == ["02-teapot"]
    assert len(list_ids(store, "--limit", "2")) == 2


def test_list_and_diagnose_select_runs_by_tool_and_agent(store: str) -> None:
    every = [json.loads(line) for line in invoke("list", "--store", store, "--json").stdout.splitlines()]
    tools = {tool for row in every for tool in row["tools"]}
    for name, option in (("tools", "--tool"), ("agents", "--agent")):
        for value in {value for row in every for value in row[name]}:
            expected = [row["run_id"] for row in every if value in row[name]]
            assert list_ids(store, option, value) == expected
    assert tools
    assert list_ids(store, "--tool", "no such tool") == list_ids(store, "--agent", "nobody") == []
    tool = min(tools, key=lambda one: sum(one in row["tools"] for row in every))
    count = len(list_ids(store, "--tool", tool))
    assert 0 < count < len(SAMPLES)
    assert invoke("diagnose", "--store", store, "--tool", tool).stdout.startswith(
        list_ids(store, "--tool", tool)[0]
    )
    assert len(list_ids(store, "--verdict", "not_diagnosed")) == len(SAMPLES) - count


def test_cause_agent_selects_runs_with_a_diagnosis(store: str) -> None:
    assert invoke("diagnose", "--store", store, "--cause-agent", "nobody").stdout.startswith("0 runs")
    invoke("diagnose", "--store", store)
    rows = [json.loads(line) for line in invoke("list", "--store", store, "--json").stdout.splitlines()]
    agent = next(row["agent"] for row in rows if row["verdict"] == "failed")
    selected = list_ids(store, "--cause-agent", agent)
    assert selected == [row["run_id"] for row in rows if row["agent"] == agent]
    again = invoke("diagnose", "--store", store, "--cause-agent", agent)
    assert again.stdout.splitlines()[-1].startswith(f"{len(selected)} runs")


def test_list_search_prints_runs_with_their_matches(store: str) -> None:
    (run,) = (
        json.loads(line)
        for line in invoke("list", "--store", store, "--search", "TEAPOT", "--json").stdout.splitlines()
    )
    assert run["run_id"] == "02-teapot"
    assert run["matches"][0]["match"].lower() == "teapot"
    result = invoke("list", "--store", store, "--search", "teapot")
    lines = result.stdout.splitlines()
    assert lines[0] == "02-teapot: not diagnosed"
    assert lines[1].startswith("  step ")
    assert "teapot" in lines[1]
    assert lines[-1] == "1 run"


def test_list_search_names_limit_if_more_runs_match(store: str) -> None:
    result = invoke("list", "--store", store, "--search", "the", "--limit", "1")
    assert result.stdout.splitlines()[-1] == "1 run"
    assert "increase --limit" in result.stderr


def test_list_prints_a_table(store: str) -> None:
    invoke("diagnose", "--store", store)
    text = invoke("list", "--store", store).stdout
    (line,) = (line for line in text.splitlines() if line.startswith("04-wine-bottle"))
    assert "failed" in line
    assert "step 7 · assistant" in line
    assert "Impossible plan" in line


def test_diagnose_of_named_run_repeats_it(store: str) -> None:
    for _ in range(2):
        result = invoke("diagnose", "02-teapot", "--store", store, "--json")
        assert json.loads(result.stdout)["verdict"] == "no_failure_found"


def test_show_prints_the_latest_diagnosis(store: str) -> None:
    missing = invoke("show", "04-wine-bottle", "--store", store)
    assert missing.exit_code == 1
    assert "not diagnosed" in missing.stderr
    invoke("diagnose", "--store", store)
    shown = invoke("show", "04-wine-bottle", "--store", store)
    assert shown.exit_code == 0
    assert "root cause      step 7" in shown.stdout
    assert (
        json.loads(invoke("show", "04-wine-bottle", "--store", store, "--json").stdout)["verdict"] == "failed"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nobody"], "has no run 'nobody'"),
        (["list", "--since", "yesterday"], "--since: 'yesterday' is not an age"),
        (["diagnose", "nobody"], "has no run 'nobody'"),
    ],
)
def test_wrong_arguments_are_named(store: str, arguments: list[str], message: str) -> None:
    result = invoke(*arguments, "--store", store)
    assert result.exit_code == 2
    assert message in result.stderr


def test_show_prints_the_recoveries_of_the_guard(tmp_path: Path) -> None:
    address = str(tmp_path / "guarded.db")
    with Store.open(address) as store:
        guard = Guard(store=store)

        @guard.tool(effect="destructive")
        def charge(amount: int) -> str:
            return f"charged {amount}, receipt 7"

        call = {"name": "charge", "arguments": '{"amount": 20}'}
        calls = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": call}],
        }
        answers = [calls, calls, "I charged 20."]
        with guard.run("Charge 20.", tools=[charge], id="trip") as run:
            while not run.done:
                run.tools(run.model(lambda messages: answers.pop(0)))
        assert guard.flush()
    shown = invoke("show", "trip", "--store", address)
    assert shown.exit_code == 0
    assert "step 2 · reprompt · repeated_call · confirmed" in shown.stdout


def test_show_prints_effects_with_unknown_outcome(tmp_path: Path) -> None:
    url = str(tmp_path / "s.db")
    with Store.open(url) as opened:
        guard = Guard(store=opened)

        @guard.tool(effect="destructive")
        def charge(amount: int) -> str:
            """Charge the card."""
            raise TimeoutError("the payment service timed out")

        arguments = {
            "id": "c",
            "type": "function",
            "function": {"name": "charge", "arguments": '{"amount": 30}'},
        }
        answers = iter([{"role": "assistant", "content": None, "tool_calls": [arguments]}, "Not confirmed."])
        with guard.run("Charge 30 euros.", tools=[charge], id="r") as run:
            while not run.done:
                run.tools(run.model(lambda messages, tools: next(answers)))
        opened.flush(20)
    output = " ".join(invoke("show", "r", "--store", url).output.split())
    assert (
        "effect step 1 · charge {'amount': 30} · ambiguous · unknown whether the call took effect" in output
    )


def test_show_computes_the_cost_with_the_prices_of_the_policy(tmp_path: Path) -> None:
    path, policy = str(tmp_path / "runs.db"), tmp_path / "policy.yaml"
    policy.write_text('prices: {"m*": {input: 2, output: 10}}\n')
    usage = Usage(prompt_tokens=500_000, completion_tokens=100_000)
    step = Step(index=0, source=Source.AGENT, agent="a", content="Done.", model="m1", usage=usage)
    with Store.open(path) as opened:
        opened.write_run(Trajectory(id="r", format="f", task="t", steps=(step,)))
    invoke("diagnose", "--store", path)
    assert "$" not in invoke("show", "r", "--store", path).stdout
    assert "· $2 ·" in invoke("show", "r", "--store", path, "--policy", str(policy)).stdout


def test_missing_store_is_named_with_the_way_out(tmp_path: Path) -> None:
    result = invoke("list", "--store", str(tmp_path / "none.db"))
    assert result.exit_code == 2
    assert "create one with `agentguard store init`" in result.stderr


def test_diagnose_of_one_run_compares_it_with_the_other_runs_of_the_store(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    sample = load_trajectory("samples/09-watering-can.json")
    with Store.open(path) as opened:
        for number in range(22):
            opened.write_run(replace(sample, id=f"run-{number}"))
        opened.flush(10)
    result = invoke("diagnose", "run-7", "--store", path, "--json")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    diagnosis = json.loads(line)
    assert (diagnosis["trajectory_id"], diagnosis["basis"]) == ("run-7", "other_runs")
    assert any("21 other runs of this agent" in note for note in diagnosis["notes"])


def test_concurrent_diagnoses_of_stored_runs_give_the_same_answers(store: str, tmp_path: Path) -> None:
    def diagnose(jobs: int, script: Script) -> list[dict[str, object]]:
        with serving(script) as (url, _):
            policy = tmp_path / f"{jobs}.yaml"
            policy.write_text(json.dumps({"judge": {"base_url": url, "swap": False}}))
            words = ["diagnose", *SAMPLES, "--store", store, "--policy", str(policy), "--json"]
            result = invoke(*words, "--jobs", str(jobs))
        assert result.exit_code == 0, result.output
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        return [{name: row[name] for name in ("trajectory_id", "verdict", "hypotheses")} for row in rows]

    alone = diagnose(1, Script())
    together = Script(meet=2, models=("another",))  # the store has the answers of the first model
    assert diagnose(3, together) == alone
    assert together.most_at_once >= 2
