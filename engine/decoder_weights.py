"""The weights of a decoder, as tensors by role. Linear weights are [out, in]; those with one input are fused."""

from __future__ import annotations

from dataclasses import dataclass

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
class GatedWeights:
    """gate_up: [2 intermediate, hidden]; down: [hidden, intermediate]."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """attn_norm, mlp_norm: [hidden]."""

    attn_norm: Tensor
    attention: HeadWeights
    mlp_norm: Tensor
    mlp: GatedWeights


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """embedding, head: [vocab_size, hidden], the same tensor when tied; final_norm: [hidden]."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor
