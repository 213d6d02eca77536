"""Tiny model folders as Hugging Face keeps them, one of each family, with weights that depend on their names alone."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB = 32, 4, 2, 8, 24, 48
BASE = {
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": INTERMEDIATE,
    "vocab_size": VOCAB,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 12}
FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"model_type": "llama", "rope_scaling": LLAMA3_ROPE},
    "MistralForCausalLM": {"model_type": "mistral", "sliding_window": 5},
    "MixtralForCausalLM": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2ForCausalLM": {"model_type": "qwen2"},
    "Qwen3ForCausalLM": {"model_type": "qwen3", "tie_word_embeddings": True},
    "Qwen3MoeForCausalLM": {"model_type": "qwen3_moe", "num_experts": 4, "norm_topk_prob": True, **MOE},
    "Gemma3ForCausalLM": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "sliding_window": 5,
        "sliding_window_pattern": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "query_pre_attn_scalar": 10,
        "rope_local_base_freq": 500.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    "DeepseekV2ForCausalLM": {
        "model_type": "deepseek_v2",
        "num_key_value_heads": HEADS,
        "kv_lora_rank": 12,
        "q_lora_rank": 10,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "n_routed_experts": 4,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "topk_method": "greedy",
        "rms_norm_eps": 1e-6,  # of the two inner norms transformers takes no other
        "rope_scaling": YARN_ROPE,
        **MOE,
    },
}


def config_of(family: str) -> dict[str, Any]:
    config = BASE | FAMILIES[family] | {"architectures": [family]}
    if family == "DeepseekV2ForCausalLM":
        del config["head_dim"]
    return config


def tensors_of(family: str) -> dict[str, np.ndarray]:
    """All tensors of the family's checkpoint by name: norms near 1 (of Gemma near 0), the rest Gaussian."""
    config = config_of(family)
    shapes = dict(_tensor_shapes(family, config))
    centre = 0.0 if family.startswith("Gemma") else 1.0
    return {name: _tensor(name, dims, centre) for name, dims in shapes.items()}


def write_folder(folder: Path, family: str, num_files: int = 1, **changes: Any) -> Path:
    """The folder, its weights in so many files; `changes` go into config.json alone."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(family) | changes))
    tensors = tensors_of(family)
    if num_files == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {name: f"model-{number % num_files}.safetensors" for number, name in enumerate(tensors)}
    for file_name in set(weight_map.values()):
        part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == file_name}
        save_file(part, folder / file_name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def _tensor(name: str, dims: tuple[int, ...], centre: float) -> np.ndarray:
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    if len(dims) == 1:
        is_bias = name.endswith(".bias")
        return ((0 if is_bias else centre) + draw.normal(size=dims) * 0.3).astype(np.float32)
    spread = 1.0 if "embed" in name or "lm_head" in name else dims[-1] ** -0.5
    return (draw.normal(size=dims) * spread).astype(np.float32)


Shapes = Iterator[tuple[str, tuple[int, ...]]]


def _tensor_shapes(family: str, config: dict[str, Any]) -> Shapes:
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (VOCAB, HIDDEN)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        norms = ["input_layernorm", "post_attention_layernorm"]
        if family.startswith("Gemma"):
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for norm in norms:
            yield f"{prefix}.{norm}.weight", (HIDDEN,)
        attention = _latent_attention if "kv_lora_rank" in config else _attention
        yield from attention(f"{prefix}.self_attn", family, config)
        yield from _mlp(prefix, layer, family, config)


def _attention(prefix: str, family: str, config: dict[str, Any]) -> Shapes:
    for part, num_heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        yield f"{prefix}.{part}_proj.weight", (num_heads * HEAD_DIM, HIDDEN)
        if family == "Qwen2ForCausalLM":
            yield f"{prefix}.{part}_proj.bias", (num_heads * HEAD_DIM,)
    yield f"{prefix}.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)
    if family.startswith(("Qwen3", "Gemma")):
        yield f"{prefix}.q_norm.weight", (HEAD_DIM,)
        yield f"{prefix}.k_norm.weight", (HEAD_DIM,)


def _latent_attention(prefix: str, family: str, config: dict[str, Any]) -> Shapes:
    latent, query_latent, value = config["kv_lora_rank"], config["q_lora_rank"], config["v_head_dim"]
    plain, turned = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    yield f"{prefix}.q_a_proj.weight", (query_latent, HIDDEN)
    yield f"{prefix}.q_a_layernorm.weight", (query_latent,)
    yield f"{prefix}.q_b_proj.weight", (HEADS * (plain + turned), query_latent)
    yield f"{prefix}.kv_a_proj_with_mqa.weight", (latent + turned, HIDDEN)
    yield f"{prefix}.kv_a_layernorm.weight", (latent,)
    yield f"{prefix}.kv_b_proj.weight", (HEADS * (plain + value), latent)
    yield f"{prefix}.o_proj.weight", (HIDDEN, HEADS * value)


def _mlp(prefix: str, layer: int, family: str, config: dict[str, Any]) -> Shapes:
    if family == "MixtralForCausalLM":
        yield f"{prefix}.block_sparse_moe.gate.weight", (4, HIDDEN)
        for expert in range(4):
            yield from _gated(f"{prefix}.block_sparse_moe.experts.{expert}", INTERMEDIATE, ("w1", "w3", "w2"))
    elif "moe_intermediate_size" in config and layer >= config.get("first_k_dense_replace", 0):
        width = config["moe_intermediate_size"]
        yield f"{prefix}.mlp.gate.weight", (4, HIDDEN)
        for expert in range(4):
            yield from _gated(f"{prefix}.mlp.experts.{expert}", width)
        if "n_shared_experts" in config:
            yield from _gated(f"{prefix}.mlp.shared_experts", width * config["n_shared_experts"])
    else:
        yield from _gated(f"{prefix}.mlp", INTERMEDIATE)


def _gated(prefix: str, width: int, parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Shapes:
    yield f"{prefix}.{parts[0]}.weight", (width, HIDDEN)
    yield f"{prefix}.{parts[1]}.weight", (width, HIDDEN)
    yield f"{prefix}.{parts[2]}.weight", (HIDDEN, width)
