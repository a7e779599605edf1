"""The command that starts vLLM: its flags, no secrets among them, and clear errors."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from agentguard.errors import ConfigError
from agentguard.judge.vllm.command import ServeOptions, build_command, build_environment


def test_configured_interpreter_is_used() -> None:
    made = build_command(ServeOptions(model="m", python=Path(sys.executable), max_model_len=2048), 1234)
    assert made[:5] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "m"]
    told = dict(itertools.pairwise(made))
    assert told["--port"] == "1234"
    assert told["--max-model-len"] == "2048"
    assert told["--host"] == "127.0.0.1"
    assert told["--served-model-name"] == "judge"


def test_command_on_path_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    made = build_command(ServeOptions(model="m", extra_args=("--dtype", "bfloat16")), 1)
    assert made[:3] == [str(program), "serve", "m"]
    assert made[-2:] == ["--dtype", "bfloat16"]


def test_missing_vllm_error_explains_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="pip install vllm"):
        build_command(ServeOptions(model="m"), 1)
    with pytest.raises(ConfigError, match="no interpreter"):
        build_command(ServeOptions(model="m", python=tmp_path / "python"), 1)


def test_key_is_passed_only_in_environment() -> None:
    options = ServeOptions(model="m", python=Path(sys.executable), api_key="hush", offline=True)
    assert "hush" not in " ".join(build_command(options, 1))
    told = build_environment(options, {"HOME": "/home/me"})
    assert told["VLLM_API_KEY"] == "hush"
    assert told["HF_HUB_OFFLINE"] == "1"
    assert told["VLLM_NO_USAGE_STATS"] == told["DO_NOT_TRACK"] == "1"
    assert told["HOME"] == "/home/me"
    assert "VLLM_API_KEY" not in build_environment(ServeOptions(model="m"), {})


def test_pooling_model_is_served_without_prompt_flags() -> None:
    made = build_command(ServeOptions(model="m", task="classify", python=Path(sys.executable)), 1)
    assert dict(itertools.pairwise(made))["--runner"] == "pooling"
    assert {"--shutdown-timeout", "--max-num-queued-reqs"} < set(made)
    assert not {"--block-size", "--prefix-cache-retention-interval"} & set(made)
    assert "--runner" not in build_command(ServeOptions(model="m", python=Path(sys.executable)), 1)
