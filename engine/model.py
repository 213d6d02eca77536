"""A decoder over a paged KV cache, as one function of a packed batch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention import DecoderKernels, HeadAttention, LayerAngles, StepContext
from engine.batch import BatchInput
from engine.decoder_shape import DecoderShape, KVPlace
from engine.decoder_weights import DecoderWeights, LayerWeights
from engine.kernel_sets import kernels_for
from engine.kv_cache import PagedKV
from engine.latent_attention import LatentAttention
from engine.mlp import GatedMLP, Mixture
from engine.projection import projection
from engine.rope import Angles, rope_angles


class _Layer(NamedTuple):
    weights: LayerWeights
    attend: Callable[[Tensor, StepContext], Tensor]
    mlp: Callable[[Tensor], Tensor]


class Decoder:
    """A decoder ready to run: weights on one device, RoPE angles of every position beside them.

    `kernels` defaults to those that are made for the device. `heads` is how layers with keys and values attend.
    """

    def __init__(
        self,
        shape: DecoderShape,
        weights: DecoderWeights,
        kernels: DecoderKernels | None = None,
        heads: type[HeadAttention] = HeadAttention,
    ) -> None:
        self.shape = shape
        self.weights = weights
        self.kernels = kernels = kernels or kernels_for("auto", shape, self.device, self.dtype)
        self._layers = [
            _Layer(layer, _attention(shape, layer, place, kernels, heads), _mlp(shape, layer, index, kernels))
            for index, (layer, place) in enumerate(zip(weights.layers, shape.kv_places(), strict=True))
        ]
        self._head = projection(weights.head)
        self._angles = _angles(shape, self.device)
        self._window_angles = _window_angles(shape, self.device) or self._angles

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.weights.embedding.device

    @torch.inference_mode()
    def forward(self, batch: BatchInput, kv: PagedKV) -> Tensor:
        """Compute the batch, write its keys and values into `kv`; returns fp32 logits [num_sampled, vocab_size]."""
        step = self._step(batch, kv)
        x = self.weights.embedding[batch.token_ids]
        if self.shape.embedding_scale != 1:
            x = x * torch.tensor(self.shape.embedding_scale, dtype=x.dtype)  # rounded as the weights are (Gemma)
        normed = self._normed(x, self.weights.layers[0].attn_norm)
        for (weights, attend, mlp), following in zip_longest(self._layers, self.weights.layers[1:]):
            mixed = self._normed(attend(normed, step), weights.attn_post_norm)
            normed, x = self._added(mixed, x, weights.mlp_norm)
            fed = self._normed(mlp(normed), weights.mlp_post_norm)
            if following is not None:
                normed, x = self._added(fed, x, following.attn_norm)
        sampled, _ = self._added(fed[batch.sample_rows], x[batch.sample_rows], self.weights.final_norm)
        return self._head(sampled).float()

    def _step(self, batch: BatchInput, kv: PagedKV) -> StepContext:
        angles = window_angles = LayerAngles(self._angles, self._angles.at(batch.positions))
        if self._window_angles is not self._angles:
            window_angles = LayerAngles(self._window_angles, self._window_angles.at(batch.positions))
        return StepContext(batch, kv, angles, window_angles)

    def _added(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(the norm of x + residual, x + residual), in one kernel."""
        return self.kernels.add_rms_norm(x, residual, weight, self.shape.norm_eps)

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else self.kernels.rms_norm(x, weight, self.shape.norm_eps)


def _attention(
    shape: DecoderShape, layer: LayerWeights, place: KVPlace, kernels: DecoderKernels, heads: type[HeadAttention]
) -> HeadAttention | LatentAttention:
    if shape.latent is not None:
        return LatentAttention(shape, shape.latent, layer.attention, place, kernels)
    return heads(shape, layer.attention, place, kernels)


def _mlp(shape: DecoderShape, layer: LayerWeights, index: int, kernels: DecoderKernels) -> GatedMLP | Mixture:
    experts = shape.experts if shape.has_experts(index) else None
    if experts is None:
        return GatedMLP(shape, layer.mlp, kernels)
    return Mixture(shape, experts, layer.mlp, kernels)


def _angles(shape: DecoderShape, device: torch.device) -> Angles:
    return rope_angles(shape.rope_base, shape.rotated_dim, shape.max_positions, device, shape.rope_scaling)


def _window_angles(shape: DecoderShape, device: torch.device) -> Angles | None:
    """Of layers with a window, where they have a base of their own."""
    if shape.window_rope_base is None:
        return None
    return rope_angles(shape.window_rope_base, shape.rotated_dim, shape.max_positions, device)
