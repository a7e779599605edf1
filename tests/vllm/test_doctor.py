"""The doctor at a real vLLM that is a proxy's backend and its policy's judge, running and killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.evals.judge_checks.reference_cases import build_reference_runs
from tests.vllm_server import VllmServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]


@pytest.fixture
def config(vllm: VllmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a proxy's configuration in a separate folder, independent of this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTGUARD_STORE", raising=False)
    monkeypatch.delenv("AGENTGUARD_JUDGE_KEY", raising=False)
    path = tmp_path / "proxy.yaml"
    replica = {"name": "tiny", "url": vllm.url, "models": {"judge": "judge"}}
    # The tiny model prefers other text to the options; only the form of its answers is checked.
    judge = {"base_url": vllm.url, "deadline_s": 240, "min_label_mass": 0}
    told = {"listen": {"port": 0}, "backends": {"replicas": [replica]}, "guard": {"policy": {"judge": judge}}}
    path.write_text(json.dumps(told))
    return path


def doctor(path: Path, *more: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Return the exit status, and the lines by area."""
    result = CliRunner().invoke(build_app(), ["doctor", str(path), "--json", "--timeout", "120", *more])
    held: dict[str, list[dict[str, str]]] = {}
    data: dict[str, Any] = json.loads(result.output)
    assert data["ok"] == (result.exit_code == 0)
    for one in data["checks"]:
        held.setdefault(one["area"], []).append(one)
    return result.exit_code, held


def test_real_server_passes_as_backend_and_judge(vllm: VllmServer, config: Path) -> None:
    status, found = doctor(config)
    assert status == 0, found
    (backend,), (judge,) = found["backends"], found["judge"]
    assert (backend["condition"], judge["condition"], judge["what"]) == ("ok", "ok", vllm.url)
    assert judge["found"].startswith("judge (")
    assert "structured outputs" in judge["found"]


def test_doctor_reports_accuracy_like_judge_check(vllm: VllmServer, config: Path) -> None:
    status, found = doctor(config, "--probe")
    structured, judging = found["judge"]
    assert structured["condition"] == "ok"
    count = len(build_reference_runs())
    assert f"({count} of {count} reference runs answered)" in judging["found"]
    # The tiny model may be below chance; the report must be consistent with its figure.
    above = judging["found"].startswith(("the judge distinguishes", "the judge is better than chance"))
    assert judging["condition"] == ("ok" if above else "wrong")
    assert status == (0 if above else 1)
    assert above or "agentguard judge check" in judging["remedy"]


@pytest.mark.kills
def test_killed_server_fails_with_remedy(vllm: VllmServer, config: Path) -> None:
    vllm.kill()
    status, found = doctor(config)
    assert status == 1
    (backend,), (judge,) = found["backends"], found["judge"]
    assert (backend["condition"], judge["condition"]) == ("wrong", "wrong")
    assert judge["found"].startswith("unreachable")
    assert judge["remedy"]
    assert backend["remedy"]
