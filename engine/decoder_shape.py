"""What a decoder is made of: its dimensions and its weights, as tensors by role."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The dimensions of a decoder with grouped-query attention, RoPE, RMSNorm and a SwiGLU MLP."""

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    max_positions: int
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    tied: bool = True


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; linear weights are [out, in], those that read the same input fused into one.

    attn_norm, mlp_norm: [hidden]
    qkv: [(num_heads + 2 num_kv_heads) head_dim, hidden], rows q, k, v; q and k in the half-split RoPE order
    attn_out: [hidden, num_heads head_dim]; gate_up: [2 intermediate, hidden]; down: [hidden, intermediate]
    """

    attn_norm: Tensor
    qkv: Tensor
    attn_out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """embedding, head: [vocab_size, hidden], the same tensor when tied; final_norm: [hidden]."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor
