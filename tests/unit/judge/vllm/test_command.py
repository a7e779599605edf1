"""The command that starts vLLM: its flags with their reasons, no secrets among them, and clear errors."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.errors import ConfigError
from agentguard.judge.vllm.command import ServeOptions, build_command, build_environment, plan_command
from agentguard.judge.vllm.installation import VllmInstallation, find_program, inspect_installation
from agentguard.judge.vllm.model_facts import Attention, ModelFacts, classify_attention, read_model_facts
from agentguard.judge.vllm.presets import PRESETS, select_preset

GPU = VllmInstallation(program=("vllm", "serve"), version="0.32.0")
CPU = VllmInstallation(program=("python", "-m", "server"), version="0.32.0", is_cpu=True)
RETENTION = "--prefix-cache-retention-interval"


def argv(options: ServeOptions, installation: VllmInstallation = GPU, **facts: object) -> list[str]:
    return build_command(options, 1234, installation, ModelFacts(**facts)).argv  # type: ignore[arg-type]


def write_vllm(folder: Path, *, version: str = "0.32.0", help_text: str = "--host --port") -> Path:
    """Write an interpreter whose vLLM has a version and a help text."""
    program = folder / "python"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then echo vllm=={version}; else echo "{help_text}"; fi\n'
    )
    program.chmod(0o755)
    return program


def test_command_has_address_limits_and_name() -> None:
    made = argv(ServeOptions(model="m", max_model_len=2048))
    told = dict(itertools.pairwise(made))
    assert made[:3] == ["vllm", "serve", "m"]
    assert (told["--port"], told["--host"], told["--max-model-len"]) == ("1234", "127.0.0.1", "2048")
    assert told["--served-model-name"] == "judge"
    assert argv(ServeOptions(model="m"), CPU)[:5] == ["python", "-m", "server", "--model", "m"]


def test_extra_arguments_come_last() -> None:
    assert argv(ServeOptions(model="m", extra_args=("--dtype", "bfloat16")))[-2:] == ["--dtype", "bfloat16"]


@pytest.mark.parametrize(
    ("attention", "installation", "interval"),
    [
        (Attention.FULL, CPU, None),
        (Attention.FULL, GPU, None),
        (Attention.RECURRENT, GPU, None),
        (Attention.STATE_SPACE, GPU, None),
        (Attention.UNKNOWN, GPU, None),
        (Attention.SLIDING, CPU, "32"),
        (Attention.SLIDING, GPU, "128"),
    ],
)
def test_retention_interval_is_set_only_for_sliding_windows(
    attention: Attention, installation: VllmInstallation, interval: str | None
) -> None:
    told = dict(itertools.pairwise(argv(ServeOptions(model="m"), installation, attention=attention)))
    assert told.get(RETENTION) == interval
    assert ("--block-size" in told) is installation.is_cpu


def test_flag_unknown_to_the_installation_is_left_out_and_explained() -> None:
    old = VllmInstallation(program=("vllm", "serve"), flags=frozenset({"--host", "--port"}))
    made = build_command(ServeOptions(model="m"), 1, old, ModelFacts())
    assert [flag.name for flag in made.flags] == ["--host", "--port"]
    assert any(part == "(without --shutdown-timeout)" for part, _ in made.explain())
    assert all(reason for _, reason in made.explain())


def test_model_with_thinking_switch_answers_at_once_by_default() -> None:
    told = dict(itertools.pairwise(argv(ServeOptions(model="m"), has_thinking_switch=True)))
    assert json.loads(told["--default-chat-template-kwargs"]) == {"enable_thinking": False}
    assert "--default-chat-template-kwargs" not in argv(ServeOptions(model="m"))


@pytest.mark.parametrize(
    ("config", "attention"),
    [
        ({"model_type": "qwen3", "sliding_window": None, "use_sliding_window": False}, Attention.FULL),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, Attention.FULL),
        ({"model_type": "llama"}, Attention.FULL),
        ({"model_type": "mistral", "sliding_window": 4096}, Attention.SLIDING),
        ({"layer_types": ["sliding_attention", "full_attention"]}, Attention.SLIDING),
        ({"layer_types": ["full_attention"], "sliding_window": 4096}, Attention.FULL),
        ({"layer_types": ["linear_attention", "full_attention"]}, Attention.RECURRENT),
        ({"layer_types": ["conv", "full_attention"], "conv_L_cache": 3}, Attention.RECURRENT),
        ({"hybrid_override_pattern": "M-M*"}, Attention.STATE_SPACE),
        ({"mamba_d_state": 16, "num_hidden_layers": 2}, Attention.STATE_SPACE),
        ({"layer_types": ["mamba", "attention"], "mamba_n_heads": 4}, Attention.STATE_SPACE),
    ],
)
def test_attention_is_read_from_the_configuration(config: dict[str, object], attention: Attention) -> None:
    assert classify_attention(config) is attention


def test_facts_of_a_multimodal_model_are_those_of_its_text_part(tmp_path: Path) -> None:
    inner = {"layer_types": ["sliding_attention"], "max_position_embeddings": 8192}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": inner}))
    (tmp_path / "chat_template.jinja").write_text("{% if enable_thinking %}")
    facts = read_model_facts(list(tmp_path.iterdir()))
    assert facts == ModelFacts(attention=Attention.SLIDING, has_thinking_switch=True, max_model_len=8192)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_unreadable_configuration_leaves_the_facts_unknown(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert read_model_facts([tmp_path / "config.json"]) == ModelFacts()


def test_installation_reports_version_and_flags(tmp_path: Path) -> None:
    found = inspect_installation(write_vllm(tmp_path, help_text="  --host HOST  --no-x, --x"))
    assert (found.version, found.flags) == ("0.32.0", {"--host", "--no-x", "--x"})


def test_old_vllm_is_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vLLM is 0\.9\.2, and a judge needs 0\.32 or newer"):
        inspect_installation(write_vllm(tmp_path, version="0.9.2"))


def test_vllm_that_cannot_list_its_flags_is_refused_with_its_message(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho libcuda.so.1 is missing >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(ConfigError, match=r"libcuda\.so\.1 is missing"):
        inspect_installation(broken)


def test_missing_vllm_error_explains_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="pip install"):
        find_program(None)
    with pytest.raises(ConfigError, match="no interpreter"):
        find_program(tmp_path / "python")


def test_interpreter_of_the_command_on_the_path_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "vllm"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program(None) == ((str(script), "serve"), Path(sys.executable))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "judge.example"])
def test_address_for_other_machines_needs_a_key(host: str, tmp_path: Path) -> None:
    python = write_vllm(tmp_path)
    with pytest.raises(ConfigError, match="--api-key-env"):
        plan_command(ServeOptions(model="m", host=host, python=python), 1)
    assert plan_command(ServeOptions(model="m", host=host, api_key="k", python=python), 1).argv


def test_key_is_passed_only_in_environment() -> None:
    options = ServeOptions(model="m", api_key="hush", offline=True)
    assert "hush" not in " ".join(argv(options))
    told = build_environment(options, {"HOME": "/home/me"})
    assert told["VLLM_API_KEY"] == "hush"
    assert told["HF_HUB_OFFLINE"] == "1"
    assert told["VLLM_NO_USAGE_STATS"] == told["DO_NOT_TRACK"] == "1"
    assert told["HOME"] == "/home/me"
    assert "VLLM_API_KEY" not in build_environment(ServeOptions(model="m"), {})


def test_pooling_model_is_served_without_prompt_flags() -> None:
    made = argv(ServeOptions(model="m", task="classify"), CPU, attention=Attention.SLIDING)
    assert dict(itertools.pairwise(made))["--runner"] == "pooling"
    assert {"--shutdown-timeout", "--max-num-queued-reqs"} < set(made)
    assert not {"--block-size", RETENTION} & set(made)
    assert "--runner" not in argv(ServeOptions(model="m"))


@pytest.mark.parametrize(
    ("memory_gb", "name"), [(23.5, "24gb"), (47.6, "48gb"), (79.1, "80gb"), (95.0, "80gb"), (139.8, "141gb")]
)
def test_preset_follows_the_memory(memory_gb: float, name: str) -> None:
    assert select_preset(memory_gb) is PRESETS[name]


def test_preset_has_the_flags_of_its_model_without_the_configuration(tmp_path: Path) -> None:
    program = write_vllm(tmp_path, help_text="--default-chat-template-kwargs " + RETENTION)

    def plan(name: str) -> list[str]:
        preset = PRESETS[name]
        return plan_command(ServeOptions(model=preset.model, preset=preset, python=program), 1).argv

    assert "--default-chat-template-kwargs" in plan("48gb")
    assert RETENTION not in plan("48gb")
    assert RETENTION in plan("24gb")


def test_mistyped_preset_is_an_error_with_the_presets() -> None:
    result = CliRunner().invoke(build_app(), ["judge", "serve", "48g"])
    assert result.exit_code == 2
    assert "'48g' is not a preset; there are: 24gb, 48gb" in result.output


def test_environment_keeps_connections_longer_than_clients() -> None:
    name = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
    assert build_environment(ServeOptions(model="m"), {})[name] == "75"
    assert build_environment(ServeOptions(model="m"), {name: "9"})[name] == "9"
    parts = build_command(ServeOptions(model="m"), 1, GPU, ModelFacts()).explain()
    assert f"{name}=75" in [part for part, _ in parts]


def test_preset_sets_context_and_step_size() -> None:
    preset = PRESETS["48gb"]
    told = dict(itertools.pairwise(argv(ServeOptions(model=preset.model, preset=preset))))
    assert told["--max-model-len"] == str(preset.max_model_len)
    assert told["--max-num-batched-tokens"] == str(preset.max_num_batched_tokens)
    own = dict(itertools.pairwise(argv(ServeOptions(model="m", preset=preset, max_model_len=512))))
    assert own["--max-model-len"] == "512"


@pytest.mark.parametrize(("memory_gb", "part"), [(None, "lists no GPU"), (12.0, "has 12 GB")])
def test_machine_without_fitting_gpu_gets_an_error(memory_gb: float | None, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        select_preset(memory_gb)
