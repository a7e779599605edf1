"""Facts about a model, from its configuration files. The flags of its server depend on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import orjson

_STATE_SPACE_LAYERS: Final = ("mamba", "mamba2", "ssm")
_STATE_SPACE_KEYS: Final = (
    "hybrid_override_pattern",
    "layers_block_type",
    "mamba_d_state",
    "mamba_num_heads",
    "ssm_cfg",
    "state_size",
)
"""Keys of configurations with Mamba layers (Jamba, Nemotron-H, Falcon-H1, Granite 4)."""

_RECURRENT_LAYERS: Final = ("linear_attention", "recurrent", "conv")
_RECURRENT_KEYS: Final = ("linear_num_key_heads",)
"""Keys of configurations with layers of linear attention (Qwen3-Next)."""


class Attention(StrEnum):
    """Kind of a model's layers, on which the prefix cache depends.

    ``STATE_SPACE`` has Mamba layers; ``RECURRENT`` has linear attention or short convolutions (LFM2).
    """

    FULL = "full"
    SLIDING = "sliding"
    RECURRENT = "recurrent"
    STATE_SPACE = "state_space"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about a model.

    Attributes:
        attention: kind of its attention layers.
        has_thinking_switch: whether its chat template reads ``enable_thinking``.
        max_model_len: longest context in tokens; None if it is unknown.
    """

    attention: Attention = Attention.UNKNOWN
    has_thinking_switch: bool = False
    max_model_len: int | None = None


def read_model_facts(files: Sequence[Path]) -> ModelFacts:
    """Read the facts from ``config.json``, ``tokenizer_config.json`` and ``chat_template.jinja``.

    Files that are missing or not valid leave the facts unknown.
    """
    by_name = {file.name: file for file in files}
    config = _read_json(by_name.get("config.json"))
    texts = [_read_text(by_name.get(name)) for name in ("tokenizer_config.json", "chat_template.jinja")]
    inner = config.get("text_config")
    layers = inner if isinstance(inner, dict) else config
    length = layers.get("max_position_embeddings")
    return ModelFacts(
        attention=classify_attention(layers) if config else Attention.UNKNOWN,
        has_thinking_switch=any("enable_thinking" in text for text in texts),
        max_model_len=length if isinstance(length, int) else None,
    )


def list_local_files(model: str) -> list[Path]:
    """Return the configuration files of a model in a local folder; empty if it is not a folder."""
    folder = Path(model)
    return [file for file in folder.iterdir() if file.is_file()] if folder.is_dir() else []


def classify_attention(config: Mapping[str, Any]) -> Attention:
    """Return the kind of attention that a model's configuration describes."""
    kinds = config.get("layer_types")
    layers = [str(kind) for kind in kinds] if isinstance(kinds, list) else []
    for attention, names, keys in (
        (Attention.STATE_SPACE, _STATE_SPACE_LAYERS, _STATE_SPACE_KEYS),
        (Attention.RECURRENT, _RECURRENT_LAYERS, _RECURRENT_KEYS),
    ):
        if any(kind in names for kind in layers) or any(config.get(key) for key in keys):
            return attention
    if layers:
        return Attention.SLIDING if "sliding_attention" in layers else Attention.FULL
    uses_window = config.get("sliding_window") is not None and config.get("use_sliding_window") is not False
    return Attention.SLIDING if uses_window else Attention.FULL


def _read_text(file: Path | None) -> str:
    try:
        return "" if file is None else file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read_json(file: Path | None) -> dict[str, Any]:
    try:
        value = orjson.loads(_read_text(file) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
