"""Tiny models of every architecture that the engine runs, and the same weights for the dense forward."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from dense_architectures import DenseLayer, DenseModel
from torch import Tensor

from engine.decoder_shape import DecoderShape, ExpertShape, LatentShape
from engine.decoder_weights import DecoderWeights, ExpertWeights, GatedWeights, HeadWeights, LatentWeights, LayerWeights
from engine.model import Decoder
from engine.weights import random_weights

GQA = DecoderShape(
    num_layers=2,
    hidden=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate=48,
    vocab_size=300,
    max_positions=512,
)
GEMMA_WINDOWS = (6, 6, None, 6, 6, None, 6)  # groups of two layers: one full, two of the window and half a one
MLA = replace(GQA, num_kv_heads=4, latent=LatentShape(latent_dim=12, rope_dim=4, value_dim=6))
ARCHITECTURES = {
    "mha": replace(GQA, num_kv_heads=4),
    "gqa": GQA,
    "mqa": replace(GQA, num_kv_heads=1),
    "untied": replace(GQA, tied=False),
    "qwen2": replace(GQA, qkv_bias=True),
    "qwen3": replace(GQA, qk_norm=True),
    "mistral": replace(GQA, layer_windows=(7, 7)),
    "gemma3": replace(
        GQA,
        num_layers=7,
        num_kv_heads=1,
        layer_windows=GEMMA_WINDOWS,
        qk_norm=True,
        post_norms=True,
        activation="gelu_tanh",
        embedding_scale=32**0.5,
        window_rope_base=500.0,
    ),
    "gpt_oss": replace(
        GQA, num_layers=4, layer_windows=(5, None, 5, None), qkv_bias=True, experts=ExpertShape(8, 3, 16)
    ),
    "two windows": replace(GQA, num_layers=3, layer_windows=(4, 9, None)),
    "shared": replace(GQA, num_layers=6, layer_windows=(5, None) * 3, num_shared_layers=2),
    "mixtral": replace(GQA, experts=ExpertShape(4, 2, 24)),
    "mla": replace(MLA, latent=replace(MLA.latent, query_latent_dim=10)),
    "deepseek_v2_lite": replace(MLA, experts=ExpertShape(4, 2, 16, num_shared=2, num_dense_layers=1)),
}


@cache
def decoder(name: str) -> Decoder:
    shape = ARCHITECTURES[name]
    return Decoder(shape, random_weights(shape, seed=5))


@cache
def dense(name: str) -> DenseModel:
    return as_dense(decoder(name).shape, decoder(name).weights)


def as_dense(shape: DecoderShape, weights: DecoderWeights) -> DenseModel:
    """The same weights, taken apart."""
    windows = shape.layer_windows or (None,) * shape.num_layers
    num_own = shape.num_layers - shape.num_shared_layers
    layers = []
    for index, (window, layer) in enumerate(zip(windows, weights.layers, strict=True)):
        reads = max(i for i in range(min(index + 1, num_own)) if windows[i] == window)
        base = shape.rope_base if window is None else shape.window_rope_base or shape.rope_base
        num_active = shape.experts.num_active if shape.experts else 0
        layers.append(DenseLayer(_taken_apart(shape, layer), window, reads, base, num_active))
    return DenseModel(
        weights.embedding,
        tuple(layers),
        weights.final_norm,
        weights.head,
        shape.num_heads,
        shape.num_kv_heads,
        shape.norm_eps,
        shape.activation == "gelu_tanh",
        shape.embedding_scale,
    )


def _taken_apart(shape: DecoderShape, layer: LayerWeights) -> dict[str, Tensor]:
    tensors = {name: getattr(layer, name) for name in ("attn_norm", "mlp_norm", "attn_post_norm", "mlp_post_norm")}
    if isinstance(layer.attention, LatentWeights):
        tensors |= _latent_parts(shape, layer.attention)
    else:
        tensors |= _head_parts(shape, layer.attention)
    tensors |= _mixture_parts(layer.mlp) if isinstance(layer.mlp, ExpertWeights) else _gated_parts(layer.mlp)
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _head_parts(shape: DecoderShape, attention: HeadWeights) -> dict[str, Tensor | None]:
    num_query_rows, num_kv_rows = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    parts: dict[str, Tensor | None] = {"o": attention.out, "q_norm": attention.q_norm, "k_norm": attention.k_norm}
    end = 0
    for name, num_rows in (("q", num_query_rows), ("k", num_kv_rows), ("v", num_kv_rows)):
        rows, end = slice(end, end + num_rows), end + num_rows
        if end <= len(attention.qkv):
            parts[name] = attention.qkv[rows]
            parts[f"{name}_bias"] = None if attention.qkv_bias is None else attention.qkv_bias[rows]
    return parts


def _latent_parts(shape: DecoderShape, attention: LatentWeights) -> dict[str, Tensor | None]:
    latent, turned = attention.kv_down.split((shape.latent.latent_dim, shape.latent.rope_dim))
    return {
        "q": attention.query,
        "q_down": attention.query_down,
        "q_down_norm": attention.query_norm,
        "latent": latent,
        "k_turned": turned,
        "kv_norm": attention.kv_norm,
        "key_up": attention.key_up,
        "value_up": attention.value_up,
        "o": attention.out,
    }


def _gated_parts(mlp: GatedWeights, prefix: str = "") -> dict[str, Tensor]:
    gate, up = mlp.gate_up.chunk(2)
    return {f"{prefix}gate": gate, f"{prefix}up": up, f"{prefix}down": mlp.down}


def _mixture_parts(mlp: ExpertWeights) -> dict[str, Tensor]:
    parts = {"router": mlp.router} | (_gated_parts(mlp.shared, "shared.") if mlp.shared else {})
    for number, expert in enumerate(mlp.experts):
        parts |= _gated_parts(expert, f"expert{number}.")
    return parts
