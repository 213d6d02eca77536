"""A decoder over a paged KV cache, as one function of a packed batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from engine.attention import AttentionKernels, HeadAttention, StepContext
from engine.batch import BatchInput
from engine.decoder_shape import DecoderShape
from engine.decoder_weights import DecoderWeights, GatedWeights
from engine.kv_cache import PagedKV
from engine.rope import rope_angles
from kernels import reference


class Decoder:
    """A decoder ready to run: weights on one device, RoPE angles of every position beside them."""

    def __init__(self, shape: DecoderShape, weights: DecoderWeights, kernels: AttentionKernels = reference) -> None:
        self.shape = shape
        self.weights = weights
        self._attentions = [
            HeadAttention(shape, layer.attention, place, kernels)
            for layer, place in zip(weights.layers, shape.kv_places(), strict=True)
        ]
        self._angles = rope_angles(shape.rope_base, shape.head_dim, shape.max_positions, weights.embedding.device)

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.weights.embedding.device

    @torch.inference_mode()
    def forward(self, batch: BatchInput, kv: PagedKV) -> Tensor:
        """Compute the batch, write its keys and values into `kv`; returns fp32 logits [num_sampled, vocab_size]."""
        hidden, eps = (self.shape.hidden,), self.shape.norm_eps
        step = StepContext(batch, kv, self._angles.at(batch.positions))
        x = self.weights.embedding[batch.token_ids]
        for attend, layer in zip(self._attentions, self.weights.layers, strict=True):
            x = x + attend(rms_norm(x, hidden, layer.attn_norm, eps), step)
            x = x + gated_mlp(rms_norm(x, hidden, layer.mlp_norm, eps), layer.mlp)
        sampled = rms_norm(x[batch.sample_rows], hidden, self.weights.final_norm, eps)
        return linear(sampled, self.weights.head).float()


def gated_mlp(x: Tensor, weights: GatedWeights) -> Tensor:
    """SwiGLU: [num_tokens, hidden] -> [num_tokens, hidden]."""
    gate, up = linear(x, weights.gate_up).chunk(2, dim=-1)
    return linear(silu(gate) * up, weights.down)
