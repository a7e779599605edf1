"""Checkpoints of tiny hybrid models with random weights: full attention beside layers that keep a state.

Run with the Python of the server's own environment: ``python tests/vllm_hybrid.py KIND TOKENIZER FOLDER``.
The tokenizer is that of the folder TOKENIZER. The answers are random: tests check flags, requests and
probabilities with them. Real configurations of LFM2 have the keys ``block_dim`` and ``conv_dim``, which vLLM
reads and transformers does not write.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

KINDS = ("lfm2", "granite", "qwen3_next")
"""Kinds of layers beside full attention: short convolution, Mamba 2, linear attention."""

_TEMPLATE = (
    "{% for m in messages %}<start_of_turn>{{ m['role'] }}\n{{ m['content'] }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def main(kind: str, tokenizer: Path, folder: Path) -> None:
    """Write config, tokenizer and weights into ``folder``."""
    import torch  # type: ignore[import-not-found]

    torch.manual_seed(0)
    words = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    model = _build_model(kind, words).to(torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.2)
    model.save_pretrained(folder)
    shutil.copy(tokenizer / "tokenizer.json", folder / "tokenizer.json")
    settings = json.loads((tokenizer / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": _TEMPLATE}))


def _build_model(kind: str, words: int) -> Any:
    import transformers  # type: ignore[import-not-found]

    shared: dict[str, Any] = {
        "vocab_size": words,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 8192,
        "bos_token_id": 2,
        "eos_token_id": 106,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    if kind == "lfm2":
        return transformers.Lfm2ForCausalLM(
            transformers.Lfm2Config(
                **shared,
                layer_types=["conv", "full_attention"] * 2,
                block_auto_adjust_ff_dim=False,
                block_dim=64,
                conv_dim=64,
                conv_L_cache=3,
            )
        )
    if kind == "granite":
        return transformers.GraniteMoeHybridForCausalLM(
            transformers.GraniteMoeHybridConfig(
                **shared,
                layer_types=["mamba", "attention"] * 2,
                shared_intermediate_size=128,
                num_local_experts=0,
                num_experts_per_tok=0,
                mamba_n_heads=4,
                mamba_d_head=32,
                mamba_d_state=16,
                mamba_n_groups=1,
                mamba_expand=2,
                mamba_d_conv=4,
            )
        )
    return transformers.Qwen3NextForCausalLM(
        transformers.Qwen3NextConfig(
            **shared,
            layer_types=["linear_attention", "full_attention"] * 2,
            head_dim=64,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=64,
            linear_value_head_dim=64,
            linear_conv_kernel_dim=4,
            num_experts=4,
            num_experts_per_tok=1,
            decoder_sparse_step=1,
            moe_intermediate_size=64,
            shared_expert_intermediate_size=64,
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
