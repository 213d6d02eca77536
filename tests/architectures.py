"""Tiny models of every architecture that the engine runs, and the same weights for the dense forward."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from dense_architectures import DenseLayer, DenseModel

from engine.decoder_shape import DecoderShape
from engine.decoder_weights import DecoderWeights, LayerWeights
from engine.model import Decoder
from engine.weights import random_weights

GQA = DecoderShape(
    num_layers=3,
    hidden=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate=48,
    vocab_size=300,
    max_positions=512,
)
GEMMA_WINDOWS = (6, 6, None, 6, 6, None, 6)  # groups of two layers: one full, two of the window and half a one
ARCHITECTURES = {
    "mha": replace(GQA, num_kv_heads=4),
    "gqa": GQA,
    "mqa": replace(GQA, num_kv_heads=1),
    "untied": replace(GQA, tied=False),
    "qwen2": replace(GQA, qkv_bias=True),
    "qwen3": replace(GQA, qk_norm=True),
    "mistral": replace(GQA, layer_windows=(7, 7, 7)),
    "gemma3": replace(GQA, num_layers=7, num_kv_heads=1, layer_windows=GEMMA_WINDOWS, qk_norm=True),
    "gpt_oss": replace(GQA, num_layers=4, layer_windows=(5, None, 5, None), qkv_bias=True),
    "two windows": replace(GQA, layer_windows=(4, 9, None)),
    "shared": replace(GQA, num_layers=6, layer_windows=(5, None) * 3, num_shared_layers=2),
    "shared, all full": replace(GQA, num_layers=4, num_shared_layers=3),
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
        layers.append(DenseLayer(_taken_apart(shape, layer), window, reads))
    return DenseModel(
        weights.embedding,
        tuple(layers),
        weights.final_norm,
        weights.head,
        shape.num_heads,
        shape.num_kv_heads,
        shape.rope_base,
        shape.norm_eps,
    )


def _taken_apart(shape: DecoderShape, layer: LayerWeights) -> dict:
    gate, up = layer.mlp.gate_up.chunk(2)
    tensors = {"attn_norm": layer.attn_norm, "mlp_norm": layer.mlp_norm, "o": layer.attention.out}
    tensors |= {"gate": gate, "up": up, "down": layer.mlp.down}
    num_query_rows, num_kv_rows = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    starts = {"q": 0, "k": num_query_rows, "v": num_query_rows + num_kv_rows}
    for name, start in starts.items():
        rows = slice(start, start + (num_query_rows if name == "q" else num_kv_rows))
        if layer.attention.qkv[rows].numel():
            tensors[name] = layer.attention.qkv[rows]
            if layer.attention.qkv_bias is not None:
                tensors[f"{name}_bias"] = layer.attention.qkv_bias[rows]
    norms = {"q_norm": layer.attention.q_norm, "k_norm": layer.attention.k_norm}
    return tensors | {name: norm for name, norm in norms.items() if norm is not None}
