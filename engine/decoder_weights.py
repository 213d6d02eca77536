"""The weights of a decoder, as tensors by role. Linear weights are [out, in]; those with one input are fused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """Attention with a key and a value per KV head.

    qkv: [(num_heads + 2 num_kv_heads) head_dim, hidden], rows q, k, v (of a layer that reads another's cache: q only);
    q and k in the half-split RoPE order. qkv_bias: [rows of qkv]; q_norm, k_norm: [head_dim]; out: [hidden, num_heads
    head_dim].
    """

    qkv: Tensor
    out: Tensor
    qkv_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """Multi-head latent attention (MLA); rows with position in the half-split RoPE order.

    query: [num_heads (head_dim + rope_dim), hidden], or from the queries' latent: query_down [query_latent_dim,
    hidden], query_norm [query_latent_dim]; kv_down: [latent_dim + rope_dim, hidden]; kv_norm: [latent_dim];
    key_up: [num_heads, head_dim, latent_dim]; value_up: [num_heads, value_dim, latent_dim];
    out: [hidden, num_heads value_dim].
    """

    query: Tensor
    kv_down: Tensor
    kv_norm: Tensor
    key_up: Tensor
    value_up: Tensor
    out: Tensor
    query_down: Tensor | None = None
    query_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class GatedWeights:
    """gate_up: [2 intermediate, hidden]; down: [hidden, intermediate]."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """router: [num_experts, hidden]; gate_up: [num_experts, 2 intermediate, hidden]; down: [num_experts, hidden,
    intermediate]; `shared` is one MLP as wide as all shared experts together.
    """

    router: Tensor
    gate_up: Tensor
    down: Tensor
    shared: GatedWeights | None = None

    @classmethod
    def of(cls, router: Tensor, experts: Sequence[GatedWeights], shared: GatedWeights | None) -> ExpertWeights:
        gate_up, down = (torch.stack(parts) for parts in zip(*((e.gate_up, e.down) for e in experts), strict=True))
        return cls(router, gate_up, down, shared)

    @property
    def experts(self) -> list[GatedWeights]:
        """One by one; views."""
        return list(map(GatedWeights, self.gate_up, self.down))


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """attn_norm, mlp_norm: [hidden], before attention and MLP; attn_post_norm, mlp_post_norm likewise, after them."""

    attn_norm: Tensor
    attention: HeadWeights | LatentWeights
    mlp_norm: Tensor
    mlp: GatedWeights | ExpertWeights
    attn_post_norm: Tensor | None = None
    mlp_post_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """embedding, head: [vocab_size, hidden], the same tensor when tied; final_norm: [hidden]."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor
