"""Export of acceptance test records as training data; it contains exactly the records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.store import Store
from agentguard.store.db.rows import AcceptanceRow
from agentguard.trajectory.formats.reader import load_records

ASKED: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Which?"},
]
OTHER: list[dict[str, Any]] = [{"role": "user", "content": "And who?"}]
KEY = "sk-proj-" + "a1B2c3D4" * 6


def entry(output: str, accepted: bool, *, run: str = "r1", given: Any = None, **more: Any) -> AcceptanceRow:
    data = {"input": ASKED if given is None else given, "output": output, "checks": [], **more}
    tenant = str(data.pop("tenant", ""))
    return AcceptanceRow(run_id=run, accepted=accepted, data=data, tenant=tenant)


def stored(tmp_path: Path, rows: Iterable[AcceptanceRow]) -> str:
    place = tmp_path / "runs.db"
    with Store.open(place) as store:
        store.write(*rows)
        store.flush()
    return str(place)


def export(url: str, to: str, *more: str) -> tuple[int, list[Any], str]:
    ended = CliRunner().invoke(build_app(), ["convert", "--to", to, "--store", url, *more])
    return ended.exit_code, [json.loads(line) for line in ended.stdout.splitlines()], ended.stderr


def test_sft_export_contains_only_accepted_outputs(tmp_path: Path) -> None:
    url = stored(tmp_path, [entry("order 4711", False), entry("4711", True), entry("Ann", True, given=OTHER)])
    status, lines, told = export(url, "sft")
    assert status == 0
    assert lines == [
        {"messages": [*ASKED, {"role": "assistant", "content": "4711"}]},
        {"messages": [*OTHER, {"role": "assistant", "content": "Ann"}]},
    ]
    assert "2 examples of 3 entries" in told


def test_preference_is_a_pair_of_one_input(tmp_path: Path) -> None:
    rows = [entry("order 4711", False), entry("4711", True, run="r2"), entry("Ann", True, given=OTHER)]
    status, lines, told = export(stored(tmp_path, rows), "preference")
    assert status == 0
    assert lines == [
        {
            "prompt": ASKED,
            "chosen": [{"role": "assistant", "content": "4711"}],
            "rejected": [{"role": "assistant", "content": "order 4711"}],
        }
    ]
    assert "1 without a counterpart" in told


def test_openai_format_contains_the_same_pairs(tmp_path: Path) -> None:
    url = stored(tmp_path, [entry("bad", False), entry("good", True)])
    _, ours, _ = export(url, "preference")
    _, theirs, _ = export(url, "preference_openai")
    assert theirs[0]["input"]["messages"] == ours[0]["prompt"]
    assert theirs[0]["preferred_output"] == ours[0]["chosen"]
    assert theirs[0]["non_preferred_output"] == ours[0]["rejected"]


def test_tools_are_part_of_an_example(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    url = stored(tmp_path, [entry("bad", False, tools=tools), entry("good", True, tools=tools)])
    assert export(url, "sft")[1][0]["tools"] == tools
    assert export(url, "preference")[1][0]["tools"] == tools
    assert export(url, "preference_openai")[1][0]["input"]["tools"] == tools


def test_duplicates_are_written_once_and_contradictions_omitted(tmp_path: Path) -> None:
    rows = [entry("4711", True), entry("4711", True, run="r2"), entry("4712", True), entry("4712", False)]
    status, lines, told = export(stored(tmp_path, rows), "sft")
    assert status == 0
    assert [line["messages"][-1]["content"] for line in lines] == ["4711"]
    assert "1 duplicates" in told
    assert "1 both accepted and refused" in told


def test_examples_per_input_are_limited(tmp_path: Path) -> None:
    rows = [entry(f"good {n}", True) for n in range(5)] + [entry(f"bad {n}", False) for n in range(5)]
    lines = export(stored(tmp_path, rows), "preference")[1]
    assert len(lines) == 4
    assert {line["chosen"][0]["content"] for line in lines} == {"good 0", "good 1"}
    assert {line["rejected"][0]["content"] for line in lines} == {"bad 0", "bad 1"}


def test_secrets_are_redacted_and_counted(tmp_path: Path) -> None:
    given = [{"role": "user", "content": f"My key is {KEY}."}]
    url = stored(tmp_path, [entry(f"Use {KEY}", True, given=given), entry("No.", False, given=given)])
    status, lines, told = export(url, "preference", "--redact")
    assert status == 0
    assert KEY not in json.dumps(lines)
    assert "[redacted:" in lines[0]["prompt"][0]["content"]
    assert "redacted:" in told
    assert "nothing" not in told
    assert KEY in json.dumps(export(url, "preference")[1]), "only where it is asked for"


def test_tenant_exports_only_its_own_records(tmp_path: Path) -> None:
    url = stored(tmp_path, [entry("mine", True, tenant="a"), entry("theirs", True, tenant="b")])
    lines = export(url, "sft", "--tenant", "a")[1]
    assert [line["messages"][-1]["content"] for line in lines] == ["mine"]
    status, none, told = export(url, "sft")
    assert (status, none) == (2, [])
    assert "0 examples of 0 entries" in told


def test_named_runs_are_selected(tmp_path: Path) -> None:
    url = stored(tmp_path, [entry("4711", True), entry("4712", True, run="r2")])
    assert [line["messages"][-1]["content"] for line in export(url, "sft", "r2")[1]] == ["4712"]


def test_unusable_entries_are_counted(tmp_path: Path) -> None:
    rows = [
        entry("", True),
        entry("x", True, given=[]),
        entry("y", True, given=["no message"]),
        entry("z", True),
    ]
    status, lines, told = export(stored(tmp_path, rows), "sft")
    assert status == 0
    assert len(lines) == 1
    assert "3 unreadable or empty" in told


def test_written_files_can_be_read_back(tmp_path: Path) -> None:
    url = stored(tmp_path, [entry("4711", True), entry("Ann", True, given=OTHER)])
    out = tmp_path / "sft.jsonl"
    assert export(url, "sft", "--output", str(out))[0] == 0
    runs = [one.trajectory for one in load_records(out)]
    assert [run.steps[-1].content for run in runs] == ["4711", "Ann"]
    assert [len(run.steps) for run in runs] == [3, 2]
    again = CliRunner().invoke(build_app(), ["convert", "--to", "sft", "--store", url, "--output", str(out)])
    assert again.exit_code == 2, "a file that is there is not replaced unasked"


@pytest.mark.parametrize(
    ("ways", "part"),
    [
        (["--to", "sft"], "--store"),
        (["--to", "sft", "--store", "x.db", "--format", "atif"], "--format"),
        (["--to", "atif", "--tenant", "a", "x"], "--tenant"),
        (["--to", "atif"], "name the runs"),
    ],
)
def test_contradictory_options_are_rejected(ways: list[str], part: str) -> None:
    ended = CliRunner().invoke(build_app(), ["convert", *ways])
    assert ended.exit_code == 2
    assert part in ended.output
