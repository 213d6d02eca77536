"""Layers of Gaussian weights, scaled so that what goes through them neither fades nor explodes."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.decoder_shape import DecoderShape, ExpertShape, LatentShape
from engine.decoder_weights import ExpertWeights, GatedWeights, HeadWeights, LatentWeights, LayerWeights


class RandomLayers:
    """Draws one layer after the other from one generator: a model depends on its shape and its seed alone."""

    def __init__(
        self, shape: DecoderShape, generator: torch.Generator, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self._shape = shape
        self._generator = generator
        self._dtype = dtype
        self._device = device

    def normal(self, *dims: int, spread: float) -> Tensor:
        return (torch.randn(dims, generator=self._generator) * spread).to(self._dtype).to(self._device)

    def layer(self, index: int) -> LayerWeights:
        shape = self._shape
        attn_norm = self._norm(shape.hidden)
        writes = index < shape.num_kv_layers
        attention = self._heads(writes) if shape.latent is None else self._latent(shape.latent)
        mlp_norm = self._norm(shape.hidden)
        experts = shape.experts if shape.has_experts(index) else None
        return LayerWeights(
            attn_norm=attn_norm,
            attention=attention,
            mlp_norm=mlp_norm,
            mlp=self._gated(shape.intermediate) if experts is None else self._mixture(experts),
            attn_post_norm=self._norm(shape.hidden) if shape.post_norms else None,
            mlp_post_norm=self._norm(shape.hidden) if shape.post_norms else None,
        )

    def _projection(self, num_out: int, num_in: int) -> Tensor:
        return self.normal(num_out, num_in, spread=num_in**-0.5)

    def _norm(self, width: int) -> Tensor:
        return 1 + self.normal(width, spread=0.1)

    def _heads(self, writes: bool) -> HeadWeights:
        shape = self._shape
        query_rows = shape.num_heads * shape.head_dim
        rows = query_rows + 2 * shape.num_kv_heads * shape.head_dim * writes
        return HeadWeights(
            qkv=self._projection(rows, shape.hidden),
            out=self._projection(shape.hidden, query_rows),
            qkv_bias=self.normal(rows, spread=0.5) if shape.qkv_bias else None,
            q_norm=self._norm(shape.head_dim) if shape.qk_norm else None,
            k_norm=self._norm(shape.head_dim) if shape.qk_norm and writes else None,
        )

    def _latent(self, latent: LatentShape) -> LatentWeights:
        shape, latent_dim, query_latent_dim = self._shape, latent.latent_dim, latent.query_latent_dim
        return LatentWeights(
            query=self._projection(shape.num_heads * shape.query_dim, query_latent_dim or shape.hidden),
            kv_down=self._projection(latent_dim + latent.rope_dim, shape.hidden),
            kv_norm=self._norm(latent_dim),
            key_up=self.normal(shape.num_heads, shape.head_dim, latent_dim, spread=latent_dim**-0.5),
            value_up=self.normal(shape.num_heads, latent.value_dim, latent_dim, spread=latent_dim**-0.5),
            out=self._projection(shape.hidden, shape.num_heads * latent.value_dim),
            query_down=self._projection(query_latent_dim, shape.hidden) if query_latent_dim else None,
            query_norm=self._norm(query_latent_dim) if query_latent_dim else None,
        )

    def _gated(self, intermediate: int) -> GatedWeights:
        hidden = self._shape.hidden
        return GatedWeights(self._projection(2 * intermediate, hidden), self._projection(hidden, intermediate))

    def _mixture(self, experts: ExpertShape) -> ExpertWeights:
        return ExpertWeights.of(
            router=self._projection(experts.num_experts, self._shape.hidden),
            experts=[self._gated(experts.intermediate) for _ in range(experts.num_experts)],
            shared=self._gated(experts.num_shared * experts.intermediate) if experts.num_shared else None,
        )
