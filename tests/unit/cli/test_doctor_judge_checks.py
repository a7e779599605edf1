"""The doctor at a policy's judges: real endpoints of both kinds, down, refusing, or misconfigured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentguard.cli import doctor_checks
from agentguard.cli.app import build_app
from agentguard.cli.doctor_checks import CheckContext, CheckResult
from tests.unit.evals.judge_checks.test_capability import knowing
from tests.unit.judge.chat_server import Script, closed_port, serving
from tests.unit.judge.pooling_server import Pooling, pooling

WRITES = '{"text": "yes"}'
TRAINED = {"question": "run_failed", "options": ["no", "yes"]}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the store of this checkout and the keys of this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTGUARD_STORE", raising=False)
    monkeypatch.delenv("AGENTGUARD_JUDGE_KEY", raising=False)


def config(folder: Path, judge: dict[str, Any]) -> Path:
    path = folder / "proxy.yaml"
    replica = {"name": "a", "url": f"http://127.0.0.1:{closed_port()}/v1"}
    told = {"listen": {"port": 0}, "backends": {"replicas": [replica]}, "guard": {"policy": {"judge": judge}}}
    path.write_text(json.dumps(told))
    return path


def judges(folder: Path, judge: dict[str, Any], **asked: Any) -> list[CheckResult]:
    found = doctor_checks.run_checks(
        CheckContext(config=config(folder, judge), **{"timeout_s": 60.0, **asked})
    )
    return [line for line in found if line.area == "judge"]


def test_chat_judge_that_follows_the_schema_passes(tmp_path: Path) -> None:
    with serving(Script(writes=WRITES)) as (url, _):
        (line,) = judges(tmp_path, {"base_url": url})
    assert (line.condition, line.what) == ("ok", url)
    assert "judge (/models/small), structured outputs" in line.found
    assert "--probe" in line.found


def test_chat_judge_that_ignores_the_schema_fails_with_remedy(tmp_path: Path) -> None:
    with serving(Script(writes="no JSON")) as (url, _):
        (line,) = judges(tmp_path, {"base_url": url})
    assert line.condition == "wrong"
    assert "no structured output: malformed" in line.found
    assert line.remedy


def test_each_replica_and_the_second_judge_are_checked(tmp_path: Path) -> None:
    away = f"http://127.0.0.1:{closed_port()}/v1"
    with serving(Script(writes=WRITES)) as (url, _):
        judge = {"replicas": [{"url": url}, away], "second": {"base_url": url}}
        found = judges(tmp_path, judge)
    assert [(line.what, line.condition) for line in found] == [(url, "ok"), (away, "wrong"), (url, "ok")]
    assert "unreachable" in found[1].found


def test_judge_receives_the_key_of_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGUARD_JUDGE_KEY", "hush")
    with serving(Script(writes=WRITES)) as (url, script):
        (line,) = judges(tmp_path, {"base_url": url})
        assert line.condition == "ok"
        assert set(script.keys) == {"Bearer hush"}
    assert "hush" not in str(line)


def test_accuracy_is_reported_on_request(tmp_path: Path) -> None:
    with serving(Script(writes=WRITES)) as (url, script):
        structured, judging = judges(tmp_path, {"base_url": url}, probe=True)
        assert len(script.seen) > 48
    assert structured.condition == "ok"
    assert judging.condition == "wrong", "it says the same of every run"
    assert "not better than chance" in judging.found
    assert "48 of 48 reference runs answered" in judging.found
    assert f"agentguard judge check {url}" in judging.remedy


def test_judge_above_chance_passes(tmp_path: Path) -> None:
    with serving(Script(writes=WRITES, prefer=knowing())) as (url, _):
        told = judges(tmp_path, {"base_url": url}, probe=True)[1]
    assert told.condition == "ok", told


def test_pooling_judge_answers_its_trained_questions(tmp_path: Path) -> None:
    steps = {"question": "root_cause*", "options": ["no", "yes"], "by": "step"}
    shown = {"question": "response_safety", "task": "score", "by": "shown"}
    with pooling() as (url, script):
        judge = {"kind": "pooling", "base_url": url, "classifiers": [TRAINED, steps, shown]}
        found = judges(tmp_path, judge)
        assert [line.condition for line in found] == ["ok"] * 3
        assert {"/classify", "/score"} < set(script.paths)
    assert found[0].found == "classify answers run_failed"


@pytest.mark.parametrize(
    ("trained", "script", "said"),
    [
        (
            {"question": "run_failed", "options": ["no", "yes", "maybe"]},
            Pooling(),
            "does not match the classifier",
        ),
        (TRAINED, Pooling(status=404), "no_model"),
    ],
)
def test_different_model_than_configured_fails(
    tmp_path: Path, trained: dict[str, Any], script: Pooling, said: str
) -> None:
    with pooling(script) as (url, _):
        (line,) = judges(tmp_path, {"kind": "pooling", "base_url": url, "classifiers": [trained]})
    assert line.condition == "wrong"
    assert said in line.found
    assert "--task classify" in line.remedy


def test_missing_key_is_reported_by_its_variable(tmp_path: Path) -> None:
    found = doctor_checks.run_checks(
        CheckContext(
            config=config(tmp_path, {"base_url": "http://127.0.0.1:1/v1", "api_key_env": "NO_SUCH_KEY"})
        )
    )
    assert [one for one in found if one.condition == "wrong" and "NO_SUCH_KEY" in one.found]


def test_canaries_are_sent_only_on_request(tmp_path: Path) -> None:
    with serving(Script(writes=WRITES)) as (url, script):
        path = str(config(tmp_path, {"base_url": url}))
        result = CliRunner().invoke(build_app(), ["doctor", path, "--json", "--timeout", "60"])
        asked = len(script.seen)
        assert asked == 1
        told = json.loads(result.output)
        assert [one["condition"] for one in told["checks"] if one["area"] == "judge"] == ["ok"]
        CliRunner().invoke(build_app(), ["doctor", path, "--json", "--timeout", "60", "--probe"])
        assert len(script.seen) > asked + 24
