"""The committed sample runs: readable, reproducible, small, and equal to the recorder's output."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentguard.trajectory.formats.reader import read as read_runs
from agentguard.trajectory.model import Annotation, Record, Source

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "samples"
RECORDER = ROOT / "examples" / "record_samples.py"
FILES = sorted(SAMPLES.glob("*.json"))
LABELS: dict[str, Any] = yaml.safe_load((SAMPLES / "labels.yaml").read_text(encoding="utf-8"))
each_sample = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def load(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def steps(messages: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return messages by step: the system message, the task, then each assistant turn with its results."""
    out: list[list[dict[str, Any]]] = []
    for message in messages:
        if message["role"] == "tool":
            out[-1].append(message)
        else:
            out.append([message])
    return out


def test_failed_runs_of_different_kinds_and_passed_runs_exist() -> None:
    failed = [label for label in LABELS["runs"].values() if label["failed"]]
    codes = {code for label in failed for code in label["root_cause"]["codes"]}
    assert len(failed) >= 6
    assert len(codes) == len(failed)
    assert sum(not label["failed"] for label in LABELS["runs"].values()) >= 2


def test_labels_name_exactly_the_files() -> None:
    assert sorted(LABELS["runs"]) == [path.name for path in FILES]
    assert "injected" in LABELS["about"]


def test_folder_is_small() -> None:
    assert sum(path.stat().st_size for path in SAMPLES.iterdir()) <= 400_000
    assert all(path.stat().st_size <= 40_000 for path in FILES)


@each_sample
def test_messages_begin_with_system_and_task(path: Path) -> None:
    run = load(path)
    assert [message["role"] for message in run["messages"][:3]] == ["system", "user", "assistant"]
    assert run["messages"][1]["content"].startswith("The task: ")
    assert run["id"] == path.stem
    assert 8 <= sum(message["role"] == "assistant" for message in run["messages"]) <= 25


@each_sample
def test_every_call_has_its_result_in_the_same_step(path: Path) -> None:
    seen: set[str] = set()
    for first, *results in steps(load(path)["messages"]):
        calls = [call["id"] for call in first.get("tool_calls", [])]
        assert [result["tool_call_id"] for result in results] == calls
        assert not seen.intersection(calls)
        seen.update(calls)


@each_sample
def test_tools_are_json_schemas_and_calls_name_them(path: Path) -> None:
    import jsonschema_rs

    run = load(path)
    offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in run["tools"]}
    for schema in offered.values():
        jsonschema_rs.meta.validate(schema)
    for message in run["messages"]:
        for call in message.get("tool_calls", []):
            assert call["function"]["name"] in offered


@each_sample
def test_agent_writes_text_in_every_turn(path: Path) -> None:
    texts = [m["content"] for m in load(path)["messages"] if m["role"] == "assistant"]
    assert all(len(text) > 20 for text in texts)
    assert len(set(texts)) >= 0.9 * len(texts)


@each_sample
def test_label_matches_the_run(path: Path) -> None:
    run, label = load(path), LABELS["runs"][path.name]
    won = any("*** The End ***" in m["content"] for m in run["messages"] if m["role"] == "tool")
    assert label["failed"] is not won
    if not label["failed"]:
        assert "root_cause" not in label
        return
    cause = label["root_cause"]
    step = steps(run["messages"])[cause["step"]]
    assert step[0]["role"] == "assistant"
    assert cause["codes"][0] == f"agent_error:{cause['module']}.{cause['codes'][0].partition('.')[2]}"
    assert cause["reason"]


@each_sample
def test_run_excludes_its_label(path: Path) -> None:
    run = load(path)
    assert set(run) == {"id", "metadata", "tools", "messages"}
    assert set(run["metadata"]) == {"environment", "game", "game_seed", "max_turns"}
    text = path.read_text(encoding="utf-8").lower()
    assert not any(word in text for word in ("root_cause", "agent_error", "inject", "hallucinat"))


def test_folder_is_read_with_the_steps_of_the_labels() -> None:
    read = list(read_runs(SAMPLES))
    assert [item.trajectory.id for item in read if isinstance(item, Record)] == [p.stem for p in FILES]
    for item in read:
        assert isinstance(item, Record)
        run = item.trajectory
        assert run.format == "openai_chat"
        assert item.annotation == Annotation()
        assert len(run.steps) == len(steps(load(SAMPLES / f"{run.id}.json")["messages"]))
        cause = LABELS["runs"][f"{run.id}.json"].get("root_cause")
        if cause:
            assert run.steps[cause["step"]].agent == cause["agent"]
            assert run.steps[cause["step"]].source is Source.AGENT


def test_run_at_its_limit_has_no_final_answer() -> None:
    for name, label in LABELS["runs"].items():
        last = load(SAMPLES / name)["messages"][-1]
        assert (last["role"] == "tool") is (label["ended_by"] == "turn_limit")


def test_documentation_names_the_labelled_steps_and_codes() -> None:
    page = (ROOT / "docs" / "samples.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\d\d-[\w-]+)` \|.*\| (\S+) \| (\S+) \|$", page, re.MULTILINE)
    expected = []
    for name, label in LABELS["runs"].items():
        cause = label.get("root_cause")
        code = f"`{cause['codes'][0].removeprefix('agent_error:')}`" if cause else "–"
        expected.append((name.removesuffix(".json"), str(cause["step"]) if cause else "–", code))
    assert rows == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["08-lettuce-and-apple", "11-letter"])
def test_repeated_recording_gives_the_committed_bytes(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("textworld") is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("needs TextWorld: pip install agentguard-lab")
    # A separate process: TextWorld's imports leave no warnings or state behind here.
    command = [sys.executable, str(RECORDER), "--out", str(tmp_path), "--only", name]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    assert (tmp_path / f"{name}.json").read_bytes() == (SAMPLES / f"{name}.json").read_bytes()


def test_missing_extra_error_explains_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "textworld", None)
    monkeypatch.setattr(sys, "argv", [str(RECORDER), "--out", str(tmp_path)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(RECORDER), run_name="__main__")
    assert end.value.code == 2
    assert "pip install agentguard-lab" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
