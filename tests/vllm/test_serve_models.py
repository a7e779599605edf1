"""``agentguard judge serve`` of a model with full attention on a real vLLM, with the chosen flags."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from agentguard.evals.judge_checks.attack_runner import build_targets
from agentguard.judge.base import RUN_FAILED
from agentguard.judge.llm.chat_judge import ChatJudge, ChatOptions
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import EndpointOptions
from tests.judge_process import serving
from tests.vllm_server import CPU_ENVIRONMENT
from tests.vllm_setup import PYTHON, ROOT, WEIGHTS, missing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FLAGS = ("--offline", "--health-interval", "1", "--startup-timeout", "600")
CPU_FLAGS = ("--dtype", "float32", "--max-num-seqs", "8", "--enforce-eager")


@pytest.fixture(scope="module")
def full_attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model with full attention and random weights."""
    if lacking := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(lacking)
        pytest.skip(lacking)
    folder = tmp_path_factory.mktemp("full-attention")
    script = ROOT / "tests" / "vllm_full_attention.py"
    subprocess.run([str(PYTHON), str(script), str(WEIGHTS), str(folder)], check=True)
    return folder


def test_full_attention_model_starts_answers_and_stops(full_attention: Path, tmp_path: Path) -> None:
    log = ("--log", str(tmp_path / "server.log"))
    with serving(
        str(full_attention), PYTHON, *FLAGS, *log, "--", *CPU_FLAGS, environment=CPU_ENVIRONMENT
    ) as served:
        ready = served.until("ready")
        assert ready["canary"]["asked"] == 3
        assert ready["restarts"] == 0
        judge = ChatJudge(
            JudgeEndpoint(ready["url"], options=EndpointOptions(deadline_s=60)),
            options=ChatOptions(deadline_s=60),
        )
        try:
            (answer,) = judge.decide(build_targets()[0].run, (RUN_FAILED,))
        finally:
            judge.close()
        assert answer.error is None
        assert 0 < answer.usage["label_mass"] < 0.5, "a random model wants to write another token"
        served.process.terminate()
        assert served.until("stopped")["pid"] is None


def test_unknown_flag_fails_at_once_with_the_message_of_vllm(full_attention: Path, tmp_path: Path) -> None:
    log = ("--log", str(tmp_path / "server.log"))
    flags = (*FLAGS, *log, "--", *CPU_FLAGS, "--no-such-flag")
    with serving(str(full_attention), PYTHON, *flags, environment=CPU_ENVIRONMENT) as served:
        given_up = served.until("given_up")
        assert "error: unrecognized arguments: --no-such-flag" in given_up["reason"]
        assert given_up["restarts"] == 0
        assert served.process.wait(60) == 1


def test_retention_interval_for_full_attention_fails_with_the_cause(
    full_attention: Path, tmp_path: Path
) -> None:
    log = ("--log", str(tmp_path / "server.log"))
    flags = (*FLAGS, *log, "--", *CPU_FLAGS, "--prefix-cache-retention-interval", "32")
    with serving(str(full_attention), PYTHON, *flags, environment=CPU_ENVIRONMENT) as served:
        given_up = served.until("given_up")
        assert "ValueError: prefix_cache_retention_interval is set" in given_up["reason"]
        assert given_up["restarts"] == 1
