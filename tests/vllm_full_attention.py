"""Checkpoint of a tiny model with full attention and random weights, beside the converted Gemma.

Run with the Python of the server's own environment: ``python tests/vllm_full_attention.py TOKENIZER FOLDER``.
The architecture is that of Qwen3, the tokenizer that of the folder TOKENIZER. The answers are random: tests
check flags, requests and probabilities with it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

_HIDDEN, _LAYERS, _HEADS, _KV_HEADS, _HEAD_SIZE, _INNER = 64, 2, 2, 1, 64, 128
_TEMPLATE = (
    "{% for m in messages %}<start_of_turn>{{ m['role'] }}\n{{ m['content'] }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{% endif %}"
)


def main(tokenizer: Path, folder: Path) -> None:
    """Write config, tokenizer and weights into ``folder``."""
    import torch  # type: ignore[import-not-found]
    from safetensors.torch import save_file  # type: ignore[import-not-found]

    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(tokenizer / "tokenizer.json", folder / "tokenizer.json")
    settings = json.loads((tokenizer / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": _TEMPLATE}))
    words = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    (folder / "config.json").write_text(json.dumps(_config(words), indent=1))
    torch.manual_seed(0)
    weights = {name: torch.randn(shape) * 0.2 for name, shape in _shapes(words).items()}
    weights |= {name: torch.ones_like(held) for name, held in weights.items() if "norm" in name}
    save_file({name: held.contiguous() for name, held in weights.items()}, folder / "model.safetensors")


def _config(words: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "float32",
        "vocab_size": words,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_SIZE,
        "max_position_embeddings": 8192,
        "sliding_window": None,
        "use_sliding_window": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 2,
        "eos_token_id": 106,
        "pad_token_id": 0,
    }


def _shapes(words: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (words, _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
    }
    for layer in range(_LAYERS):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (_HIDDEN,),
                "post_attention_layernorm": (_HIDDEN,),
                "self_attn.q_proj": (_HEADS * _HEAD_SIZE, _HIDDEN),
                "self_attn.k_proj": (_KV_HEADS * _HEAD_SIZE, _HIDDEN),
                "self_attn.v_proj": (_KV_HEADS * _HEAD_SIZE, _HIDDEN),
                "self_attn.o_proj": (_HIDDEN, _HEADS * _HEAD_SIZE),
                "self_attn.q_norm": (_HEAD_SIZE,),
                "self_attn.k_norm": (_HEAD_SIZE,),
                "mlp.gate_proj": (_INNER, _HIDDEN),
                "mlp.up_proj": (_INNER, _HIDDEN),
                "mlp.down_proj": (_HIDDEN, _INNER),
            }.items()
        }
    return shapes


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
