"""Recommended judge models by GPU memory.

The choice is based on published accuracy of step localization with one served model (docs/cli/judge.md).
Memory and speed of ``80gb`` were measured on an H100, with random weights (docs/chat-judge.md). Accuracy and
the other presets were not measured on a GPU.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agentguard.errors import ConfigError
from agentguard.judge.vllm.model_facts import Attention, ModelFacts

_MIB_PER_GB: Final = 953.7
_QUERY_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePreset:
    """Recommended model for a GPU.

    Attributes:
        memory_gb: required memory of the GPU, in GB.
        model: name on Hugging Face.
        precision: precision of the weights.
        max_model_len: longest prompt and answer in tokens.
        max_num_batched_tokens: tokens of one engine step; larger steps read long runs faster.
        reason: reason for the model.
        facts: facts about the model, for a machine without its configuration files.
    """

    memory_gb: int
    model: str
    precision: str
    max_model_len: int
    max_num_batched_tokens: int
    reason: str
    facts: ModelFacts


_QWEN3_FACTS: Final = ModelFacts(attention=Attention.FULL, has_thinking_switch=True, max_model_len=40_960)
_GPT_OSS_FACTS: Final = ModelFacts(attention=Attention.SLIDING, max_model_len=131_072)

PRESETS: Final[Mapping[str, ServePreset]] = {
    "24gb": ServePreset(
        memory_gb=24,
        model="openai/gpt-oss-20b",
        precision="MXFP4",
        max_model_len=32_768,
        max_num_batched_tokens=8_192,
        facts=_GPT_OSS_FACTS,
        reason="33.3 % of root-cause steps on Who&When AG in one call, as Qwen3-32B (34.9 %) with a quarter "
        "of the memory; it answers after reasoning, so give the policy judge: {reasoning_tokens: 2048}",
    ),
    "48gb": ServePreset(
        memory_gb=48,
        model="Qwen/Qwen3-32B-FP8",
        precision="FP8",
        max_model_len=20_480,
        max_num_batched_tokens=8_192,
        facts=_QWEN3_FACTS,
        reason="34.9 % of root-cause steps on Who&When AG in one call (BF16); full attention, so that the "
        "prefix cache works without experimental options",
    ),
    "80gb": ServePreset(
        memory_gb=80,
        model="Qwen/Qwen3-32B-FP8",
        precision="FP8",
        max_model_len=40_960,
        max_num_batched_tokens=16_384,
        facts=_QWEN3_FACTS,
        reason="as 48gb, with the model's whole native context and room for more concurrent runs",
    ),
    "141gb": ServePreset(
        memory_gb=141,
        model="Qwen/Qwen3-32B",
        precision="BF16",
        max_model_len=40_960,
        max_num_batched_tokens=16_384,
        facts=_QWEN3_FACTS,
        reason="as 80gb, in the precision of the published figures; an alternative is Llama-3.3-70B in FP8 "
        "(43.7 % and 20.7 % on Who&When AG and HC, with several calls per run)",
    ),
}


def detect_gpu_memory_gb() -> float | None:
    """Return the memory of the smallest GPU in GB, as ``nvidia-smi`` lists it; None without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        answer = subprocess.run(  # noqa: S603  (the driver's own tool)
            [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_QUERY_TIMEOUT_S,
            check=True,
        )
        return min(float(line) for line in answer.stdout.split()) / _MIB_PER_GB
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def select_preset(memory_gb: float | None) -> ServePreset:
    """Return the largest preset that fits the memory.

    Raises:
        ConfigError: there is no GPU, or it is too small for every preset.
    """
    names = ", ".join(PRESETS)
    if memory_gb is None:
        raise ConfigError(f"judge serve: nvidia-smi lists no GPU; name a model, or a preset: {names}")
    # Vendors round: a GPU of 24 GB reports 23 to 26, one of 141 GB reports 139 to 151.
    fitting = [preset for preset in PRESETS.values() if preset.memory_gb <= memory_gb * 1.05]
    if not fitting:
        raise ConfigError(
            f"judge serve: the GPU has {memory_gb:.0f} GB, and the smallest preset needs 24: name a model"
        )
    return fitting[-1]
