"""Decoders of many architectures written a second time, for proofs: dense, no cache, no batching, nothing of `engine`.

Every projection is a matrix of its own, every head a loop, every mask written out from its definition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DenseLayer:
    """tensors by role: q, k, v, o, gate, up, down [out, in], attn_norm, mlp_norm; where there are any: q_bias,
    k_bias, v_bias, q_norm, k_norm. A layer without k and v attends to those of the layer `reads`.
    """

    tensors: dict[str, Tensor]
    window_tokens: int | None
    reads: int


@dataclass(frozen=True)
class DenseModel:
    embedding: Tensor
    layers: tuple[DenseLayer, ...]
    final_norm: Tensor
    head: Tensor
    num_heads: int
    num_kv_heads: int
    rope_base: float
    norm_eps: float


def dense_logits(model: DenseModel, token_ids: list[int]) -> Tensor:
    """Logits [num_tokens, vocab_size] of one sequence."""
    x = model.embedding[torch.tensor(token_ids)]
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    for index, layer in enumerate(model.layers):
        y = normalised(x, layer.tensors["attn_norm"], model.norm_eps)
        if layer.reads == index:
            kept[index] = keys_and_values(model, layer, y)
        x = x + attention(model, layer, y, *kept[layer.reads])
        x = x + mlp(layer, normalised(x, layer.tensors["mlp_norm"], model.norm_eps))
    return normalised(x, model.final_norm, model.norm_eps) @ model.head.T


def greedy_tokens(model: DenseModel, prompt: list[int], num_outputs: int) -> tuple[list[int], float]:
    """The best continuation, every token computed from the whole text; and the least margin over the second best."""
    tokens, margin = list(prompt), math.inf
    for _ in range(num_outputs):
        best = dense_logits(model, tokens)[-1].topk(2)
        tokens.append(int(best.indices[0]))
        margin = min(margin, float(best.values[0] - best.values[1]))
    return tokens[len(prompt) :], margin


def keys_and_values(model: DenseModel, layer: DenseLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    """[num_kv_heads, num_tokens, head_dim] each, keys turned."""
    key = heads(layer, x, "k", model.num_kv_heads)
    if "k_norm" in layer.tensors:
        key = normalised(key, layer.tensors["k_norm"], model.norm_eps)
    return turned(key, model.rope_base), heads(layer, x, "v", model.num_kv_heads)


def attention(model: DenseModel, layer: DenseLayer, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query = heads(layer, x, "q", model.num_heads)
    if "q_norm" in layer.tensors:
        query = normalised(query, layer.tensors["q_norm"], model.norm_eps)
    query = turned(query, model.rope_base)
    visible, group = mask(len(x), layer.window_tokens), model.num_heads // model.num_kv_heads
    mixed = []
    for head in range(model.num_heads):
        scores = query[head] @ key[head // group].T / math.sqrt(query.shape[-1])
        mixed.append(torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1) @ value[head // group])
    return torch.cat(mixed, dim=-1) @ layer.tensors["o"].T


def mask(num_tokens: int, window_tokens: int | None) -> Tensor:
    """[query, key]: a token sees itself and those before it, of a window the last `window_tokens` of them."""
    reach = num_tokens if window_tokens is None else window_tokens
    return torch.tensor([[0 <= q - k < reach for k in range(num_tokens)] for q in range(num_tokens)])


def heads(layer: DenseLayer, x: Tensor, name: str, num_heads: int) -> Tensor:
    """[num_heads, num_tokens, head_dim]"""
    projected = x @ layer.tensors[name].T
    if f"{name}_bias" in layer.tensors:
        projected = projected + layer.tensors[f"{name}_bias"]
    return torch.stack(projected.chunk(num_heads, dim=-1))


def mlp(layer: DenseLayer, x: Tensor) -> Tensor:
    gate = x @ layer.tensors["gate"].T
    return (gate / (1 + torch.exp(-gate)) * (x @ layer.tensors["up"].T)) @ layer.tensors["down"].T


def turned(vectors: Tensor, base: float) -> Tensor:
    """RoPE of [..., num_tokens, dim]: components i and i + half as one complex number."""
    half = vectors.shape[-1] // 2
    speed = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(vectors.shape[-2], dtype=torch.float64)[:, None] * speed
    numbers = torch.complex(vectors[..., :half].double(), vectors[..., half:].double()) * torch.exp(1j * angle)
    return torch.cat([numbers.real, numbers.imag], dim=-1).to(vectors.dtype)


def normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight
