"""``agentguard judge serve`` of models with full attention and of hybrids on a real vLLM, with its flags."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.evals.judge_checks.attack_runner import build_targets
from agentguard.judge.base import RUN_FAILED, build_root_cause_question
from agentguard.judge.llm.chat_judge import ChatJudge, ChatOptions
from agentguard.judge.llm.client import JudgeEndpoint
from agentguard.judge.llm.types import EndpointOptions
from tests.judge_process import serving
from tests.vllm_server import CPU_ENVIRONMENT, CPU_TYPE
from tests.vllm_setup import PYTHON, ROOT, WEIGHTS, missing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FLAGS = ("--offline", "--health-interval", "1", "--startup-timeout", "600")
CPU_FLAGS = ("--dtype", "float32", "--max-num-seqs", "8", "--enforce-eager")


def write_checkpoint(script: str, folder: Path, *kind: str) -> Path:
    """Write the checkpoint of a tiny model with random weights; skip the test without vLLM."""
    if lacking := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(lacking)
        pytest.skip(lacking)
    command = [str(PYTHON), str(ROOT / "tests" / script), *kind, str(WEIGHTS), str(folder)]
    subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    return folder


@pytest.fixture(scope="module")
def full_attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model with full attention."""
    return write_checkpoint("vllm_full_attention.py", tmp_path_factory.mktemp("full-attention"))


def test_full_attention_model_starts_answers_and_stops(full_attention: Path, tmp_path: Path) -> None:
    log = ("--log", str(tmp_path / "server.log"))
    with serving(
        str(full_attention), PYTHON, *FLAGS, *log, "--", *CPU_FLAGS, environment=CPU_ENVIRONMENT
    ) as served:
        ready = served.until("ready")
        assert ready["probe"]["asked"] == 3
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


@pytest.mark.parametrize(("kind", "has_cache"), [("lfm2", True), ("granite", False), ("qwen3_next", True)])
def test_hybrid_model_starts_and_answers_questions_about_a_run(
    kind: str, has_cache: bool, tmp_path: Path
) -> None:
    if kind == "qwen3_next" and CPU_TYPE != "bfloat16":
        pytest.skip("the CPU kernel of linear attention needs a processor with bfloat16")
    folder = write_checkpoint("vllm_hybrid.py", tmp_path / kind, kind)
    explained = CliRunner().invoke(
        build_app(), ["judge", "serve", str(folder), "--python", str(PYTHON), "--explain"]
    )
    assert ("--no-enable-prefix-caching" in explained.output) is not has_cache, explained.output
    log = ("--log", str(tmp_path / "server.log"))
    flags = ("--dtype", CPU_TYPE, *CPU_FLAGS[2:])
    with serving(str(folder), PYTHON, *FLAGS, *log, "--", *flags, environment=CPU_ENVIRONMENT) as served:
        ready = served.until("ready")
        assert ready["probe"]["asked"] == 3
        judge = ChatJudge(
            JudgeEndpoint(ready["url"], options=EndpointOptions(deadline_s=60)),
            options=ChatOptions(deadline_s=60, min_label_mass=0),
        )
        run = build_targets()[0].run
        try:
            answers = [judge.decide(run, (RUN_FAILED, build_root_cause_question(run))) for _ in range(2)]
        finally:
            judge.close()
        assert [answer.error for several in answers for answer in several] == [None] * 4
        assert all(answer.usage["prompt_tokens"] > 256 for several in answers for answer in several)
        assert bool(answers[1][0].usage["cached_tokens"]) is has_cache


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
