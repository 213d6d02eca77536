"""A Llama-family decoder (Llama, SmolLM2) over a paged KV cache, as one function of a packed batch."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from engine.batch import BatchInput
from engine.decoder_shape import DecoderShape, DecoderWeights
from engine.kv_cache import PagedKV
from kernels import reference


class AttentionKernels(Protocol):
    """The functions of `kernels.reference` that a forward pass calls; any faster set has the same signatures."""

    write_kv: Callable[..., None]
    decode_attention: Callable[..., Tensor]
    prefill_attention: Callable[..., Tensor]


class Decoder:
    """A decoder ready to run: weights on one device, RoPE angles of every position beside them."""

    def __init__(self, shape: DecoderShape, weights: DecoderWeights, kernels: AttentionKernels = reference) -> None:
        self.shape = shape
        self.weights = weights
        self._kernels = kernels
        self._cos, self._sin = _rope_angles(shape, weights.embedding.device)

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.weights.embedding.device

    @torch.inference_mode()
    def forward(self, batch: BatchInput, kv: PagedKV) -> Tensor:
        """Compute the batch, write its keys and values into `kv`; returns fp32 logits [num_sampled, vocab_size]."""
        shape, eps = self.shape, self.shape.norm_eps
        cos, sin = (table[batch.positions].unsqueeze(1) for table in (self._cos, self._sin))
        x = self.weights.embedding[batch.token_ids]
        for index, layer in enumerate(self.weights.layers):
            qkv = linear(rms_norm(x, (shape.hidden,), layer.attn_norm, eps), layer.qkv)
            mixed = self._attend(qkv, cos, sin, batch, kv.key[index], kv.value[index])
            x = x + linear(mixed, layer.attn_out)
            gate, up = linear(rms_norm(x, (shape.hidden,), layer.mlp_norm, eps), layer.gate_up).chunk(2, dim=-1)
            x = x + linear(silu(gate) * up, layer.down)
        sampled = rms_norm(x[batch.sample_rows], (shape.hidden,), self.weights.final_norm, eps)
        return linear(sampled, self.weights.head).float()

    def _attend(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, batch: BatchInput, k_cache: Tensor, v_cache: Tensor
    ) -> Tensor:
        """Rotate, cache and attend; [num_tokens, (num_heads + 2 num_kv_heads) head_dim] -> [num_tokens, q columns]."""
        num_heads, num_kv_heads = self.shape.num_heads, self.shape.num_kv_heads
        heads = qkv.unflatten(1, (-1, self.shape.head_dim))
        rotated = _rotate(heads[:, : num_heads + num_kv_heads], cos, sin)
        query, key = rotated.split((num_heads, num_kv_heads), dim=1)
        self._kernels.write_kv(key, heads[:, num_heads + num_kv_heads :], k_cache, v_cache, batch.slot_mapping)

        scale = self.shape.head_dim**-0.5
        parts = []
        if batch.num_decodes:
            parts.append(
                self._kernels.decode_attention(
                    query[: batch.num_decodes],
                    k_cache,
                    v_cache,
                    batch.decode_block_tables,
                    batch.decode_num_kv_tokens,
                    scale,
                )
            )
        if batch.num_prefills:
            parts.append(
                self._kernels.prefill_attention(
                    query[batch.num_decodes :],
                    k_cache,
                    v_cache,
                    batch.prefill_block_tables,
                    batch.prefill_query_start,
                    batch.prefill_num_kv_tokens,
                    scale,
                )
            )
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
        return mixed.flatten(1)


def _rope_angles(shape: DecoderShape, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, fp32 [max_positions, head_dim / 2]; fp64 inside, so that far positions keep their phase."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
    positions = torch.arange(shape.max_positions, dtype=torch.float64)
    angles = torch.outer(positions, shape.rope_base**-exponents)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split RoPE of [num_tokens, num_heads, head_dim]: dimension i pairs with i + head_dim / 2."""
    low, high = heads.float().chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(heads.dtype)
