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
    """tensors by role, linear ones [out, in]. A layer without keys and values attends to those of layer `reads`."""

    tensors: dict[str, Tensor]
    window_tokens: int | None
    reads: int
    rope_base: float
    num_active_experts: int = 0


@dataclass(frozen=True)
class DenseModel:
    """`passages`: positions of texts that were computed on their own, so that their tokens see only each other."""

    embedding: Tensor
    layers: tuple[DenseLayer, ...]
    final_norm: Tensor
    head: Tensor
    num_heads: int
    num_kv_heads: int
    norm_eps: float
    has_gelu: bool = False
    embedding_scale: float = 1.0
    passages: tuple[range, ...] = ()


def dense_logits(model: DenseModel, token_ids: list[int]) -> Tensor:
    """Logits [num_tokens, vocab_size] of one sequence."""
    x = model.embedding[torch.tensor(token_ids)] * model.embedding_scale
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    for index, layer in enumerate(model.layers):
        weight = layer.tensors
        y = normalised(x, weight["attn_norm"], model.norm_eps)
        if layer.reads == index:
            kept[index] = (latent_keys_and_values if "kv_norm" in weight else keys_and_values)(model, layer, y)
        x = x + post_normed(model, weight, "attn", attention(model, layer, y, *kept[layer.reads]))
        y = normalised(x, weight["mlp_norm"], model.norm_eps)
        x = x + post_normed(
            model, weight, "mlp", mixture(model, layer, y) if "router" in weight else mlp(model, weight, y)
        )
    return normalised(x, model.final_norm, model.norm_eps) @ model.head.T


def post_normed(model: DenseModel, weight: dict[str, Tensor], part: str, x: Tensor) -> Tensor:
    name = f"{part}_post_norm"
    return normalised(x, weight[name], model.norm_eps) if name in weight else x


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
    return turned(key, layer.rope_base), heads(layer, x, "v", model.num_kv_heads)


def latent_keys_and_values(model: DenseModel, layer: DenseLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    """MLA as its paper defines it: every head's own key and value, from the latent; the turned part is of all heads."""
    weight = layer.tensors
    latent = normalised(x @ weight["latent"].T, weight["kv_norm"], model.norm_eps)
    turned_part = turned(x @ weight["k_turned"].T, layer.rope_base)
    keys = [torch.cat([latent @ up.T, turned_part], dim=-1) for up in weight["key_up"]]
    return torch.stack(keys), torch.stack([latent @ up.T for up in weight["value_up"]])


def queries(model: DenseModel, layer: DenseLayer, x: Tensor) -> Tensor:
    """[num_heads, num_tokens, head_dim], turned: of MLA the part that has a position."""
    weight = layer.tensors
    if "q_down" in weight:
        x = normalised(x @ weight["q_down"].T, weight["q_down_norm"], model.norm_eps)
    query = heads(layer, x, "q", model.num_heads)
    if "q_norm" in weight:
        query = normalised(query, weight["q_norm"], model.norm_eps)
    if "k_turned" not in weight:
        return turned(query, layer.rope_base)
    num_turned = len(weight["k_turned"])
    return torch.cat([query[..., :-num_turned], turned(query[..., -num_turned:], layer.rope_base)], dim=-1)


def attention(model: DenseModel, layer: DenseLayer, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, visible = queries(model, layer, x), mask(len(x), layer.window_tokens, model.passages)
    group, mixed = model.num_heads // len(key), []
    for head in range(model.num_heads):
        scores = query[head] @ key[head // group].T / math.sqrt(query.shape[-1])
        mixed.append(torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1) @ value[head // group])
    return torch.cat(mixed, dim=-1) @ layer.tensors["o"].T


def mask(num_tokens: int, window_tokens: int | None, passages: tuple[range, ...] = ()) -> Tensor:
    """[query, key]: a token sees itself and those before it, of a window the last `window_tokens` of them."""
    reach = num_tokens if window_tokens is None else window_tokens
    visible = torch.tensor([[0 <= q - k < reach for k in range(num_tokens)] for q in range(num_tokens)])
    for passage in passages:
        visible[passage.start : passage.stop, : passage.start] = False
    return visible


def heads(layer: DenseLayer, x: Tensor, name: str, num_heads: int) -> Tensor:
    """[num_heads, num_tokens, head_dim]"""
    projected = x @ layer.tensors[name].T
    if f"{name}_bias" in layer.tensors:
        projected = projected + layer.tensors[f"{name}_bias"]
    return torch.stack(projected.chunk(num_heads, dim=-1))


def mlp(model: DenseModel, weight: dict[str, Tensor], x: Tensor, prefix: str = "") -> Tensor:
    gate = x @ weight[f"{prefix}gate"].T
    if model.has_gelu:
        active = gate / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    else:
        active = gate / (1 + torch.exp(-gate))
    return (active * (x @ weight[f"{prefix}up"].T)) @ weight[f"{prefix}down"].T


def mixture(model: DenseModel, layer: DenseLayer, x: Tensor) -> Tensor:
    """Token by token: the best experts by their shares, which are made to sum to one, and the shared ones."""
    rows = []
    for row in x:
        logits = layer.tensors["router"] @ row
        best = logits.topk(layer.num_active_experts).indices.tolist()
        shares = torch.softmax(logits[best], dim=0)
        mixed = sum(
            share * mlp(model, layer.tensors, row, f"expert{e}.") for share, e in zip(shares, best, strict=True)
        )
        rows.append(mixed + mlp(model, layer.tensors, row, "shared.") if "shared.gate" in layer.tensors else mixed)
    return torch.stack(rows)


def turned(vectors: Tensor, base: float) -> Tensor:
    """RoPE of [..., num_tokens, dim]: components i and i + half as one complex number."""
    half = vectors.shape[-1] // 2
    speed = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(vectors.shape[-2], dtype=torch.float64)[:, None] * speed
    numbers = torch.complex(vectors[..., :half].double(), vectors[..., half:].double()) * torch.exp(1j * angle)
    return torch.cat([numbers.real, numbers.imag], dim=-1).to(vectors.dtype)


def normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight
